"""Refused events as dead letters on real brokers: each of them, with its reason and place, and no other event."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest
from nats.js import JetStreamContext
from nats.js.api import DiscardPolicy, StreamConfig

from builders.events import DAY, HOUR, MINUTE, Click, a_click_plan
from fixtures.click_streams import (
    BROKERS,
    KEY,
    ClicksOnKafka,
    ClicksOnNats,
    StreamOfClicks,
    a_stream_of_clicks,
)
from fixtures.ingester import RunningIngester, an_ingester
from fixtures.kafka import RunningKafka
from fixtures.nats import RunningNats, a_nats
from tidegate_dataplane.contract import (
    EventDeadLetters,
    EventStreamReport,
    FeaturePlan,
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


class DeadLetterPlace(Protocol):
    """Where the dead letters of a stream of clicks go."""

    name: str

    def make(self, max_bytes: int = 1 << 20) -> None:
        """Make the stream or topic, for messages of at most so many bytes."""
        ...

    def read_letters(self) -> list[Letter]:
        """Everything in it, doubles included."""
        ...


@dataclass
class PlaceOnNats:
    """Stream DEAD of a server."""

    server: RunningNats
    name: str = "dead.clicks"

    def make(self, max_bytes: int = 1 << 20) -> None:
        self.server.make_stream("DEAD", "dead.>", max_msg_size=max_bytes)

    def read_letters(self) -> list[Letter]:
        async def read(stream: JetStreamContext) -> list[Letter]:
            letters: list[Letter] = []
            for number in range(1, (await stream.stream_info("DEAD")).state.last_seq + 1):
                message = await stream.get_msg("DEAD", number)
                headers = dict(message.headers or {})
                letters.append(Letter(headers["Nats-Msg-Id"], message.data or b"", headers))
            return letters

        return self.server.ask(read)


@dataclass
class PlaceOnKafka:
    """A topic beside that of the clicks."""

    server: RunningKafka
    name: str

    def make(self, max_bytes: int = 1 << 20) -> None:
        self.server.make_topic(self.name, 1, **{"max.message.bytes": str(max_bytes)})

    def read_letters(self) -> list[Letter]:
        letters: list[Letter] = []
        for record in self.server.records(self.name):
            headers = {name: value.decode() for name, value in record.headers}
            letters.append(Letter(headers["Tidegate-Id"], record.value, headers, record.key))
        return letters


@pytest.fixture(params=BROKERS)
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StreamOfClicks]:
    """An empty stream."""
    with a_stream_of_clicks(request, tmp_path) as found:
        yield found


@pytest.fixture
def place(source: StreamOfClicks) -> DeadLetterPlace:
    """Where its dead letters go; it is not made yet."""
    if isinstance(source, ClicksOnKafka):
        return PlaceOnKafka(source.server, f"{source.topic}-dead")
    assert isinstance(source, ClicksOnNats)
    return PlaceOnNats(source.server)


def a_plan(
    source: StreamOfClicks, place: DeadLetterPlace, reasons: Sequence[RefusalReason] = OWNED_REASONS
) -> FeaturePlan:
    """A plan over the stream, whose refused events go to the place."""
    letters = EventDeadLetters(source="clicks", target=place.name, reasons=tuple(reasons))
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


@pytest.mark.no_rerun("a lost or doubled event")
def test_each_refused_event_is_one_letter_with_its_reason_whoever_is_killed(
    source: StreamOfClicks, place: DeadLetterPlace, tmp_path: Path
) -> None:
    now = int(time.time() * 1000)
    bad: dict[bytes, tuple[str, str | None]] = {b"{": ("Malformed", None), b"\xff\x00": ("Malformed", None)}
    for number in range(40):
        bad[an_event(item_id=None, n=number)] = ("MissingField", "item_id")
        bad[an_event(price="cheap", n=number)] = ("WrongType", "price")
        bad[an_event(ts=now - 30 * DAY + number)] = ("Expired", "ts")
        bad[an_event(ts=now + HOUR + number)] = ("InTheFuture", "ts")
    messages = list(bad)
    place.make()
    source.publish(messages[:50], TRACE)
    with an_ingester(tmp_path / "pod", a_plan(source, place)) as ingester:
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

    letters = place.read_letters()
    by_id = {letter.id: letter for letter in letters}
    assert len({letter.place for letter in letters}) == len(by_id) == len(bad)
    if isinstance(place, PlaceOnNats):
        assert len(letters) == len(bad)
    found = {
        letter.body: (letter.headers["Tidegate-Reason"], letter.headers.get("Tidegate-Field"))
        for letter in by_id.values()
    }
    assert found == bad
    for letter in by_id.values():
        assert letter.headers["trace"] == "t-17"
        assert letter.headers["Tidegate-Source"].endswith("/clicks")
        assert letter.key == (KEY if isinstance(place, PlaceOnKafka) else None)
    wrong = next(letter for letter in letters if letter.headers["Tidegate-Reason"] == "WrongType")
    assert wrong.headers["Tidegate-Message"] == "price is 'cheap'; it must be a number"


def test_a_good_event_and_a_reason_that_is_not_ordered_make_no_letter(
    source: StreamOfClicks, place: DeadLetterPlace, tmp_path: Path
) -> None:
    place.make()
    late = an_event(ts=int(time.time() * 1000) - HOUR)
    for message in (an_event(), late, b"{"):
        source.publish([message])
    reasons = (RefusalReason.TOO_LATE,)
    with an_ingester(tmp_path / "pod", a_plan(source, place, reasons)) as ingester:
        report = wait_for_refused(ingester, 2)
        assert report.refused == {RefusalReason.MALFORMED: 1, RefusalReason.TOO_LATE: 1}
        assert count_letters(report) == (1, 0)
    (letter,) = place.read_letters()
    assert (letter.body, letter.headers["Tidegate-Reason"]) == (late, "TooLate")


@pytest.mark.no_rerun("a lost event")
def test_the_stream_waits_for_its_target_and_loses_nothing(
    source: StreamOfClicks, place: DeadLetterPlace, tmp_path: Path
) -> None:
    with an_ingester(tmp_path / "pod", a_plan(source, place), dead_letter_hold_s=3_600) as ingester:
        report = ingester.wait_for("it says what is missing", lambda report: bool(letters_message(report)))
        assert place.name in letters_message(report)
        source.publish([b"{"])
        source.publish([an_event()])
        place.make()
        report = ingester.wait_for("the good one is stored", lambda report: report.stored == 1)
        assert count_letters(report) == (1, 0)
        ingester.wait_for("it is well", lambda report: not letters_message(report))
    assert [letter.body for letter in place.read_letters()] == [b"{"]


def test_a_target_that_stays_away_is_counted_and_good_events_are_stored(
    source: StreamOfClicks, place: DeadLetterPlace, tmp_path: Path
) -> None:
    source.publish([b"{", b"[", an_event()])
    with an_ingester(tmp_path / "pod", a_plan(source, place), dead_letter_hold_s=0.1) as ingester:
        report = ingester.wait_for("the good one is stored", lambda report: report.stored == 1)
        report = wait_for_refused(ingester, 2)
        assert count_letters(report) == (0, 2)
        assert place.name in letters_message(report)
        assert "make" in letters_message(report)
        assert report.problem is None

        place.make()
        ingester.wait_for("it is well", lambda report: not letters_message(report))
        source.publish([b"]"])
        assert count_letters(wait_for_refused(ingester, 3)) == (1, 2)
    assert [letter.body for letter in place.read_letters()] == [b"]"]


def test_a_body_that_is_too_large_is_cut_with_a_mark(
    source: StreamOfClicks, place: DeadLetterPlace, tmp_path: Path
) -> None:
    place.make(max_bytes=40_000)
    whole, large = b"[" + b" " * 30_000, b"[" + b"x" * 100_000
    source.publish([whole], {"trace": "t" * 20_000})
    source.publish([large], {"trace": "t"})
    with an_ingester(tmp_path / "pod", a_plan(source, place)) as ingester:
        assert count_letters(wait_for_refused(ingester, 2)) == (2, 0)
    by_size = {letter.headers.get("Tidegate-Body-Bytes"): letter for letter in place.read_letters()}
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
        source, place = ClicksOnNats(server), PlaceOnNats(server)
        source.publish([b"{", b"[", an_event()])
        with an_ingester(tmp_path / "pod", a_plan(source, place), dead_letter_hold_s=0) as ingester:
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


@pytest.mark.parametrize(
    ("is_visible", "message"),
    [(True, "the user may not use a topic"), (False, "there is no topic")],
    ids=["seen", "hidden"],
)
def test_a_topic_that_the_user_may_not_write_is_named_and_the_topic_of_events_is_read_on(
    kafka: RunningKafka, tmp_path: Path, is_visible: bool, message: str
) -> None:
    source = ClicksOnKafka(kafka, f"clicks-{tmp_path.name}")
    source.make()
    place = PlaceOnKafka(kafka, f"{source.topic}-dead")
    place.make()
    kafka.reserve_topic(place.name, "somebody", is_visible=is_visible)
    source.publish([b"{", b"[", an_event()])
    with an_ingester(tmp_path / "pod", a_plan(source, place), dead_letter_hold_s=0.1) as ingester:
        report = ingester.wait_for("the good one is stored", lambda report: report.stored == 1)
        report = wait_for_refused(ingester, 2)
        assert count_letters(report) == (0, 2)
        assert message in letters_message(report)
        assert place.name in letters_message(report)
        assert report.problem is None


def letters_message(report: EventStreamReport) -> str:
    """Why no letter is written."""
    return report.dead_letters.message if report.dead_letters is not None else ""


def _a_stream() -> StreamConfig:
    return StreamConfig(name="DEAD", subjects=["dead.>"])


def _a_full_stream() -> StreamConfig:
    """A stream that takes one message."""
    return StreamConfig(name="DEAD", subjects=["dead.>"], max_msgs=1, discard=DiscardPolicy.NEW)
