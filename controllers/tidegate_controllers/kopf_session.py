"""The HTTP session with which kopf asks the API server: what comes back is checked first, since kopf ends when it cannot read an answer.

kopf tries again after broken connections, and lists again after a watch whose resourceVersion is too old. Everything that it cannot read,
or that it takes for the end, becomes one of these two here. What it gets to see besides are answers of the API, and 401.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from http import HTTPStatus
from typing import Any, Final, cast

import aiohttp
import kopf
import structlog

from tidegate.api.meta import GROUP
from tidegate.kube.backoff import Backoff

log: Final = structlog.stdlib.get_logger()

PAUSE: Final = timedelta(seconds=5)
"""The longest pause between two tries of a request."""
_SHORT_S: Final = 1.0
"""A watch that ends sooner has failed, and the next one of its kind waits."""
_CALM_S: Final = 60.0
"""Credentials that are asked for again after so long have worked meanwhile."""
_LARGEST_LINE: Final = 16 * 1024 * 1024
"""Bytes of one event; etcd takes objects of 1.5 MiB."""
_BEGINNING: Final = 24
"""Bytes of an event in which its type stands."""
_LIST_AGAIN: Final = b'{"type":"ERROR","object":{"code":410}}\n'
_OF_RESOURCE: Final = frozenset({"name", "kind", "namespaced", "verbs"})


class EndlessBackoffs:
    """kopf's pauses between tries of one request: growing, without an end, since the last try would end kopf."""

    def __init__(self, backoff: Backoff) -> None:
        """Take the pauses from `backoff`."""
        self._backoff = backoff

    def __iter__(self) -> Iterator[float]:
        """Give the pauses before one request's second try, third try, and so on."""
        for failures in itertools.count(1):
            yield self._backoff.compute_delay(failures).total_seconds()


@dataclass(slots=True)
class ResponseChecker:
    """An aiohttp middleware: turns answers that would end kopf into ones that do not, and paces listings and watches that fail.

    After a broken connection kopf asks again by itself, by the pauses of its settings.
    """

    backoff: Backoff
    is_closed: Callable[[], bool] = lambda: False
    """Whether the session is closed, as it is after a 401: it may happen during a pause."""
    _failures: dict[tuple[str, bool], int] = field(default_factory=dict[tuple[str, bool], int])
    _opened_at: dict[tuple[str, bool], float] = field(default_factory=dict[tuple[str, bool], float])
    """By path, and whether it is watched: kopf asks for a few paths, over and over."""

    async def __call__(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """Ask, and check what comes back. Raises ClientConnectionError or ClientPayloadError, after which kopf goes on."""
        query, path = request.url.query, request.url.path
        key = path, "watch" in query
        self._count_short_watches(key)
        if failures := self._failures.get(key, 0):
            await asyncio.sleep(self.backoff.compute_delay(failures).total_seconds())
        if self.is_closed():
            message = "the session was closed meanwhile"
            raise aiohttp.ClientConnectionError(message)
        try:
            response = await handler(request)
        except aiohttp.ClientConnectionError:
            raise
        except aiohttp.ClientError as error:
            message = f"{type(error).__name__}: {error}"
            raise aiohttp.ClientConnectionError(message) from error
        if response.status == HTTPStatus.UNAUTHORIZED:
            # kopf would read what is said with it, in whatever encoding that is.
            _replace_content(response, EmptyBody(response.content))
            return response
        try:
            if "watch" in query:
                self._check_watch(key, response)
            else:
                await self._check_response(key, response, is_list="limit" in query)
        except aiohttp.ClientError as error:
            response.close()
            log.warning("kopf_answer_refused", path=path, error=str(error))
            raise
        return response

    def _count_short_watches(self, key: tuple[str, bool]) -> None:
        """Count watches in a row that ended at once; one that lasted was good."""
        opened_at = self._opened_at.pop(key, None)
        if opened_at is None:
            return
        if time.monotonic() - opened_at < _SHORT_S:
            self._count_failure(key)
        else:
            self._failures.pop(key, None)

    def _count_failure(self, key: tuple[str, bool]) -> None:
        self._failures[key] = self._failures.get(key, 0) + 1
        self._opened_at.pop(key, None)

    def _check_watch(self, key: tuple[str, bool], response: aiohttp.ClientResponse) -> None:
        if response.status in {HTTPStatus.BAD_REQUEST, HTTPStatus.GONE}:
            # It will not watch from here: list again.
            self._count_failure(key)
            response.status = HTTPStatus.OK
            _replace_content(response, EventLines(_yield_once(_LIST_AGAIN), response.content, lambda: None))
        elif response.status == HTTPStatus.OK:
            self._opened_at[key] = time.monotonic()
            chunks = response.content.iter_any()
            _replace_content(response, EventLines(chunks, response.content, lambda: self._count_failure(key)))
        else:
            raise _http_error(response)

    async def _check_response(
        self, key: tuple[str, bool], response: aiohttp.ClientResponse, *, is_list: bool
    ) -> None:
        if is_list and response.status in {HTTPStatus.BAD_REQUEST, HTTPStatus.GONE}:
            # The page that is to follow has expired: only a listing from the beginning will do.
            self._count_failure(key)
            message = f"HTTP {response.status}: list from the beginning"
            raise aiohttp.ClientPayloadError(message)
        if response.status != HTTPStatus.OK:
            raise _http_error(response)
        try:
            body = await response.json()
        except (ValueError, LookupError, RecursionError, aiohttp.ClientError) as error:
            message = f"the answer is no JSON: {type(error).__name__} {error}"
            raise aiohttp.ClientConnectionError(message) from error
        readable = _is_list if is_list else _is_discovery
        if not isinstance(body, dict) or not readable(key[0], cast("dict[str, Any]", body)):
            message = f"the answer is not what the API says at {key[0]}"
            raise aiohttp.ClientConnectionError(message)
        self._failures.pop(key, None)


class _BodyProxy:
    """Stands before the reader of a body, and gives what aiohttp itself asks of it."""

    def __init__(self, reader: aiohttp.StreamReader) -> None:
        self._reader = reader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)


