"""HTTP session of kopf, which checks every response first, because kopf exits when it cannot parse one.

kopf recovers from two things: it retries after a broken connection, and it lists again after 410 Gone on a watch. This module
maps every response that would make kopf exit to one of the two. Valid API responses and 401 pass through.
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

MAX_RETRY_DELAY: Final = timedelta(seconds=5)
"""Longest delay between two attempts of a request."""
_MIN_WATCH_S: Final = 1.0
"""A watch that ends sooner counts as failed, and the next watch of the same kind waits."""
_CREDENTIALS_ACCEPTED_AFTER_S: Final = 60.0
"""If kopf asks for the same credentials again after this time, they were accepted in between, so the failure count restarts."""
_LARGEST_LINE: Final = 16 * 1024 * 1024
"""Bytes of one event; etcd takes objects of 1.5 MiB."""
_TYPE_PREFIX_BYTES: Final = 24
"""The type of an event is within these first bytes of its line."""
_LIST_AGAIN: Final = b'{"type":"ERROR","object":{"code":410}}\n'
_REQUIRED_RESOURCE_KEYS: Final = frozenset({"name", "kind", "namespaced", "verbs"})


class EndlessBackoffs:
    """Delays between kopf's attempts of one request: growing and endless, because kopf exits after the last attempt."""

    def __init__(self, backoff: Backoff) -> None:
        """Take the delays from `backoff`."""
        self._backoff = backoff

    def __iter__(self) -> Iterator[float]:
        """Yield the delays before a request's second attempt, third attempt, and so on."""
        for failures in itertools.count(1):
            yield self._backoff.compute_delay(failures).total_seconds()


@dataclass(slots=True)
class ResponseChecker:
    """aiohttp middleware that replaces responses that would make kopf exit, and delays lists and watches after failures.

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
            # kopf parses the body of a 401; an undecodable body would make it exit, so hide the body.
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
        if time.monotonic() - opened_at < _MIN_WATCH_S:
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
    """A body that is never shown."""

    async def read(self, _size: int = -1) -> bytes:
        """Give nothing."""
        return b""


class EventLines(_BodyProxy):
    """Body of a watch in whole lines, each of which is an event; drops the half line that a broken connection leaves at the end."""

    def __init__(
        self, chunks: AsyncIterator[bytes], reader: aiohttp.StreamReader, fail: Callable[[], None]
    ) -> None:
        """Read `chunks` instead of `reader`; call `fail` if a line is not an event that kopf can parse."""
        super().__init__(reader)
        self._chunks, self._fail = chunks, fail

    async def iter_chunked(self, _size: int) -> AsyncIterator[bytes]:
        """Yield chunks of whole events; replace an ERROR event by a 410 ERROR, after which kopf lists again, and stop.

        Raises ClientPayloadError for a line that is no event; kopf then watches again from the last event.
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
    return b'"ERROR"' in line[:_TYPE_PREFIX_BYTES]


def _is_event(line: bytes) -> bool:
    """Return whether a line looks like an event, without parsing all of it, which kopf does.

    A proxy that writes its own responses begins them differently.
    """
    if not (
        line.startswith(b"{") and b'"type"' in line[:_TYPE_PREFIX_BYTES] and line.rstrip().endswith(b"}")
    ):
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
            return bool(resources) and all(
                resource.keys() >= _REQUIRED_RESOURCE_KEYS for resource in resources
            )


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
        self._backoff = backoff or Backoff(cap=MAX_RETRY_DELAY)
        self._last: kopf.ConnectionInfo | None = None
        self._opened_at_s = float("-inf")
        self._failures = 0

    async def open_session(self, **kwargs: Any) -> kopf.AiohttpSession | None:
        """Open a session; None without credentials. Refused credentials are tried again, with backoff."""
        info = kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)
        if info is None:
            return None
        now = time.monotonic()
        self._failures = (
            self._failures + 1
            if info == self._last and now - self._opened_at_s < _CREDENTIALS_ACCEPTED_AFTER_S
            else 0
        )
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
