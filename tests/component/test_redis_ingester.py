"""The ingester of a plan with a Redis: nothing lost and nothing counted twice, whoever ends, pauses or refuses."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from nats.js import JetStreamContext

from builders.desired import a_desired_state
from builders.events import Click, a_click_plan, clicks, encode, expected_rows, some_clicks
from builders.waiting import wait_until
from fixtures.ingester import RunningIngester, an_ingester
from fixtures.nats import RunningNats, a_nats
from fixtures.redis import RunningRedis, a_redis
from tidegate_dataplane.agent.event_reports import EventReports
from tidegate_dataplane.contract import FeaturePlan, ModelFormat, NatsEvents, OwnerKind, StreamProblem


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningNats]:
    """A broker with an empty stream."""
    with a_nats(tmp_path / "nats") as found:
        found.make_stream("CLICKS", "clicks")
        yield found


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RunningRedis]:
    """An empty Redis."""
    with a_redis(tmp_path / "redis") as found:
        yield found


@pytest.fixture
def plan(broker: RunningNats, redis: RunningRedis) -> FeaturePlan:
    """A plan over both."""
    nats = NatsEvents(url=broker.url, stream="CLICKS", subject="clicks")
    return redis.plan(a_click_plan(clicks(nats=nats)))


@pytest.fixture
def reports(redis: RunningRedis, tmp_path: Path, plan: FeaturePlan) -> Iterator[AgentsReports]:
    """What an agent of a pod sees."""
    reader = EventReports(tmp_path / "none", tmp_path / "none", allow_loopback=True)
    yield AgentsReports(plan, reader)
    reader.close_connection()


class AgentsReports:
    """What an agent says of the only stream."""

    def __init__(self, plan: FeaturePlan, reader: EventReports) -> None:
        self._order = a_desired_state(
            kind=OwnerKind.FEATURE_COMPUTE, format=ModelFormat.FEATURES, uri="", plan=plan
        )
        self._reader = reader

    def describe(self) -> tuple[StreamProblem | None, str]:
        """The problem and its message."""
        (report,) = self._reader.read_reports(self._order) or (None,)
        return (None, "nothing") if report is None else (report.problem, report.message)

    def wait_for(self, problem: StreamProblem | None, message: str) -> str:
        """Return the first message with that problem in which the pattern `message` is found."""

        def found() -> re.Match[str] | None:
            known, said = self.describe()
            return re.search(message, said) if known is problem else None

        what = f"the agent says {problem}: {message}"
        return wait_until(found, what=what, evidence=self.describe).string


def publish(broker: RunningNats, events: Sequence[Click]) -> None:
    async def put(stream: JetStreamContext) -> None:
        for message in encode(events):
            await stream.publish_async("clicks", message)
        await stream.publish_async_completed()

    broker.ask(put)


def check_stored(ingester: RunningIngester, events: Sequence[Click]) -> None:
    """Wait until all events are stored, and compare every row."""
    ingester.wait_for("all is stored", lambda report: report.stored >= len(events))
    ingester.wait_for("the end is reached", lambda report: report.pending == 0 and report.problem is None)
    expected = expected_rows(events, ingester.plan.streams[0])
    assert dict(zip(expected, ingester.read_rows(list(expected)), strict=True)) == expected
    assert ingester.read_state().stored == len(events)


@pytest.mark.no_rerun("a lost or doubled event")
def test_no_event_is_lost_or_stored_twice_if_the_ingester_or_redis_is_killed(
    broker: RunningNats, redis: RunningRedis, plan: FeaturePlan, tmp_path: Path
) -> None:
    events = some_clicks(12_000)
    publish(broker, events[:6_000])
    with an_ingester(tmp_path / "pod", plan) as ingester:
        for number in range(2):
            ingester.wait_for("some more are stored", lambda report: report.stored > 0)
            ingester.kill()
            ingester.start()
            publish(broker, events[6_000 + number * 1_500 : 7_500 + number * 1_500])
        for number in range(2):
            redis.kill()
            publish(broker, events[9_000 + number * 1_500 : 9_700 + number * 1_500])
            redis.start()
            publish(broker, events[9_700 + number * 1_500 : 10_500 + number * 1_500])

        check_stored(ingester, events)


@pytest.mark.no_rerun("a doubled event")
def test_two_ingesters_at_once_store_no_event_twice(
    broker: RunningNats, plan: FeaturePlan, tmp_path: Path
) -> None:
    events = some_clicks(8_000)
    with (
        an_ingester(tmp_path / "first", plan) as first,
        an_ingester(tmp_path / "second", plan) as second,
    ):
        wait_until(
            lambda: all("stream_opened" in each.logs() for each in (first, second)),
            what="both read the stream",
            evidence=lambda: first.logs() + second.logs(),
        )
        for start in range(0, 8_000, 400):
            publish(broker, events[start : start + 400])

        check_stored(first, events)
        wait_until(
            lambda: "written by another process" in first.logs() + second.logs(),
            what="one has noticed the other",
        )
        assert second.process is not None
        assert second.process.poll() is None


def test_one_that_was_paused_and_wakes_up_writes_nothing_that_was_written(
    broker: RunningNats, plan: FeaturePlan, tmp_path: Path
) -> None:
    events = some_clicks(4_000)
    publish(broker, events[:1_000])
    with an_ingester(tmp_path / "first", plan) as first:
        first.wait_for("some are stored", lambda report: report.stored == 1_000)
        assert first.process is not None
        publish(broker, events[1_000:2_000])
        os.kill(first.process.pid, signal.SIGSTOP)
        try:
            with an_ingester(tmp_path / "second", plan) as second:
                publish(broker, events[2_000:3_000])
                second.wait_for("it goes on", lambda report: report.stored == 3_000)
                os.kill(first.process.pid, signal.SIGCONT)
                publish(broker, events[3_000:])
                check_stored(second, events)
        finally:
            os.kill(first.process.pid, signal.SIGCONT)
        check_stored(first, events)


def test_events_that_redis_has_lost_are_stored_again_although_no_new_ones_come(
    broker: RunningNats, redis: RunningRedis, plan: FeaturePlan, tmp_path: Path
) -> None:
    events = some_clicks(1_000)
    publish(broker, events[:600])
    with an_ingester(tmp_path / "pod", plan) as ingester:
        ingester.wait_for("some are stored", lambda report: report.stored == 600)
        saved = redis.save_keys()
        publish(broker, events[600:])
        check_stored(ingester, events)

        # It looks several times a second: meanwhile it would store again what was lost.
        assert ingester.process is not None
        os.kill(ingester.process.pid, signal.SIGSTOP)
        try:
            redis.restore_keys(saved)
            assert ingester.read_state().stored == 600
        finally:
            os.kill(ingester.process.pid, signal.SIGCONT)
        wait_until(lambda: "events_lost" in ingester.logs(), what="the loss is noticed")
        check_stored(ingester, events)


def test_a_full_redis_is_named_and_what_it_lacked_is_stored_once_there_is_room(
    broker: RunningNats, redis: RunningRedis, plan: FeaturePlan, reports: AgentsReports, tmp_path: Path
) -> None:
    events = some_clicks(2_000)
    publish(broker, events[:1_000])
    with an_ingester(tmp_path / "pod", plan) as ingester:
        ingester.wait_for("some are stored", lambda report: report.stored == 1_000)
        redis.ask("CONFIG", "SET", "maxmemory", "1")
        publish(broker, events[1_000:])

        reports.wait_for(StreamProblem.STREAM_REFUSED, "its maxmemory of 1 bytes is used: raise it")
        wait_until(lambda: "OOM command not allowed" in ingester.logs(), what="the ingester is refused")
        redis.ask("CONFIG", "SET", "maxmemory", "0")
        check_stored(ingester, events)
        reports.wait_for(None, "^$")


def test_a_redis_that_refuses_writes_for_a_while_gets_them_later(
    broker: RunningNats, redis: RunningRedis, plan: FeaturePlan, tmp_path: Path
) -> None:
    events = some_clicks(1_000)
    with an_ingester(tmp_path / "pod", plan) as ingester:
        ingester.wait_for("the end is reached", lambda report: report.caught_up)
        redis.ask("CONFIG", "SET", "min-replicas-to-write", "1")
        publish(broker, events)
        wait_until(lambda: "NOREPLICAS" in ingester.logs(), what="it is refused", evidence=ingester.logs)
        redis.ask("CONFIG", "SET", "min-replicas-to-write", "0")

        check_stored(ingester, events)


def test_a_redis_that_does_not_answer_is_named_and_later_has_everything(
    broker: RunningNats, redis: RunningRedis, plan: FeaturePlan, reports: AgentsReports, tmp_path: Path
) -> None:
    events = some_clicks(1_000)
    redis.kill()
    with an_ingester(tmp_path / "pod", plan) as ingester:
        wait_until(
            lambda: "store_fails" in ingester.logs(), what="it waits for Redis", evidence=ingester.logs
        )
        away = f"^the event store, Redis at {re.escape(redis.address)} cannot be reached:"
        reports.wait_for(StreamProblem.STREAM_UNREACHABLE, away)
        redis.start()
        publish(broker, events[:500])
        ingester.wait_for("some are stored", lambda report: report.stored == 500)
        with redis.stopped():
            publish(broker, events[500:])
            wait_until(lambda: "no answer within 5 s" in ingester.logs(), what="it waits no longer")

        check_stored(ingester, events)
        reports.wait_for(None, "^$")


def test_a_damaged_state_is_named_and_once_its_key_is_deleted_the_stream_is_read_again(
    broker: RunningNats, redis: RunningRedis, plan: FeaturePlan, reports: AgentsReports, tmp_path: Path
) -> None:
    events = some_clicks(500)
    publish(broker, events)
    with an_ingester(tmp_path / "pod", plan) as ingester:
        ingester.wait_for("all is stored", lambda report: report.stored == 500)
        ingester.kill()
        (state,) = (name for name in redis.list_keys() if name.endswith(b"/state"))
        redis.ask("SET", state, "{")
        ingester.start()
        said = reports.wait_for(StreamProblem.STREAM_REFUSED, "the state of stream 'clicks' is damaged")
        head = state.removesuffix(b"state") + b"head"
        assert f"delete the key {head.decode()}" in said
        redis.ask("DEL", head)

        check_stored(ingester, events)


def test_a_report_that_the_ingester_no_longer_replaces_grows_old(
    broker: RunningNats, plan: FeaturePlan, reports: AgentsReports, tmp_path: Path
) -> None:
    with an_ingester(tmp_path / "pod", plan) as ingester:
        ingester.wait_for("the end is reached", lambda report: report.caught_up)
        reports.wait_for(None, "^$")
        ingester.kill()

        reports.wait_for(None, r"^the ingester has reported nothing for (5|\d0) s: see its log$")
