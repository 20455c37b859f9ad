"""Move compiled files between the compiler and an object store, for which the agent alone has credentials."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import IO, Final, Protocol

import structlog

from tidegate_dataplane.agent.artefacts.source import ArtefactSource, Download
from tidegate_dataplane.agent.artefacts.uri import ArtefactUri, parse_uri
from tidegate_dataplane.agent.refusals import ArtefactError, DeniedError
from tidegate_dataplane.compiler.cache_exchange import CacheExchange, find_size_limit
from tidegate_dataplane.contract import DesiredState, FailureReason

log = structlog.get_logger()

POLL_S: Final = 0.5
MIN_PAUSE_S: Final = 10.0
MAX_PAUSE_S: Final = 600.0
"""After a failure: each pause is twice as long as the one before, and meanwhile the compiler gets no file and waits for none."""


class Store(ArtefactSource, Protocol):
    """An object store, opened for one folder."""

    async def put_file(self, path: str, file: IO[bytes]) -> None:
        """Write one file atomically. Raises ArtefactError."""
        ...


OpenStore = Callable[[ArtefactUri], Store]
"""Opens the store of a URI with the pod's credentials, which are read at every opening."""


class CompileStore:
    """The store of the order's `compile_cache`; `problem` is why it could not be used last, empty if it could."""

    def __init__(
        self, exchange: CacheExchange, open_store: OpenStore, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._exchange, self._open_store, self._clock = exchange, open_store, clock
        self._uri = ""
        self._is_open: bool | None = None
        """Whether the exchange is open; None before the agent has made it so."""
        self._pause_s, self._next_s = MIN_PAUSE_S, 0.0
        self._failures = Counter[str]()
        self.problem = ""

    def follow_order(self, order: DesiredState) -> None:
        """Use the store of the order, if it has one."""
        uri = order.compile_cache if order.graph_passes else ""
        if uri != self._uri:
            self._uri = uri
            self._failures.clear()
            self._clear_problem()

    async def read_files(self) -> None:
        """Give the compiler what it waits for, until cancelled."""
        await asyncio.to_thread(self._exchange.remove_answers)
        while True:
            await self._try_step(self.answer_requests)
            await asyncio.sleep(POLL_S)

    async def write_files(self) -> None:
        """Write what the compiler offers, until cancelled; beside the reads, since a large file takes minutes."""
        while True:
            await self._try_step(self.write_offers)
            await asyncio.sleep(POLL_S)

    async def answer_requests(self) -> None:
        """Answer what the compiler waits for; that there is no file, while the store is away. Raises OSError."""
        is_open = bool(self._uri)
        if is_open != self._is_open:
            await asyncio.to_thread(self._exchange.set_open, is_open=is_open)
            self._is_open = is_open
        if not is_open:
            return
        for name in await asyncio.to_thread(self._exchange.list_requests):
            if not self._is_due() or not await self._fetch_file(name):
                await asyncio.to_thread(self._exchange.answer_missing, name)

    async def write_offers(self) -> None:
        """Write what the compiler offers, and keep what cannot be written; first what has failed least often. Raises OSError."""
        offers = await asyncio.to_thread(self._exchange.list_offers) if self._uri else []
        for name in sorted(offers, key=lambda name: self._failures[name]):
            if not self._uri or not self._is_due():
                return
            file = await asyncio.to_thread(self._exchange.open_offer, name)
            if file is not None:
                with file:
                    await self._write_file(name, file)

    async def _try_step(self, step: Callable[[], Awaitable[None]]) -> None:
        """Take a step; a disk that fails is a problem of the cache alone."""
        try:
            await step()
        except OSError as error:
            self._record_problem(f"the pod's disk: {error}")

    async def _fetch_file(self, name: str) -> bool:
        """Give the compiler a file of the store; return False if it has none, or cannot be read."""
        try:
            async with self._open_store(parse_uri(self._uri)).open(name) as download:
                with self._exchange.answer_file(name) as file:
                    await _receive_file(download, file, find_size_limit(name), f"{self._uri}/{name}")
        except DeniedError as error:
            # A store may answer so for what it does not have, unless its folders may be listed.
            self.problem = error.refusal.message
            return False
        except ArtefactError as error:
            if error.refusal.reason is FailureReason.ARTEFACT_NOT_FOUND:
                self._clear_problem()
            else:
                self._record_problem(error.refusal.message)
            return False
        self._clear_problem()
        return True

    async def _write_file(self, name: str, file: IO[bytes]) -> None:
        try:
            await self._open_store(parse_uri(self._uri)).put_file(name, file)
        except ArtefactError as error:
            self._failures[name] += 1
            self._record_problem(error.refusal.message)
            return
        del self._failures[name]
        self._clear_problem()
        await asyncio.to_thread(self._exchange.finish_offer, name, file)

    def _is_due(self) -> bool:
        return self._clock() >= self._next_s

    def _record_problem(self, message: str) -> None:
        self.problem = message
        self._next_s = self._clock() + self._pause_s
        self._pause_s = min(2 * self._pause_s, MAX_PAUSE_S)
        log.warning("compile_cache_failed", uri=self._uri, error=message)

    def _clear_problem(self) -> None:
        self.problem = ""
        self._pause_s, self._next_s = MIN_PAUSE_S, 0.0


async def _receive_file(download: Download, file: IO[bytes], limit: int, subject: str) -> None:
    """Write a download to a file. Raises ArtefactError if it has more bytes than `limit`."""
    size = 0
    async for chunk in download.chunks:
        size += len(chunk)
        if size > limit:
            raise ArtefactError(
                FailureReason.ARTEFACT_INVALID, f"{subject} has more than {limit >> 20} MiB: remove it"
            )
        await asyncio.to_thread(file.write, chunk)
