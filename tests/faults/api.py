"""The API server as its administrator sees it, on a connection of its own that no fault touches."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import aiohttp

from faults.watches import whole_lines
from tidegate_localcluster.control_plane import ControlPlane
from tidegate_localcluster.pki import Pki

APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
_CONTENT_TYPES = {"POST": "application/json", "PUT": "application/json", "DELETE": "application/json"}


class RefusedError(Exception):
    """The API server said no."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status} {message}")
        self.status = status


class Api:
    """JSON in, JSON out; use it as an async context manager."""

    def __init__(self, server: str, tls: ssl.SSLContext) -> None:
        self.server = server
        self.tls = tls
        self._session: aiohttp.ClientSession | None = None

    @classmethod
    def of(cls, control_plane: ControlPlane, pki: Pki) -> Self:
        """As the administrator of a control plane of ours."""
        tls = ssl.create_default_context(cafile=str(pki.authority.certificate))
        credentials = pki.admin()
        tls.load_cert_chain(credentials.certificate, credentials.key)
        return cls(control_plane.server, tls)

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=self.tls, limit=0))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        content_type: str = MERGE,
        query: Mapping[str, str] | None = None,
    ) -> dict[str, Any] | None:
        """The answer; None for 404. Raises RefusedError for any other refusal."""
        headers = {"Content-Type": _CONTENT_TYPES.get(method, content_type)}
        data = None if body is None else json.dumps(body)
        async with self._open().request(
            method, self.server + path, data=data, headers=headers, params=query
        ) as response:
            text = await response.text()
            if response.status == 404:
                return None
            if response.status >= 400:
                raise RefusedError(response.status, text[:500])
            return dict(json.loads(text))

    async def text(self, path: str) -> str:
        """What is not JSON: /metrics."""
        async with self._open().get(self.server + path) as response:
            return await response.text()

    async def get(self, path: str) -> dict[str, Any] | None:
        """One object, or None."""
        return await self.call("GET", path)

    async def items(self, path: str, selector: str = "") -> Sequence[dict[str, Any]]:
        """All objects of a list."""
        found = await self.call("GET", path, query={"labelSelector": selector} if selector else None)
        return tuple((found or {}).get("items", ()))

    async def apply(self, path: str, body: Mapping[str, Any], manager: str = "user") -> dict[str, Any]:
        """Server-side applies the object."""
        applied = await self.call(
            "PATCH", path, body, content_type=APPLY, query={"fieldManager": manager, "force": "true"}
        )
        assert applied is not None, path
        return applied

    async def watch(self, path: str) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """Every change of a list from now on, beginning with what is there."""
        timeout = aiohttp.ClientTimeout(total=None)
        query = {"watch": "true", "timeoutSeconds": "3600"}
        async with self._open().get(self.server + path, params=query, timeout=timeout) as response:
            async for line in whole_lines(response.content):
                event = json.loads(line)
                yield event["type"], event["object"]

    def _open(self) -> aiohttp.ClientSession:
        assert self._session is not None, "used outside of its async context"
        return self._session
