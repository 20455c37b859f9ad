"""What is refused before anybody looks at who asks: foreign hosts, requests that other sites made, and what browsers must not do."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_OWN_SITES: Final = frozenset({"same-origin", "none"})
HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
_NO_STORE: Final = "no-store"


class Guard:
    """ASGI middleware. `hosts` are the names by which the dashboard may be asked for, without port; a page that another name
    leads to (DNS rebinding) is refused."""

    def __init__(self, app: ASGIApp, hosts: Collection[str]) -> None:
        self._app, self._hosts = app, frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refused = self._refused(scope["method"], Headers(scope=scope))

        async def hardened(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", _NO_STORE)
            await send(message)

        if refused is None:
            await self._app(scope, receive, hardened)
        else:
            status, said = refused
            await JSONResponse({"detail": said}, status)(scope, receive, hardened)

    def _refused(self, method: str, headers: Headers) -> tuple[int, str] | None:
        host = host_of(headers.get("host", ""))
        if host not in self._hosts:
            return 421, (
                f"this dashboard is not known as '{host[:100]}': add the name to web.hosts of the chart "
                "(TIDEGATE_WEB_HOSTS)"
            )
        if method in _SAFE:
            return None
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc.lower() != headers.get("host", "").lower():
            return 403, "the request was made by another site"
        if headers.get("sec-fetch-site", "none") not in _OWN_SITES:
            return 403, "the request was made by another site"
        return None


def host_of(value: str) -> str:
    """The name or address in a Host header, without its port and in lower case."""
    if value.startswith("["):
        return value.partition("]")[0].lower() + "]"
    return value.partition(":")[0].lower()
