"""Call the API server with many requests at once, and follow its lists, for fleets and fault sweeps."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import urlencode

import aiohttp

from tidegate_localcluster.errors import LocalClusterError
from tidegate_localcluster.pki import KeyPair, Pki

APPLY: Final = "application/apply-patch+yaml"
_MERGE: Final = "application/merge-patch+json"
_JSON: Final = "application/json"
FIELD_MANAGER: Final = "fleet-demo"
MAX_CONCURRENT: Final = 32
_TIMEOUT: Final = aiohttp.ClientTimeout(total=30)
_WATCH_S: Final = 3600
_RETRY_S: Final = 0.5
_GONE: Final = 410

Manifest = Mapping[str, Any]


class RefusedError(LocalClusterError):
    """The API server rejected a request with an HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        """Include status and message in the text."""
        super().__init__(f"the API server answered {status}: {message}")
        self.status = status


class ApiServerClient:
    """A client of the API server for one user: JSON in, JSON out. Use it as an async context manager."""

    def __init__(self, server: str, authority: str, credentials: KeyPair) -> None:
        """Connect to `server` (an https URL) with `credentials`; `authority` is the path of its CA."""
        self.server = server
        self.tls = ssl.create_default_context(cafile=authority)
        self.tls.load_cert_chain(credentials.certificate, credentials.key)
        self._session: aiohttp.ClientSession | None = None

    @classmethod
    def as_administrator(cls, server: str, pki: Pki) -> Self:
        """Connect to `server` with an administrator's certificate of `pki`."""
        return cls(server, str(pki.authority.certificate), pki.issue_admin())

    async def __aenter__(self) -> Self:
        """Open the session."""
        connector = aiohttp.TCPConnector(ssl=self.tls, limit=0)
        self._session = aiohttp.ClientSession(connector=connector, timeout=_TIMEOUT)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the session."""
        await self._open_session.close()

    @property
    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            message = "API client used outside of its context"
            raise RuntimeError(message)
        return self._session

    async def call(
        self, method: str, path: str, body: Manifest | None = None, content_type: str = ""
    ) -> dict[str, Any] | None:
        """Return the answer, or None on 404. A PATCH is a merge patch unless `content_type` is set.

        Raises RefusedError, and OSError or aiohttp.ClientError if the server does not answer.
        """
        data = None if body is None else json.dumps(body)
        headers = {"Content-Type": content_type or (_MERGE if method == "PATCH" else _JSON)}
        async with self._open_session.request(
            method, self.server + path, data=data, headers=headers
        ) as answer:
            text = await answer.text()
            if answer.status == 404:
                return None
            if answer.status >= 400:
                raise RefusedError(answer.status, text[:500])
            return dict(json.loads(text))

    async def get_text(self, path: str) -> str:
        """Return the body of a page that is not JSON, such as /metrics."""
        async with self._open_session.get(self.server + path) as answer:
            return await answer.text()

    async def get(self, path: str) -> dict[str, Any] | None:
        """Return one object, or None if it does not exist."""
        return await self.call("GET", path)

    async def list_objects(self, path: str, selector: str = "") -> Sequence[dict[str, Any]]:
        """Return all objects of a list, or those that match the label selector."""
        query = f"?{urlencode({'labelSelector': selector})}" if selector else ""
        return tuple((await self.call("GET", path + query) or {}).get("items", ()))

    async def apply(self, path: str, body: Manifest) -> None:
        """Apply one object by server-side apply."""
        target = f"{path}?fieldManager={FIELD_MANAGER}&force=true"
        if await self.call("PATCH", target, body, APPLY) is None:
            raise RefusedError(404, f"{path} not found")

    async def create(self, path: str, body: Manifest) -> None:
        """Create one object; keep it if it exists."""
        try:
            await self.call("POST", path, body)
        except RefusedError as error:
            if error.status != 409:
                raise

    async def list_and_watch(self, path: str) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """Yield every object of a list and then its watch events, and start again with a list when the watch ends.

        The kinds of events are those of the API, and SYNC before each list.
        """
        while True:
            try:
                listing = await self.call("GET", path) or {}
                yield "SYNC", {}
                for body in listing.get("items", ()):
                    yield "ADDED", body
                async for event in self._watch(path, listing["metadata"]["resourceVersion"]):
                    yield event
            except (OSError, aiohttp.ClientError, TimeoutError, RefusedError):
                await asyncio.sleep(_RETRY_S)

    async def _watch(self, path: str, version: str) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        query = f"watch=true&timeoutSeconds={_WATCH_S}&resourceVersion={version}"
        url = f"{self.server}{path}{'&' if '?' in path else '?'}{query}"
        async with self._open_session.get(url, timeout=aiohttp.ClientTimeout(total=None)) as answer:
            async for line in read_lines(answer.content):
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise RefusedError(int(event["object"].get("code", _GONE)), str(event["object"]))
                yield event["type"], event["object"]


async def read_lines(stream: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Yield the lines of a stream with their ends; a pod may be longer than aiohttp's longest line."""
    rest = b""
    async for chunk in stream.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line + b"\n"


async def run_concurrently(
    calls: Iterable[Callable[[], Awaitable[object]]], limit: int = MAX_CONCURRENT
) -> None:
    """Await all calls, `limit` of them at a time; the first error cancels the others."""
    pending = iter(calls)

    async def work() -> None:
        for call in pending:
            await call()

    async with asyncio.TaskGroup() as workers:
        for _ in range(limit):
            workers.create_task(work())
