"""Follow one stream: read, store, and continue after every failure."""

import asyncio
import time
from dataclasses import replace
from typing import Final

import structlog

from tidegate_dataplane.agent.broker_error import BrokerError
from tidegate_dataplane.contract import (
    DeadLetterCounts,
    DeadLetterReport,
    EventStream,
    EventStreamReport,
    StreamProblem,
)
from tidegate_dataplane.contract.base import fit_count
from tidegate_dataplane.event_store.state import StreamState
from tidegate_dataplane.event_store.writer import EventWriter, StoreError
from tidegate_dataplane.ingester.broker import (
    EventBroker,
    ReadMessages,
    StreamChangedError,
    StreamRestartedError,
)
from tidegate_dataplane.ingester.dead_letters import DeadLetterWriter
from tidegate_dataplane.ingester.parse import EventParser
from tidegate_dataplane.ingester.transaction import (
    EventTransaction,
    count_messages,
    divide_messages,
    sort_messages,
)

log = structlog.get_logger()
FIRST_PAUSE_S: Final = 0.2
LONGEST_PAUSE_S: Final = 5.0
CURRENT_WITHIN_S: Final = 1.0
"""A pod that has everything until so short ago has caught up: a busy stream always holds more."""
FEW_MESSAGES: Final = 200
GATHER_S: Final = 0.02
"""After a read of few messages, more are gathered for this time, since each transaction costs as much as some ten events."""
REPEATED_S: Final = 3_600.0
"""A reader without a position, such as a new pod, writes dead letters for events that reached the broker this long ago, or later."""
LOG_EVERY_S: Final = 10.0
"""Shortest time between two log lines of refused events; all are counted."""