class EmptyBody(_BodyProxy):
    """A body of which nothing is shown."""

    async def read(self, _size: int = -1) -> bytes:
        """Give nothing."""
        return b""


class EventLines(_BodyProxy):
    """The body of a watch in whole lines, each an event; half a line at the end is left out, as of a connection that broke."""

    def __init__(
        self, chunks: AsyncIterator[bytes], reader: aiohttp.StreamReader, fail: Callable[[], None]
    ) -> None:
        """Read `chunks` in place of `reader`. `fail` is called where something is no event that kopf can take."""
        super().__init__(reader)
        self._chunks, self._fail = chunks, fail

    async def iter_chunked(self, _size: int) -> AsyncIterator[bytes]:
        """Give whole events, many at a time; in place of any ERROR, the one after which kopf lists again.

        Raises ClientPayloadError for what is no event, after which kopf watches again from the last event.
        """
        rest = bytearray()
        async for chunk in self._chunks:
            rest += chunk
            if b"\n" not in chunk:
                if len(rest) > _LARGEST_LINE:
                    self._fail()
                    message = f"an event of more than {_LARGEST_LINE:,} bytes"
                    raise aiohttp.ClientPayloadError(message)
                continue
            whole, _, rest = rest.rpartition(b"\n")
            events = [line for line in bytes(whole).split(b"\n") if line.strip()]
            for number, line in enumerate(events):
                if _is_error(line):
                    self._fail()
                    log.warning("kopf_watch_error", line=line[:200].decode(errors="replace"))
                    yield b"".join(event + b"\n" for event in events[:number]) + _LIST_AGAIN
                    return
                if not _is_event(line):
                    self._fail()
                    message = f"not an event of a watch: {line[:80]!r}"
                    raise aiohttp.ClientPayloadError(message)
            yield b"".join(event + b"\n" for event in events)


def _is_error(line: bytes) -> bool:
    return b'"ERROR"' in line[:_BEGINNING]


def _is_event(line: bytes) -> bool:
    """Return whether a line looks like an event, without parsing all of it, which kopf does.

    A proxy that writes its own responses begins them differently.
    """
    if not (line.startswith(b"{") and b'"type"' in line[:_BEGINNING] and line.rstrip().endswith(b"}")):
        return False
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def _is_list(_path: str, body: Mapping[str, Any]) -> bool:
    items = _filter_dicts(body.get("items"))
    all_objects = isinstance(body.get("items"), list) and len(items) == len(body["items"])
    parts = [body.get("metadata"), *(item.get("metadata") for item in items)]
    return all_objects and all(isinstance(part, dict) for part in parts)


def _is_discovery(path: str, body: Mapping[str, Any]) -> bool:
    """Return whether a page of discovery has what kopf reads of it; the list of groups must include ours."""
    match path:
        case "/apis":
            return any(group.get("name") == GROUP for group in _filter_dicts(body.get("groups")))
        case "/api":
            return isinstance(body.get("versions"), list)
        case _:
            resources = _filter_dicts(body.get("resources"))
            return bool(resources) and all(resource.keys() >= _OF_RESOURCE for resource in resources)


def _filter_dicts(value: Any) -> list[dict[str, Any]]:
    items = value if isinstance(value, list) else []  # pyright: ignore[reportUnknownVariableType]  JSON
    return [item for item in items if isinstance(item, dict)]  # pyright: ignore[reportUnknownVariableType]  JSON


def _http_error(response: aiohttp.ClientResponse) -> aiohttp.ClientConnectionError:
    return aiohttp.ClientConnectionError(f"HTTP {response.status}")


def _replace_content(response: aiohttp.ClientResponse, content: _BodyProxy) -> None:
    response.content = cast("aiohttp.StreamReader", content)


async def _yield_once(body: bytes) -> AsyncIterator[bytes]:
    yield body


class KopfLogin:
    """kopf's login handler: the credentials of the pod or of a kubeconfig, in a session whose answers are checked."""

    def __init__(self, backoff: Backoff | None = None) -> None:
        """Pause by `backoff`."""
        self._backoff = backoff or Backoff(cap=PAUSE)
        self._last: kopf.ConnectionInfo | None = None
        self._opened_at_s = float("-inf")
        self._failures = 0

    async def open_session(self, **kwargs: Any) -> kopf.AiohttpSession | None:
        """Open a session; None where there are no credentials. Those that were refused are tried again, later each time."""
        info = kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)
        if info is None:
            return None
        now = time.monotonic()
        self._failures = self._failures + 1 if info == self._last and now - self._opened_at_s < _CALM_S else 0
        self._last, self._opened_at_s = info, now
        if self._failures:
            log.warning("kopf_credentials_refused", failures=self._failures)
            await asyncio.sleep(self._backoff.compute_delay(self._failures).total_seconds())
        answers = ResponseChecker(self._backoff)
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=info.as_ssl_context()),
            headers=info.as_http_headers(),
            proxy=info.proxy_url,
            trust_env=info.trust_env,
            middlewares=(answers,),
        )
        answers.is_closed = lambda: session.closed
        return kopf.AiohttpSession(
            server=info.server,
            priority=info.priority,
            default_namespace=info.default_namespace,
            expiration=info.expiration,
            aiohttp_session=session,
        )
