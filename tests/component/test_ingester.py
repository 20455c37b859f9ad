"""The ingester on real brokers: nothing lost and nothing counted twice, whoever is killed."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from nats.js import JetStreamContext

from builders.events import (
    DAY,
    HOUR,
    MINUTE,
    Click,
    a_click_plan,
    encode,
    expected_rows,
    recorded,
    some_clicks,
)
from builders.protobuf import CLICK_NUMBERS, encode_click
from builders.waiting import wait_until
from fixtures.click_streams import BROKERS, ClicksOnNats, StreamOfClicks, a_stream_of_clicks
from fixtures.ingester import RunningIngester, an_ingester
from fixtures.nats import RunningNats, a_nats
from tidegate_dataplane.contract import (
    AS_OF,
    EventStreamReport,
    NatsEvents,
    RefusalReason,
    StreamProblem,
    TimeSince,
)
from tidegate_dataplane.event_store.report import REPORT_FILE
from tidegate_dataplane.features.engine import FeatureEngine
from tidegate_dataplane.features.stored_events import open_stored_events


@pytest.fixture(params=BROKERS)
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StreamOfClicks]:
    """An empty stream."""
    with a_stream_of_clicks(request, tmp_path) as found:
        yield found


def stored_rows(ingester: RunningIngester, keys: Sequence[bytes]) -> dict[bytes, bytes]:
    return dict(zip(keys, ingester.read_rows(keys), strict=True))


@pytest.mark.no_rerun("a lost or doubled event")
def test_no_event_is_lost_or_stored_twice_whoever_is_killed(source: StreamOfClicks, tmp_path: Path) -> None:
    events = some_clicks(12_000)
    messages, plan = encode(events), a_click_plan(source.stream)
    source.publish(messages[:6_000])
    with an_ingester(tmp_path / "pod", plan) as ingester:
        for number in range(2):
            ingester.wait_for("some more are stored", lambda report: report.stored > 0)
            ingester.kill()
            ingester.start()
            source.publish(messages[6_000 + number * 1_500 : 7_500 + number * 1_500])
        for number in range(2):
            source.kill()
            if number == 0:  # so long that it is missed: each client is closed while it looks for its broker
                ingester.wait_for("the broker is missed", lambda report: report.problem is not None)
            source.start()
            source.publish(messages[9_000 + number * 1_500 : 10_500 + number * 1_500])
        report = ingester.wait_for("all is stored", lambda report: report.stored >= len(events))
        ingester.wait_for("the end is reached", lambda report: report.pending == 0 and report.problem is None)

        expected = expected_rows(events, source.stream)
        assert stored_rows(ingester, list(expected)) == expected
        assert report.stored == len(events)
        assert report.refused == {}


def test_events_in_protobuf_are_stored_as_those_in_json(source: StreamOfClicks, tmp_path: Path) -> None:
    events = some_clicks(500)
    stream = source.stream.model_copy(update={"protobuf_numbers": CLICK_NUMBERS})
    source.publish([*(encode_click(event.message) for event in events[:250]), b"{}", b"\xff"])
    source.publish([encode_click(event.message) for event in events[250:]])
    with an_ingester(tmp_path / "pod", a_click_plan(stream)) as ingester:
        report = ingester.wait_for("all is stored", lambda report: report.stored == len(events))
        ingester.wait_for("the end is reached", lambda report: report.pending == 0 and report.problem is None)
        expected = expected_rows(events, stream)
        assert stored_rows(ingester, list(expected)) == expected
        assert report.refused == {RefusalReason.MALFORMED: 2}


def test_what_is_no_event_is_refused_with_its_place_and_reason_and_the_rest_goes_on(
    source: StreamOfClicks, tmp_path: Path
) -> None:
    now = int(time.time() * 1000)
    good = Click(1, now - MINUTE, 5, 1, 2.5, "home")

    def changed(**fields: object) -> bytes:
        return json.dumps({**good.message, **fields}).encode()

    # One of each reason, and what would take long or much memory; tests/unit/test_bad_events.py has the rest.
    bad = {
        RefusalReason.MALFORMED: [b"{", b"\xff", b"[" * 100_000],
        RefusalReason.MISSING_FIELD: [
            changed(user_id=None),
            b'{"\\ud800": 1}',
            json.dumps({"x" * 500_000: 1}).encode(),
        ],
        RefusalReason.WRONG_TYPE: [changed(user_id=True), changed(page="\ud800")],
        RefusalReason.EXPIRED: [changed(ts=0), changed(ts=now // 1000)],
        RefusalReason.IN_THE_FUTURE: [changed(ts="2100-01-01T00:00:00+00:00"), changed(ts=now + 10 * MINUTE)],
    }
    plan = a_click_plan(source.stream)
    source.publish([message for messages in bad.values() for message in messages])
    source.publish([changed()])
    with an_ingester(tmp_path / "pod", plan) as ingester:
        report = ingester.wait_for("the good one is stored", lambda report: report.stored == 1)
        report = ingester.wait_for("all was read", lambda report: report.pending == 0)

        assert report.refused == {reason: len(messages) for reason, messages in bad.items()}
        assert report.last_refused is not None
        assert report.last_refused.position >= 0
        assert len((ingester.events / REPORT_FILE).read_bytes()) < 4_000
        assert report.problem is None
        assert stored_rows(ingester, [good.key]) == {good.key: good.row}


def test_an_empty_message_with_the_header_of_a_status_halts_no_stream(
    source: StreamOfClicks, tmp_path: Path
) -> None:
    good = Click(1, int(time.time() * 1000) - MINUTE, 5, 1, 2.5, "home")
    source.publish([b""], {"Status": "100", "Description": "Idle Heartbeat"})
    source.publish([json.dumps(good.message).encode()], {"Status": "503"})
    source.publish([b""], {"Status": "100", "Description": "FlowControl Request"})
    with an_ingester(tmp_path / "pod", a_click_plan(source.stream)) as ingester:
        report = ingester.wait_for("the good one is stored", lambda report: report.stored == 1)
        report = ingester.wait_for("all was read", lambda report: report.pending == 0)

        assert report.refused == {RefusalReason.MALFORMED: 2}
        assert report.problem is None
        assert stored_rows(ingester, [good.key]) == {good.key: good.row}


def test_one_bad_source_changes_no_feature_of_another(tmp_path: Path) -> None:
    """Its stream is missing at first, and then has nothing but bad events."""
    events = some_clicks(400)
    with a_nats(tmp_path / "nats") as server:
        server.make_stream("CLICKS", "clicks")
        source = ClicksOnNats(server)
        stream = source.stream
        views = stream.model_copy(
            update={
                "name": "views",
                "nats": NatsEvents(url=server.url, stream="VIEWS", subject="views"),
            }
        )
        alone = a_click_plan(stream)
        since_view = TimeSince(name="since_view", entity="user", stream="views")
        both = alone.model_copy(
            update={"streams": (stream, views), "features": (*alone.features, since_view)}
        )
        now = int(time.time() * 1000)
        inputs = {
            name: np.array(values) for name, values in (("user_id", range(42)), ("position", range(42)))
        }
        inputs[AS_OF] = np.full(42, now)
        expected = FeatureEngine(alone, {}, {"clicks": recorded(events, stream)}).compute_features(inputs)

        def check_features(ingester: RunningIngester) -> None:
            engine = FeatureEngine(both, {}, open_stored_events(both, ingester.events))
            answers = engine.compute_features(inputs)
            for feature in alone.features:
                assert answers[feature.name].tobytes() == expected[feature.name].tobytes(), feature.name
            assert set(answers["since_view"].ravel().tolist()) == {-1.0}

        with an_ingester(tmp_path / "pod", both) as ingester:

            def wait_for_both(
                what: str, holds: Callable[[EventStreamReport, EventStreamReport], bool]
            ) -> None:
                def look() -> bool:
                    found = {report.source: report for report in ingester.read_reports()}
                    return len(found) == 2 and holds(found["clicks"], found["views"])

                wait_until(look, what=what, evidence=ingester.logs)

            source.publish(encode(events[:200]))
            wait_for_both(
                "one is read without the other",
                lambda clicks, views: clicks.stored == 200 and views.problem is StreamProblem.STREAM_REFUSED,
            )

            server.make_stream("VIEWS", "views")
            bad = [b"{", b"{}", *encode([Click(1, 0, 1, 1, 1.0, "x"), Click(1, now * 2, 1, 1, 1.0, "x")])]

            async def put(broker: JetStreamContext) -> None:
                for body in bad * 50:
                    await broker.publish("views", body)

            server.ask(put)
            source.publish(encode(events[200:]))
            wait_for_both(
                "both are read",
                lambda clicks, views: (
                    clicks.stored == 400
                    and clicks.refused == {}
                    and clicks.problem is None
                    and views.stored == 0
                    and sum(views.refused.values()) == 200
                ),
            )
            check_features(ingester)


def test_a_late_event_is_refused_and_the_newest_time_never_goes_back(tmp_path: Path) -> None:
    now = int(time.time() * 1000)
    times = [now - 5 * MINUTE, now - 5 * MINUTE - 59_000, now - 7 * MINUTE, now - 4 * MINUTE, now - DAY]
    events = [Click(1, moment, number, 1, 1.0, "home") for number, moment in enumerate(times)]
    with a_nats(tmp_path / "nats") as server:
        server.make_stream("CLICKS", "clicks")
        source = ClicksOnNats(server)
        source.publish(encode(events))
        with an_ingester(tmp_path / "pod", a_click_plan(source.stream)) as ingester:
            report = ingester.wait_for(
                "all was read", lambda report: report.stored == 3 and report.pending == 0
            )

            assert report.refused == {RefusalReason.TOO_LATE: 2}
            assert report.last_refused is not None
            assert report.last_refused.position == 5
            assert "before the newest event; lateness is 60 s" in report.last_refused.message
            assert ingester.read_state().newest_ms == {"0": times[3]}
            ingester.kill()
            ingester.start()
            again = ingester.wait_for("it is back", lambda report: report.caught_up)
            assert (again.stored, again.refused) == (report.stored, report.refused)
            assert again.last_refused == report.last_refused


def test_an_empty_stream_is_read_to_its_end(source: StreamOfClicks, tmp_path: Path) -> None:
    with an_ingester(tmp_path / "pod", a_click_plan(source.stream)) as ingester:
        report = ingester.wait_for("the end is reached", lambda report: report.caught_up)

        assert (report.stored, report.pending, report.problem) == (0, 0, None)


def test_a_clock_that_is_ahead_makes_nobody_else_late_and_replicas_decide_alike(tmp_path: Path) -> None:
    with a_nats(tmp_path / "nats") as server:
        server.make_stream("CLICKS", "clicks")
        source = ClicksOnNats(server)
        now = int(time.time() * 1000)  # what takes long before it would make some of them late
        times = [now + 2 * HOUR, now + 59_000, *(now - 50_000 + number for number in range(50))]
        events = [Click(1, moment, number, 1, 1.0, "home") for number, moment in enumerate(times)]
        source.publish(encode(events))
        with an_ingester(tmp_path / "pod", a_click_plan(source.stream)) as ingester:
            report = ingester.wait_for(
                "all was read", lambda report: report.stored + sum(report.refused.values()) == len(events)
            )

            assert report.refused == {RefusalReason.IN_THE_FUTURE: 1}
            assert report.stored == len(events) - 1


def test_a_stream_that_was_made_anew_is_read_from_its_beginning(
    source: StreamOfClicks, tmp_path: Path
) -> None:
    first, second = some_clicks(3_000, seed=1), some_clicks(300, seed=2)
    source.publish(encode(first))
    with an_ingester(tmp_path / "pod", a_click_plan(source.stream)) as ingester:
        ingester.wait_for("all is stored", lambda report: report.stored == len(first))

        source.make_anew()
        source.publish(encode(second))
        ingester.wait_for("the new ones are stored", lambda report: report.stored == len(second))

        expected = expected_rows(second, source.stream)
        assert stored_rows(ingester, list(expected)) == expected


def test_a_broker_or_a_stream_that_is_not_there_is_named_and_nothing_ends(tmp_path: Path) -> None:
    server = RunningNats(tmp_path)
    source = ClicksOnNats(server)
    with an_ingester(tmp_path / "pod", a_click_plan(source.stream)) as ingester:
        report = ingester.wait_for("it says why", lambda report: report.problem is not None)
        assert report.problem is StreamProblem.STREAM_UNREACHABLE
        assert server.url in report.message
        assert not report.caught_up

        server.start()
        try:
            report = ingester.wait_for(
                "it says what is missing", lambda report: report.problem is StreamProblem.STREAM_REFUSED
            )
            assert "there is no stream CLICKS" in report.message

            server.make_stream("CLICKS", "clicks")
            events = some_clicks(10)
            source.publish(encode(events))
            report = ingester.wait_for("all is stored", lambda report: report.stored == len(events))
            assert report.problem is None
        finally:
            server.clean_up()


def test_a_full_store_is_said_and_what_is_in_it_stays(tmp_path: Path) -> None:
    with a_nats(tmp_path / "nats") as server:
        server.make_stream("CLICKS", "clicks")
        source = ClicksOnNats(server)
        now = int(time.time() * 1000)
        events = [Click(user, now - HOUR + user, user, 1, 1.0, "home") for user in range(40_000)]
        source.publish(encode(events))
        with an_ingester(tmp_path / "pod", a_click_plan(source.stream), store_bytes=1 << 20) as ingester:
            report = ingester.wait_for("it is full", lambda report: report.problem is not None)

            assert "spec.eventStorage" in report.message
            assert 0 < report.stored < len(events)
            assert stored_rows(ingester, [events[0].key]) == {events[0].key: events[0].row}
            assert ingester.read_state().stored == report.stored


def test_a_reader_that_is_killed_is_started_again_and_ends_with_its_container(tmp_path: Path) -> None:
    with a_nats(tmp_path / "nats") as server:
        server.make_stream("CLICKS", "clicks")
        source = ClicksOnNats(server)
        events = some_clicks(20)
        with an_ingester(tmp_path / "pod", a_click_plan(source.stream), watched=True) as ingester:
            ingester.wait_for("it reads", lambda report: report.caught_up)
            assert ingester.process is not None
            reader = _child_of(ingester.process.pid)
            os.kill(reader, signal.SIGKILL)
            source.publish(encode(events))
            ingester.wait_for("another one reads", lambda report: report.stored == len(events))
            assert _child_of(ingester.process.pid) != reader

            ingester.process.terminate()
            wait_until(lambda: not ingester.runs, what="it ends with its container")
            assert ingester.process.returncode == 0, ingester.logs()


def _child_of(pid: int) -> int:
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)