class StreamFollower:
    """Reads one stream into the store until it is cancelled."""

    def __init__(
        self,
        stream: EventStream,
        parser: EventParser,
        broker: EventBroker,
        store: EventWriter,
        state: StreamState,
        earlier: EventStreamReport | None,
        letters: DeadLetterWriter | None = None,
    ) -> None:
        """`state` and `earlier` are the state and the last report of the process before this one, over the same store.

        `letters` writes what is refused to the dead letters, if the stream has some.
        """
        self._stream = stream
        self._parser = parser
        self._broker = broker
        self._store = store
        self._state = state
        self._letters = letters
        self._max_messages = count_messages(stream)
        self._caught_up = earlier is not None and earlier.caught_up
        # Without a process before this one there is nothing, and what is older than the ttl is not missing.
        self._current_at_s = time.time() - (earlier.lag_s if earlier is not None else stream.ttl_ms / 1000)
        self._pending: int | None = None
        self._problem: BrokerError | None = None
        self._failing_since_s = 0.0
        self._logged_at_s = 0.0

    async def follow_stream(self) -> None:
        """Read and store until cancelled; no failure of this stream ends the others."""
        pause_s = FIRST_PAUSE_S
        try:
            while True:
                try:
                    await self._open_stream()
                    while True:
                        read = await self._broker.read_messages()
                        await self._store_messages(read)
                        self._problem, pause_s = None, FIRST_PAUSE_S
                        if 0 < len(read.messages) < FEW_MESSAGES:
                            await asyncio.sleep(GATHER_S)
                except StreamChangedError:
                    log.info("stream_changed", source=self._stream.name)
                except Exception as error:  # noqa: BLE001 - other streams go on
                    self._record_problem(error)
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        finally:
            await self._broker.close_stream()
            if self._letters is not None:
                await self._letters.close_target()

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
            pending=None if self._pending is None else fit_count(self._pending),
            stored=self._state.stored,
            refused=self._state.refused,
            last_refused=self._state.last_refused,
            dead_letters=self._report_letters(),
            problem=kind,
            failing_s=max(now_s - self._failing_since_s, 0.0) if problem is not None else 0.0,
            message=problem.message if problem is not None else "",
        )

    @property
    def stream_name(self) -> str:
        """Return the name of the source."""
        return self._stream.name

    async def _open_stream(self) -> None:
        # Whatever has failed, and whether another process has written: the store says what is stored.
        state = await asyncio.to_thread(self._store.read_state, self._stream.name)
        if any(state.positions.get(name, 0) < position for name, position in self._state.positions.items()):
            log.warning("events_lost", source=self._stream.name, positions=state.positions)
            newest_s = max(state.newest_ms.values(), default=0) / 1000
            self._current_at_s = min(self._current_at_s, newest_s)
        self._state = state
        since_s = max(time.time() - self._stream.ttl_ms / 1000, 0.0)
        try:
            origin = await self._broker.open_stream(self._state, since_s)
        except StreamRestartedError as error:
            await self._begin_anew(str(error))
            origin = await self._broker.open_stream(self._state, since_s)
        after = self._state.model_copy(
            update={"origin": origin, "letters_since_s": self._find_letters_time()}
        )
        if after != self._state:
            await self._commit_transaction(EventTransaction({}, after))
        if self._letters is not None:
            await self._letters.check_target(is_busy=False)
        log.info("stream_opened", source=self._stream.name, positions=self._state.positions)

    async def _store_messages(self, read: ReadMessages) -> None:
        now_s = time.time()
        if self._letters is not None:
            await self._letters.check_target(is_busy=bool(read.messages))
        if read.messages:
            refused_before = self._state.refused_count
            for part in divide_messages(read, self._max_messages):
                transaction = await asyncio.to_thread(
                    sort_messages, self._state, part, self._parser, int(now_s * 1000)
                )
                await self._commit_transaction(await self._write_letters(transaction))
            self._log_refused(refused_before)
        else:
            await asyncio.to_thread(self._store.confirm_state, self._stream.name)
        self._pending = read.pending
        if read.complete_until_s is not None:
            self._current_at_s = max(self._current_at_s, min(read.complete_until_s, now_s))
        if not self._caught_up and now_s - self._current_at_s < CURRENT_WITHIN_S:
            self._caught_up = True
            log.info("stream_caught_up", source=self._stream.name, stored=self._state.stored)

    async def _write_letters(self, transaction: EventTransaction) -> EventTransaction:
        """Write the dead letters of a transaction, and count them in its state; before it, so that none is lost."""
        if self._letters is None:
            return transaction
        after = transaction.after
        counts = await self._letters.write_letters(
            transaction.refused, after.letters_since_s, self._broker.check_stream
        )
        sums = DeadLetterCounts(
            written=after.letters.written + counts.written, failed=after.letters.failed + counts.failed
        )
        return replace(transaction, after=after.model_copy(update={"letters": sums}))

    def _find_letters_time(self) -> float:
        """Return since when events become dead letters; a reader without a position begins shortly before now.

        What is older was refused by readers before it, and would be written again by each new pod.
        """
        if self._letters is None or self._state.positions or self._state.letters_since_s:
            return self._state.letters_since_s
        return time.time() - REPEATED_S

    def _report_letters(self) -> DeadLetterReport | None:
        if self._letters is None:
            return None
        counts = self._state.letters
        return DeadLetterReport(
            written=counts.written,
            failed=counts.failed,
            failing_s=self._letters.failing_s,
            message=self._letters.message,
        )

    async def _commit_transaction(self, transaction: EventTransaction) -> None:
        await asyncio.to_thread(
            self._store.store_events,
            self._stream.name,
            transaction.events,
            before=self._state,
            after=transaction.after,
            now_ms=int(time.time() * 1000),
        )
        self._state = transaction.after
        if self._letters is not None:
            self._letters.confirm_commit()

    async def _begin_anew(self, origin: str) -> None:
        """Remove the events of a stream that no longer exists: its successor may hold them again."""
        log.warning("stream_restarted", source=self._stream.name, origin=origin)
        state = StreamState(origin=origin)
        await asyncio.to_thread(self._store.remove_events, self._stream.name, state)
        self._state, self._caught_up = state, False

    def _record_problem(self, error: Exception) -> None:
        problem = self._explain_error(error)
        if self._problem is None:
            self._failing_since_s = time.time()
        if self._problem is None or self._problem.message != problem.message:
            log.warning("stream_fails", source=self._stream.name, message=problem.message)
        self._problem = problem

    def _explain_error(self, error: Exception) -> BrokerError:
        if isinstance(error, BrokerError):
            return error
        if isinstance(error, StoreError):
            return BrokerError(str(error), refused=error.refused)
        log.error("stream_crashed", source=self._stream.name, exc_info=error)
        message = (
            f"reading it fails with {type(error).__name__}: report it, with the log of container ingester"
        )
        return BrokerError(message, refused=False)

    def _log_refused(self, count_before: int) -> None:
        event, count = self._state.last_refused, self._state.refused_count
        now_s = time.monotonic()
        if event is None or count == count_before or now_s - self._logged_at_s < LOG_EVERY_S:
            return
        self._logged_at_s = now_s
        log.warning(
            "events_refused",
            source=self._stream.name,
            count=count,
            partition=event.partition,
            position=event.position,
            reason=event.reason,
            message=event.message,
        )
