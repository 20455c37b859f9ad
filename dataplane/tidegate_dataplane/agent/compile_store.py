"""Move compiled files between the compiler and an object store, for which the agent alone has credentials."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

import structlog

from tidegate_dataplane.agent.artefacts.source import ArtefactSource, Download
from tidegate_dataplane.agent.artefacts.uri import ArtefactUri, parse_uri
from tidegate_dataplane.agent.refusals import ArtefactError
from tidegate_dataplane.compiler.cache_exchange import CacheExchange, find_size_limit
from tidegate_dataplane.contract import DesiredState, FailureReason

log = structlog.get_logger()

POLL_S: Final = 0.5
MIN_PAUSE_S: Final = 10.0
MAX_PAUSE_S: Final = 600.0
"""After a failure: each pause is twice as long as the one before, and meanwhile the compiler gets no file and waits for none."""


class Store(ArtefactSource, Protocol):
    """An object store, opened for one folder."""

    async def put_file(self, path: str, file: Path) -> None:
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
        self._pause_s, self._next_s = MIN_PAUSE_S, 0.0
        self.problem = ""

    def follow_order(self, order: DesiredState) -> None:
        """Use the store of the order, if it has one."""
        uri = order.compile_cache if order.graph_passes else ""
        if uri != self._uri:
            self._uri = uri
            self._clear_problem()
        self._exchange.set_open(is_open=bool(uri))

    async def move_files(self) -> None:
        """Move files until cancelled."""
        while True:
            if self._uri:
                try:
                    await self.move_once()
                except OSError as error:
                    self._record_problem(f"the pod's disk: {error}")
            await asyncio.sleep(POLL_S)

    async def move_once(self) -> None:
        """Answer what the compiler waits for, then write what it offers; nothing is lost while the store is away."""
        for name in await asyncio.to_thread(self._exchange.list_requests):
            part = await self._fetch_file(name) if self._is_due() else None
            await asyncio.to_thread(self._exchange.answer_request, name, part)
        for path in await asyncio.to_thread(self._exchange.list_offers):
            if not self._is_due() or not await self._write_file(path):
                return
            path.unlink(missing_ok=True)

    async def _fetch_file(self, name: str) -> Path | None:
        """Return a file of the store; None if it has none, or cannot be read."""
        part = await asyncio.to_thread(self._exchange.make_part)
        try:
            async with self._open_store(parse_uri(self._uri)).open(name) as download:
                await _receive_file(download, part, find_size_limit(name), f"{self._uri}/{name}")
        except ArtefactError as error:
            part.unlink(missing_ok=True)
            if error.refusal.reason is not FailureReason.ARTEFACT_NOT_FOUND:
                self._record_problem(error.refusal.message)
            return None
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        self._clear_problem()
        return part

    async def _write_file(self, path: Path) -> bool:
        try:
            await self._open_store(parse_uri(self._uri)).put_file(path.name, path)
        except ArtefactError as error:
            self._record_problem(error.refusal.message)
            return False
        self._clear_problem()
        return True

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


async def _receive_file(download: Download, part: Path, limit: int, subject: str) -> None:
    """Write a download to a file. Raises ArtefactError if it has more bytes than `limit`."""
    size = 0
    with part.open("wb") as file:
        async for chunk in download.chunks:
            size += len(chunk)
            if size > limit:
                raise ArtefactError(
                    FailureReason.ARTEFACT_INVALID, f"{subject} has more than {limit >> 20} MiB: remove it"
                )
            await asyncio.to_thread(file.write, chunk)
