"""The reflector: fills a store by list and watch, and lists again whenever the watch cannot be trusted."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable, Collection
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

import aiohttp
import structlog

from tidegate.api.meta import ObjectKey
from tidegate.errors import ApiUnavailableError, PermanentError, TidegateError, UnknownKindError
from tidegate.kube.backoff import Backoff
from tidegate.kube.client import KubeClient
from tidegate.kube.kinds import Kind
from tidegate.kube.store import ObjectStore, key_of
from tidegate.kube.transport import ExpiredError

_GONE: Final = 410
_MIN_WATCH_S: Final = 1.0
"""A watch that ends sooner without an event has failed: the API server is stopping, or a proxy blocks watches."""
# etcd refuses objects beyond 1.5 MiB; a longer line is no watch event.
_MAX_LINE_BYTES: Final = 8 * 1024 * 1024

log: Final = structlog.stdlib.get_logger()


@dataclass(frozen=True, slots=True)
class WatchSettings:
    """How long a watch may last, and when it counts as stalled."""

    duration: timedelta = timedelta(minutes=4)
    """The server ends the watch after this time; a new one continues from the last resourceVersion."""
    grace: timedelta = timedelta(seconds=15)
    """A watch that has not ended this long after `duration` is stalled: the connection is dead without an error."""
    relist_every: timedelta = timedelta(minutes=30)
    """Even a watch that seems to work is replaced by a listing from time to time: etcd may have been restored."""
    refusal_grace: timedelta = timedelta(minutes=1)
    """How long to wait for a namespace that may not be listed: an API server that is starting refuses at first."""
    backoff: Backoff = field(default_factory=lambda: Backoff(cap=timedelta(seconds=30)))


@dataclass(slots=True)
class WatchCounts:
    """Counts of lists, watches and their failures, for metrics and tests."""

    lists: int = 0
    watches: int = 0
    events: int = 0
    stalls: int = 0
    expired: int = 0
    failures: int = 0


class Reflector:
    """Fills one ObjectStore by list and watch; `run` it as a task of the process."""

    def __init__(
        self,
        client: KubeClient,
        store: ObjectStore,
        *,
        namespace: str = "",
        selector: str = "",
        fields: str = "",
        settings: WatchSettings | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.counts = WatchCounts()
        self.settled = asyncio.Event()
        """Set after the first listing, or once the API server has said that there is none: the right to it is missing, or the
        kind."""
        self.kind_missing = False
        """Whether the API server does not know the kind, as when its CRD is not installed; asked again all the time."""
        self._client = client
        self._store = store
        self._namespace = namespace
        self._selector = selector
        self._fields = fields
        self._settings = settings or WatchSettings()
        self._monotonic = monotonic
        self._resource_version = ""
        self._listed_at = float("-inf")
        self._failures = 0
        self._refused_since: float | None = None

    @property
    def kind(self) -> Kind:
        """Return the kind that is listed and watched."""
        return self._store.kind

    async def run(self) -> None:
        """List and watch until cancelled; every failure is retried with backoff."""
        while True:
            try:
                if self._needs_listing():
                    await self._list_objects()
                await self._watch_once()
            except ExpiredError as exc:
                await self._start_over(exc)
            except TidegateError as exc:
                self.kind_missing = self.kind_missing or isinstance(exc, UnknownKindError)
                if isinstance(exc, PermanentError | UnknownKindError):
                    self.settled.set()
                self._note_refusal(exc)
                self.counts.failures += 1
                await self._back_off(exc)

    def _note_refusal(self, error: TidegateError) -> None:
        """Give up a namespace that has been refused for too long, so that the others need not wait for it."""
        if not isinstance(error, PermanentError):
            return
        now = self._monotonic()
        self._refused_since = now if self._refused_since is None else self._refused_since
        if now - self._refused_since >= self._settings.refusal_grace.total_seconds():
            self._store.skip_namespace(self._namespace)

    def _needs_listing(self) -> bool:
        age = self._monotonic() - self._listed_at
        return not self._resource_version or age >= self._settings.relist_every.total_seconds()

    async def _list_objects(self) -> None:
        present, version = set[ObjectKey](), ""
        pages = self._client.list_pages(
            self._store.kind, namespace=self._namespace, selector=self._selector, fields=self._fields
        )
        async for bodies, version in pages:  # noqa: B007  the last page's version counts
            present |= self._store.put_page(bodies)
        self._resource_version = version
        self._listed_at = self._monotonic()
        self.counts.lists += 1
        self.kind_missing = False
        self._refused_since = None
        self._store.finish_listing(present, namespace=self._namespace)
        self.settled.set()
        log.debug("listed", kind=str(self._store.kind), objects=len(present), version=self._resource_version)

    async def _watch_once(self) -> None:
        """Watch from the last resourceVersion until the server ends it. Raises if the watch must be replaced."""
        self.counts.watches += 1
        started_at, has_events = self._monotonic(), False
        lasting = self._settings.duration
        watch = self._client.open_watch(
            self._store.kind,
            resource_version=self._resource_version,
            namespace=self._namespace,
            selector=self._selector,
            fields=self._fields,
            duration=lasting,
        )
        try:
            async with asyncio.timeout((lasting + self._settings.grace).total_seconds()), watch as stream:
                async for line in _read_lines(stream):
                    has_events = self._process_line(line) or has_events
        except TimeoutError as exc:
            self.counts.stalls += 1
            message = f"the watch of {self._store.kind} stalled: it did not end in time; opening another"
            raise ApiUnavailableError(message) from exc
        if not has_events and self._monotonic() - started_at < _MIN_WATCH_S:
            message = f"the watch of {self._store.kind} ended as soon as it was opened"
            raise ApiUnavailableError(message)
        self._failures = 0

    def _process_line(self, line: bytes) -> bool:
        """Process one line of the watch; return whether it was about an object."""
        kind, body = self._parse_event(line)
        if kind == "ERROR":
            raise _watch_error(body)
        if kind != "BOOKMARK":
            self.counts.events += 1
            self._store.observe(kind, body)
        self._resource_version = body["metadata"]["resourceVersion"]
        is_event = kind != "BOOKMARK"
        if is_event:
            self._failures = 0
        return is_event

    def _parse_event(self, line: bytes) -> tuple[str, dict[str, Any]]:
        """Return the event's type and object. Raises ApiUnavailableError for a line that is no event."""
        try:
            event: dict[str, Any] = json.loads(line)
            kind, body = event["type"], event["object"]
            if kind != "ERROR":
                _ = body["metadata"]["resourceVersion"]
            if kind not in {"ERROR", "BOOKMARK"}:
                _ = key_of(body)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
            message = f"the watch of {self._store.kind} sent a line that is no event"
            raise ApiUnavailableError(message) from exc
        return kind, body

    async def _start_over(self, error: ExpiredError) -> None:
        """List again after an expired resourceVersion: at once, unless the last listing is less than a second old."""
        self.counts.expired += 1
        self._resource_version = ""
        if self._monotonic() - self._listed_at < 1.0:
            await self._back_off(error)

    async def _back_off(self, error: TidegateError) -> None:
        self._failures += 1
        delay = self._settings.backoff.compute_delay(self._failures).total_seconds()
        log.warning("watch_failed", kind=str(self._store.kind), error=str(error), again_in_s=round(delay, 3))
        await asyncio.sleep(delay)


def make_reflectors(
    client: KubeClient, store: ObjectStore, namespaces: Collection[str] = (), *, selector: str = ""
) -> tuple[Reflector, ...]:
    """Return one reflector for all objects of a store's kind, or one for each of the namespaces."""
    store.expect_listings(namespaces)
    return tuple(
        Reflector(client, store, namespace=namespace, selector=selector)
        for namespace in sorted(namespaces) or ("",)
    )


def _watch_error(status: dict[str, Any]) -> TidegateError:
    message = f"watch: {status.get('code')} {status.get('message', '')}"
    return ExpiredError(message) if status.get("code") == _GONE else ApiUnavailableError(message)


async def _read_lines(stream: aiohttp.StreamReader) -> AsyncGenerator[bytes]:
    """Yield complete lines of any length; one that the connection cut off is dropped."""
    parts: list[bytes] = []
    size = 0
    async for chunk in stream.iter_any():
        first, *rest = chunk.split(b"\n")
        parts.append(first)
        size += len(first)
        for start in rest:
            if line := b"".join(parts):
                yield line
            parts, size = [start], len(start)
        if size > _MAX_LINE_BYTES:
            message = f"a watch event is longer than {_MAX_LINE_BYTES} bytes"
            raise ApiUnavailableError(message)
