"""Refused events as dead letters on real brokers: each of them, with its reason and place, and no other event."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest
from nats.js import JetStreamContext
from nats.js.api import DiscardPolicy, StreamConfig

from builders.events import DAY, HOUR, MINUTE, Click, a_click_plan, clicks
from fixtures.ingester import RunningIngester, an_ingester
from fixtures.kafka import RunningKafka
from fixtures.nats import RunningNats, a_nats
from tidegate_dataplane.contract import (
    EventDeadLetters,
    EventStream,
    EventStreamReport,
    FeaturePlan,
    KafkaOrder,
    NatsEvents,
    RefusalReason,
)

OWNED_REASONS = tuple(reason for reason in RefusalReason if reason is not RefusalReason.TOO_LATE)
TRACE = {"trace": "t-17", "Tidegate-Reason": "forged"}


@dataclass(frozen=True)
class Letter:
    """A dead letter, as a reader of the target sees it; `id` is the same for doubles."""

    id: str
    body: bytes
    headers: Mapping[str, str]
    key: bytes | None = None

    @property
    def place(self) -> tuple[str, str]:
        """The partition, empty on NATS, and the position."""
        return self.headers.get("Tidegate-Partition", ""), self.headers["Tidegate-Sequence"]


class EventsWithLetters(Protocol):
    """A broker with an empty stream of events, and perhaps a target for dead letters."""

    target: str

    @property
    def stream(self) -> EventStream:
        """What a spec says of the stream."""
        ...

    def make_target(self, max_bytes: int = 1 << 20) -> None:
        """Make the stream or topic of the dead letters, for messages of at most so many bytes."""
        ...

    def publish(self, messages: Sequence[bytes], headers: Mapping[str, str] = {}) -> None:
        """Put events into the stream."""
        ...

    def read_letters(self) -> list[Letter]:
        """Everything in the target, doubles included."""
        ...

    def kill(self) -> None:
        """End the broker at once."""
        ...

    def start(self) -> None:
        """Start it again."""
        ...


@dataclass
class NatsWithLetters:
    """Streams CLICKS and DEAD of one server."""

    server: RunningNats
    target: str = "dead.clicks"

    @property
    def stream(self) -> EventStream:
        return clicks(nats=NatsEvents(url=self.server.url, stream="CLICKS", subject="clicks"))

    def make_target(self, max_bytes: int = 1 << 20) -> None:
        self.server.make_stream("DEAD", "dead.>", max_msg_size=max_bytes)

    def publish(self, messages: Sequence[bytes], headers: Mapping[str, str] = {}) -> None:
        async def put(stream: JetStreamContext) -> None:
            for message in messages:
                await stream.publish("clicks", message, headers=dict(headers) or None)

        self.server.ask(put)

    def read_letters(self) -> list[Letter]:
        async def read(stream: JetStreamContext) -> list[Letter]:
            letters: list[Letter] = []
            for number in range(1, (await stream.stream_info("DEAD")).state.last_seq + 1):
                message = await stream.get_msg("DEAD", number)
                headers = dict(message.headers or {})
                letters.append(Letter(headers["Nats-Msg-Id"], message.data or b"", headers))
            return letters

        return self.server.ask(read)

    def kill(self) -> None:
        self.server.kill()

    def start(self) -> None:
        self.server.start()
        self.publish([])


@dataclass
class KafkaWithLetters:
    """A topic of two partitions, and one for the dead letters."""

    server: RunningKafka
    topic: str

    @property
    def target(self) -> str:  # type: ignore[override]
        return f"{self.topic}-dead"

    @property
    def stream(self) -> EventStream:
        return clicks(nats=None, kafka=KafkaOrder(servers=(self.server.server,), topic=self.topic))

    def make_target(self, max_bytes: int = 1 << 20) -> None:
        self.server.make_topic(self.target, 1, **{"max.message.bytes": str(max_bytes)})

    def publish(self, messages: Sequence[bytes], headers: Mapping[str, str] = {}) -> None:
        self.server.publish(self.topic, messages, headers, key=b"user-1")

    def read_letters(self) -> list[Letter]:
        letters: list[Letter] = []
        for record in self.server.records(self.target):
            headers = {name: value.decode() for name, value in record.headers}
            letters.append(Letter(headers["Tidegate-Id"], record.value, headers, record.key))
        return letters

    def kill(self) -> None:
        self.server.kill()

    def start(self) -> None:
        self.server.start()


@contextmanager
def _on_nats(folder: Path, request: pytest.FixtureRequest) -> Generator[NatsWithLetters]:
    del request
    with a_nats(folder / "nats") as server:
        server.make_stream("CLICKS", "clicks")
        yield NatsWithLetters(server)


@contextmanager
def _on_kafka(folder: Path, request: pytest.FixtureRequest) -> Generator[KafkaWithLetters]:
    server: RunningKafka = request.getfixturevalue("kafka")
    topic = f"clicks-{folder.name}"
    server.make_topic(topic, 2)
    yield KafkaWithLetters(server, topic)


BROKERS: dict[str, Callable[[Path, pytest.FixtureRequest], Any]] = {"nats": _on_nats, "kafka": _on_kafka}


@pytest.fixture(params=sorted(BROKERS))
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EventsWithLetters]:
    """An empty stream, and no target yet."""
    with BROKERS[request.param](tmp_path, request) as broker:
        yield broker


def a_plan(source: EventsWithLetters, reasons: Sequence[RefusalReason] = OWNED_REASONS) -> FeaturePlan:
    """A plan over the stream, whose refused events go to the target."""
    letters = EventDeadLetters(source="clicks", target=source.target, reasons=tuple(reasons))
    return a_click_plan(source.stream).model_copy(update={"dead_letters": (letters,)})


def an_event(**changes: object) -> bytes:
    """A good event of a minute ago, unless a field is changed."""
    event = Click(1, int(time.time() * 1000) - MINUTE, 5, 1, 2.5, "home")
    return json.dumps({**event.message, **changes}).encode()


def count_letters(report: EventStreamReport) -> tuple[int, int]:
    """How many were written, and how many were not."""
    assert report.dead_letters is not None
    return report.dead_letters.written, report.dead_letters.failed


def wait_for_refused(ingester: RunningIngester, count: int) -> EventStreamReport:
    """The report once so many events were refused, and the end of the stream was read."""
    return ingester.wait_for(
        f"{count} were refused",
        lambda report: sum(report.refused.values()) == count and report.pending == 0,
    )


def test_each_refused_event_is_one_letter_with_its_reason_whoever_is_killed(
    source: EventsWithLetters, tmp_path: Path
) -> None:
    now = int(time.time() * 1000)
    bad: dict[bytes, tuple[str, str | None]] = {b"{": ("Malformed", None), b"\xff\x00": ("Malformed", None)}
    for number in range(40):
        bad[an_event(item_id=None, n=number)] = ("MissingField", "item_id")
        bad[an_event(price="cheap", n=number)] = ("WrongType", "price")
        bad[an_event(ts=now - 30 * DAY + number)] = ("Expired", "ts")
        bad[an_event(ts=now + HOUR + number)] = ("InTheFuture", "ts")
    messages = list(bad)
    source.make_target()
    source.publish(messages[:50], TRACE)
    with an_ingester(tmp_path / "pod", a_plan(source)) as ingester:
        ingester.wait_for("some were refused", lambda report: bool(report.refused))
        for start in (50, 80):
            ingester.kill()
            source.publish([an_event(), *messages[start : start + 30]], TRACE)
            ingester.start()
        source.kill()
        source.start()
        source.publish([*messages[110:], an_event()], TRACE)
        report = wait_for_refused(ingester, len(bad))
        assert count_letters(report) == (len(bad), 0)
        assert report.stored == 3

    letters = source.read_letters()
    by_id = {letter.id: letter for letter in letters}
    assert len({letter.place for letter in letters}) == len(by_id) == len(bad)
    if isinstance(source, NatsWithLetters):
        assert len(letters) == len(bad)
    found = {
        letter.body: (letter.headers["Tidegate-Reason"], letter.headers.get("Tidegate-Field"))
        for letter in by_id.values()
    }
    assert found == bad
    for letter in by_id.values():
        assert letter.headers["trace"] == "t-17"
        assert letter.headers["Tidegate-Source"].endswith("/clicks")
        assert letter.key == (b"user-1" if isinstance(source, KafkaWithLetters) else None)
    wrong = next(letter for letter in letters if letter.headers["Tidegate-Reason"] == "WrongType")
    assert wrong.headers["Tidegate-Message"] == "price is 'cheap'; it must be a number"


def test_a_good_event_and_a_reason_that_is_not_ordered_make_no_letter(
    source: EventsWithLetters, tmp_path: Path
) -> None:
    source.make_target()
    late = an_event(ts=int(time.time() * 1000) - HOUR)
    for message in (an_event(), late, b"{"):
        source.publish([message])
    reasons = (RefusalReason.TOO_LATE,)
    with an_ingester(tmp_path / "pod", a_plan(source, reasons)) as ingester:
        report = wait_for_refused(ingester, 2)
        assert report.refused == {RefusalReason.MALFORMED: 1, RefusalReason.TOO_LATE: 1}
        assert count_letters(report) == (1, 0)
    (letter,) = source.read_letters()
    assert (letter.body, letter.headers["Tidegate-Reason"]) == (late, "TooLate")


def test_the_stream_waits_for_its_target_and_loses_nothing(source: EventsWithLetters, tmp_path: Path) -> None:
    with an_ingester(tmp_path / "pod", a_plan(source), dead_letter_hold_s=3_600) as ingester:
        report = ingester.wait_for("it says what is missing", lambda report: bool(letters_message(report)))
        assert source.target in letters_message(report)
        source.publish([b"{"])
        source.publish([an_event()])
        source.make_target()
        report = ingester.wait_for("the good one is stored", lambda report: report.stored == 1)
        assert count_letters(report) == (1, 0)
        ingester.wait_for("it is well", lambda report: not letters_message(report))
    assert [letter.body for letter in source.read_letters()] == [b"{"]


def test_a_target_that_stays_away_is_counted_and_good_events_are_stored(
    source: EventsWithLetters, tmp_path: Path
) -> None:
    source.publish([b"{", b"[", an_event()])
    with an_ingester(tmp_path / "pod", a_plan(source), dead_letter_hold_s=0.1) as ingester:
        report = ingester.wait_for("the good one is stored", lambda report: report.stored == 1)
        report = wait_for_refused(ingester, 2)
        assert count_letters(report) == (0, 2)
        assert source.target in letters_message(report)
        assert "make" in letters_message(report)
        assert report.problem is None

        source.make_target()
        ingester.wait_for("it is well", lambda report: not letters_message(report))
        source.publish([b"]"])
        assert count_letters(wait_for_refused(ingester, 3)) == (1, 2)
    assert [letter.body for letter in source.read_letters()] == [b"]"]


def test_a_body_that_is_too_large_is_cut_with_a_mark(source: EventsWithLetters, tmp_path: Path) -> None:
    source.make_target(max_bytes=40_000)
    whole, large = b"[" + b" " * 30_000, b"[" + b"x" * 100_000
    source.publish([whole], {"trace": "t" * 20_000})
    source.publish([large], {"trace": "t"})
    with an_ingester(tmp_path / "pod", a_plan(source)) as ingester:
        assert count_letters(wait_for_refused(ingester, 2)) == (2, 0)
    by_size = {letter.headers.get("Tidegate-Body-Bytes"): letter for letter in source.read_letters()}
    assert by_size[None].body == whole
    cut = by_size["100001"]
    assert cut.body == large[: len(cut.body)]
    assert 10_000 < len(cut.body) < 40_000
    assert not any("trace" in letter.headers for letter in by_size.values())


@pytest.mark.parametrize("cause", ["permission", "full"])
def test_a_target_that_refuses_is_named_with_the_brokers_own_words(cause: str, tmp_path: Path) -> None:
    user = '{user: reader, password: pw, permissions: {publish: {deny: "dead.>"}}}'
    options = f"no_auth_user: reader\nauthorization {{ users: [{user}] }}" if cause == "permission" else ""
    with a_nats(tmp_path / "nats", options) as server:
        server.make_stream("CLICKS", "clicks")
        server.ask(lambda stream: stream.add_stream(_a_full_stream() if cause == "full" else _a_stream()))
        source = NatsWithLetters(server)
        source.publish([b"{", b"[", an_event()])
        with an_ingester(tmp_path / "pod", a_plan(source), dead_letter_hold_s=0) as ingester:
            report = ingester.wait_for("the good one is stored", lambda report: report.stored == 1)
            written = 1 if cause == "full" else 0
            assert count_letters(report) == (written, 2 - written)
            said = (
                "maximum messages exceeded"
                if cause == "full"
                else 'Permissions Violation for Publish to "dead.clicks"'
            )
            assert said.lower() in letters_message(report).lower()
            assert report.problem is None


def letters_message(report: EventStreamReport) -> str:
    """Why no letter is written."""
    return report.dead_letters.message if report.dead_letters is not None else ""


def _a_stream() -> StreamConfig:
    return StreamConfig(name="DEAD", subjects=["dead.>"])


def _a_full_stream() -> StreamConfig:
    """A stream that takes one message."""
    return StreamConfig(name="DEAD", subjects=["dead.>"], max_msgs=1, discard=DiscardPolicy.NEW)
