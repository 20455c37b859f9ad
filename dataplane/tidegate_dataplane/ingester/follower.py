"""Follow one stream: read, store, and go on after every failure."""

import asyncio
import time
from typing import Final

import structlog

from tidegate_dataplane.agent.broker_error import BrokerError
from tidegate_dataplane.contract import EventStream, EventStreamReport, RefusedEvent, StreamProblem
from tidegate_dataplane.event_store.state import StreamState
from tidegate_dataplane.event_store.store import EventStore, OtherWriterError, StoreFullError
from tidegate_dataplane.ingester.broker import EventBroker, ReadMessages, StreamRestartedError
from tidegate_dataplane.ingester.parse import EventParser
from tidegate_dataplane.ingester.transaction import EventTransaction, sort_messages

log = structlog.get_logger()

FIRST_PAUSE_S: Final = 0.2
LONGEST_PAUSE_S: Final = 5.0
CURRENT_WITHIN_S: Final = 1.0
"""A pod that stores what arrived so short ago counts as one that has everything: on a busy stream there is always more."""
LOG_EVERY_S: Final = 10.0
"""Refused events are logged at most so often; all are counted."""


class StreamFollower:
    """Reads one stream into the store until it is cancelled."""

    def __init__(
        self, stream: EventStream, parser: EventParser, broker: EventBroker, store: EventStore
    ) -> None:
        self._stream = stream
        self._parser = parser
        self._broker = broker
        self._store = store
        self._state = store.read_state(stream.name)
        self._caught_up = False
        self._current_at_s = time.time()
        self._pending: int | None = None
        self._problem: BrokerError | None = None
        refused = store.list_refused(stream.name)
        self._last_refused: RefusedEvent | None = refused[0] if refused else None
        self._logged_at_s = 0.0

    async def follow_stream(self) -> None:
        """Read and store until cancelled."""
        pause_s = FIRST_PAUSE_S
        try:
            while True:
                try:
                    await self._open_stream()
                    while True:
                        await self._store_read(await self._broker.read_messages())
                        self._problem, pause_s = None, FIRST_PAUSE_S
                except StreamRestartedError as error:
                    await self._begin_anew(str(error))
                except (BrokerError, StoreFullError, OtherWriterError) as error:
                    self._record_problem(error)
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        finally:
            await self._broker.close_stream()

    def build_report(self, now_s: float) -> EventStreamReport:
        """Return how current the events are."""
        problem = self._problem
        kind = None
        if problem is not None:
            kind = StreamProblem.STREAM_REFUSED if problem.refused else StreamProblem.STREAM_UNREACHABLE
        return EventStreamReport(
            source=self._stream.name,
            caught_up=self._caught_up,
            lag_s=max(now_s - self._current_at_s, 0.0),
            pending=self._pending,
            stored=self._state.stored,
            refused=self._state.refused,
            last_refused=self._last_refused,
            problem=kind,
            message=problem.message if problem is not None else "",
        )

    def find_expiry(self, now_s: float) -> int:
        """Return the time, in milliseconds since 1970, at or before which events are no longer of use."""
        return int(now_s * 1000) - self._stream.ttl_ms

    @property
    def stream_name(self) -> str:
        """Return the name of the source."""
        return self._stream.name

    async def _open_stream(self) -> None:
        since_s = max(time.time() - self._stream.ttl_ms / 1000, 0.0)
        origin = await self._broker.open_stream(self._state, since_s)
        if origin != self._state.origin:
            self._state = await asyncio.to_thread(
                self._commit_transaction,
                EventTransaction({}, (), self._state.model_copy(update={"origin": origin})),
            )
        log.info("stream_opened", source=self._stream.name, positions=self._state.positions)

    async def _store_read(self, read: ReadMessages) -> None:
        read_at_s = time.time()
        if read.messages:
            transaction = await asyncio.to_thread(
                sort_messages, self._state, read, self._parser, int(read_at_s * 1000)
            )
            self._state = await asyncio.to_thread(self._commit_transaction, transaction)
            self._note_refused(transaction)
        self._pending = read.pending
        if read.pending == 0:
            self._current_at_s = read_at_s
        elif read.messages:
            arrived_s = min(read.messages[-1].arrived_s, read_at_s)
            self._current_at_s = max(self._current_at_s, arrived_s)
        if not self._caught_up and (
            read.pending == 0 or (read.messages and read_at_s - self._current_at_s < CURRENT_WITHIN_S)
        ):
            self._caught_up = True
            log.info("stream_caught_up", source=self._stream.name, stored=self._state.stored)

    def _commit_transaction(self, transaction: EventTransaction) -> StreamState:
        self._store.store_events(
            self._stream.name,
            transaction.events,
            before=self._state,
            after=transaction.after,
            refused=transaction.refused,
            expired_ms=self.find_expiry(time.time()),
        )
        return transaction.after

    async def _begin_anew(self, origin: str) -> None:
        """Remove the events of a stream that no longer exists: its successor may hold them again."""
        log.warning("stream_restarted", source=self._stream.name, origin=origin)
        state = StreamState(origin=origin)
        await asyncio.to_thread(self._store.remove_events, self._stream.name, state)
        self._state, self._caught_up = state, False

    def _record_problem(self, error: BrokerError | StoreFullError | OtherWriterError) -> None:
        if isinstance(error, StoreFullError):
            error = BrokerError(
                f"the event store is full ({error}): raise spec.eventStorage, or lower ttl or maxEvents of the streams",
                refused=True,
            )
        elif isinstance(error, OtherWriterError):
            self._state = self._store.read_state(self._stream.name)
            error = BrokerError(str(error), refused=False)
        if self._problem is None or self._problem.message != error.message:
            log.warning("stream_fails", source=self._stream.name, message=error.message)
        self._problem = error

    def _note_refused(self, transaction: EventTransaction) -> None:
        if not transaction.refused:
            return
        self._last_refused = transaction.refused[-1]
        now_s = time.monotonic()
        if now_s - self._logged_at_s >= LOG_EVERY_S:
            self._logged_at_s = now_s
            log.warning(
                "events_refused",
                source=self._stream.name,
                count=transaction.after.refused_count,
                partition=self._last_refused.partition,
                position=self._last_refused.position,
                reason=self._last_refused.reason,
                message=self._last_refused.message,
            )
