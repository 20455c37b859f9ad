"""One stream followed over a broker that does what the test says: what counts as caught up, and what ends nothing."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from builders.events import USER, Click, clicks
from builders.waiting import eventually
from tidegate_dataplane.agent.broker_error import BrokerError
from tidegate_dataplane.contract import EventStreamReport, StreamProblem
from tidegate_dataplane.event_store.rows import count_row_bytes
from tidegate_dataplane.event_store.state import StreamState
from tidegate_dataplane.event_store.store import EventStore
from tidegate_dataplane.ingester.broker import (
    EventMessage,
    ReadMessages,
    StreamChangedError,
    StreamRestartedError,
)
from tidegate_dataplane.ingester.follower import StreamFollower
from tidegate_dataplane.ingester.parse import EventParser
from tidegate_dataplane.ingester.transaction import MAX_TRANSACTION_BYTES, count_messages, divide_messages

Step = ReadMessages | Exception


class ScriptedBroker:
    """Returns or raises one step after the other, and nothing more afterwards."""

    def __init__(self, steps: Sequence[Step], openings: Sequence[Exception | str] = ()) -> None:
        self._steps = list(steps)
        self._openings = list(openings)
        self.opened: list[StreamState] = []

    async def open_stream(self, state: StreamState, since_s: float) -> str:
        assert since_s < time.time()
        self.opened.append(state)
        opening = self._openings.pop(0) if self._openings else "CLICKS"
        if isinstance(opening, Exception):
            raise opening
        return opening

    async def read_messages(self) -> ReadMessages:
        if not self._steps:
            await asyncio.sleep(0.005)
            return ReadMessages()
        step = self._steps.pop(0)
        if isinstance(step, Exception):
            raise step
        return step

    async def check_stream(self) -> None:
        pass

    async def close_stream(self) -> None:
        pass


@pytest.fixture
def store(tmp_path: Path) -> Iterator[EventStore]:
    found = EventStore(tmp_path, [clicks()], max_bytes=1 << 24)
    yield found
    found.close_file()


@asynccontextmanager
async def following(
    store: EventStore, broker: ScriptedBroker, earlier: EventStreamReport | None = None
) -> Any:
    stream = clicks()
    state = store.read_state(stream.name)
    follower = StreamFollower(stream, EventParser(stream, USER), broker, store, state, earlier)
    task = asyncio.create_task(follower.follow_stream())
    try:
        yield follower
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(follower: StreamFollower, holds: Callable[[EventStreamReport], bool]) -> EventStreamReport:
    await eventually(lambda: holds(follower.build_report(time.time())), what="the report is right")
    return follower.build_report(time.time())


def a_message(position: int, partition: str = "0", arrived_s: float | None = None) -> EventMessage:
    now = time.time()
    event = Click(1, int(now * 1000) - 1000 + position, position, 1, 1.0, "home")
    return EventMessage(partition, position, arrived_s or now, json.dumps(event.message).encode())


def a_read(*positions: int, pending: int | None, complete_until_s: float | None) -> ReadMessages:
    messages = [a_message(position) for position in positions]
    return ReadMessages(messages, {"0": max(positions, default=0) + 1}, pending, complete_until_s)


async def test_a_pod_that_lacks_old_messages_of_some_partition_has_not_caught_up(store: EventStore) -> None:
    day_ago_s = time.time() - 86_400
    broker = ScriptedBroker([a_read(1, 2, pending=1_000_000, complete_until_s=day_ago_s)])
    async with following(store, broker) as follower:
        report = await until(follower, lambda report: report.stored == 2)

        assert not report.caught_up
        assert report.pending == 1_000_000


@pytest.mark.parametrize(("count", "reported"), [(10**400, 2**62), (-5, 0)])
async def test_a_number_of_messages_beyond_all_measure_still_fits_into_the_report(
    store: EventStore, count: int, reported: int
) -> None:
    broker = ScriptedBroker([a_read(1, pending=count, complete_until_s=None)])
    async with following(store, broker) as follower:
        report = await until(follower, lambda report: report.pending is not None)
        assert report.pending == reported
        assert EventStreamReport.model_validate_json(report.to_json()) == report


async def test_a_pod_whose_place_is_not_known_has_not_caught_up(store: EventStore) -> None:
    broker = ScriptedBroker([a_read(1, pending=None, complete_until_s=None)])
    async with following(store, broker) as follower:
        assert not (await until(follower, lambda report: report.stored == 1)).caught_up


async def test_a_busy_stream_is_caught_up_a_moment_behind_its_end(store: EventStore) -> None:
    broker = ScriptedBroker([a_read(1, pending=50, complete_until_s=time.time())])
    async with following(store, broker) as follower:
        report = await until(follower, lambda report: report.caught_up)
        assert report.lag_s < 60


async def test_the_lag_goes_on_where_the_process_before_ended(store: EventStore) -> None:
    earlier = EventStreamReport(source="clicks", caught_up=True, lag_s=500)
    broker = ScriptedBroker([BrokerError("it is away", refused=False)] * 50)
    async with following(store, broker, earlier) as follower:
        report = await until(follower, lambda report: report.problem is not None)

        assert report.caught_up
        assert report.lag_s >= 500


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (BrokerError("it is away", refused=False), "it is away"),
        (RuntimeError("unknown"), "reading it fails with RuntimeError"),
        (KeyError("x"), "reading it fails with KeyError"),
    ],
)
async def test_no_failure_ends_the_reading(store: EventStore, error: Exception, says: str) -> None:
    broker = ScriptedBroker([error, a_read(1, pending=0, complete_until_s=time.time())])
    async with following(store, broker) as follower:
        report = await until(follower, lambda report: report.problem is not None)
        assert (report.problem, says in report.message) == (StreamProblem.STREAM_UNREACHABLE, True)

        report = await until(follower, lambda report: report.stored == 1)
        assert report.problem is None
        assert len(broker.opened) == 2


async def test_new_partitions_are_no_problem(store: EventStore) -> None:
    reads = [a_read(1, pending=0, complete_until_s=time.time()), StreamChangedError("clicks")]
    broker = ScriptedBroker([*reads, a_read(2, pending=0, complete_until_s=time.time())])
    async with following(store, broker) as follower:
        report = await until(follower, lambda report: report.stored == 2)

        assert report.problem is None
        assert [state.positions for state in broker.opened] == [{}, {"0": 2}]


async def test_messages_that_come_again_are_stored_once(store: EventStore) -> None:
    broker = ScriptedBroker(
        [
            a_read(1, 2, pending=1, complete_until_s=None),
            a_read(1, 2, 3, pending=0, complete_until_s=time.time()),
        ]
    )
    async with following(store, broker) as follower:
        report = await until(follower, lambda report: report.pending == 0)

        assert report.stored == 3
        (rows,) = store.read_rows("clicks", [Click(1, 0, 0, 0, 0, "").key])
        assert len(rows) == 3 * 5 * 8


async def test_a_stream_made_anew_replaces_the_events_of_the_old_one(store: EventStore) -> None:
    old = a_read(1, 2, pending=0, complete_until_s=time.time())
    new = a_read(1, pending=0, complete_until_s=time.time())
    broker = ScriptedBroker(
        [old, BrokerError("it is away", refused=False), new],
        openings=["first", StreamRestartedError("second"), "second"],
    )
    async with following(store, broker) as follower:
        await until(follower, lambda report: report.stored == 2)
        report = await until(follower, lambda report: report.stored == 1)

        assert report.problem is None
        assert store.read_state("clicks").origin == "second"


async def test_messages_of_large_histories_are_stored_in_parts_that_each_have_their_position(
    store: EventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    row_bytes = count_row_bytes(clicks().fields)
    monkeypatch.setattr(
        "tidegate_dataplane.ingester.transaction.MAX_TRANSACTION_BYTES", 2 * clicks().max_events * row_bytes
    )
    parts: list[tuple[int, int]] = []
    store_events = store.store_events

    def note_part(stream: str, events: Mapping[bytes, Sequence[bytes]], **states: Any) -> None:
        parts.append((sum(map(len, events.values())), states["after"].positions.get("0", 0)))
        store_events(stream, events, **states)

    monkeypatch.setattr(store, "store_events", note_part)
    broker = ScriptedBroker([a_read(1, 2, 3, 4, 5, pending=0, complete_until_s=time.time())])
    async with following(store, broker) as follower:
        await until(follower, lambda report: report.stored == 5 and report.caught_up)

    assert parts == [(0, 0), (2, 3), (2, 5), (1, 6)]


@pytest.mark.parametrize(("count", "max_messages", "sizes"), [(4, 2, [2, 2]), (3, 9, [3]), (1, 1, [1])])
def test_parts_have_all_messages(count: int, max_messages: int, sizes: Sequence[int]) -> None:
    read = a_read(*range(count), pending=7, complete_until_s=3.0)
    parts = list(divide_messages(read, max_messages))

    assert [len(part.messages) for part in parts] == sizes
    assert [message for part in parts for message in part.messages] == read.messages
    assert (parts[-1].next_positions, parts[-1].pending) == (read.next_positions, 7)


def test_a_transaction_of_full_histories_of_large_events_is_bounded() -> None:
    stream = clicks(max_events=4096)

    assert count_messages(stream) * 4096 * count_row_bytes(stream.fields) <= MAX_TRANSACTION_BYTES
    assert count_messages(clicks(max_events=1 << 30)) == 1
