"""Reject requests to foreign host names and from other sites before authentication, and set security headers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_OWN_SITES: Final = frozenset({"same-origin", "none"})
SECURITY_HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
_NO_STORE: Final = "no-store"


class RequestGuard:
    """ASGI middleware that rejects requests to host names other than `hosts` (DNS rebinding) and from other sites.

    `hosts` are names or addresses without a port.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str]) -> None:
        self._app, self._hosts = app, frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal = self._find_refusal(scope["method"], Headers(scope=scope))

        async def send_hardened(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", _NO_STORE)
            await send(message)

        if refusal is None:
            await self._app(scope, receive, send_hardened)
        else:
            status, detail = refusal
            await JSONResponse({"detail": detail}, status)(scope, receive, send_hardened)

    def _find_refusal(self, method: str, headers: Headers) -> tuple[int, str] | None:
        host = parse_host(headers.get("host", ""))
        if host not in self._hosts:
            return 421, (
                f"host name '{host[:100]}' is not allowed: add it to web.hosts of the chart "
                "(TIDEGATE_WEB_HOSTS)"
            )
        if method in _SAFE:
            return None
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc.lower() != headers.get("host", "").lower():
            return 403, "the request comes from another site"
        if headers.get("sec-fetch-site", "none") not in _OWN_SITES:
            return 403, "the request comes from another site"
        return None


def parse_host(value: str) -> str:
    """Return the lower-case name or address of a Host header, without the port."""
    if value.startswith("["):
        return value.partition("]")[0].lower() + "]"
    return value.partition(":")[0].lower()
