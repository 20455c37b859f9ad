"""What near-line work asks for, from what its pods say of their broker's counts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta

import pytest

from builders.pods import a_pod, a_report
from tidegate.api.meta import ObjectKey
from tidegate.planning.allocator.signals import MetricsScrape
from tidegate.planning.allocator.stream_demand import (
    CATCH_UP_S,
    STALE_AFTER_S,
    BrokerCount,
    find_newest_count,
    to_metrics,
    update_count,
)
from tidegate.planning.pods import PodView
from tidegate.telemetry.signals import MergedSignalReader, SignalReader
from tidegate.telemetry.stream_traffic import NO_COUNTS_MESSAGE, StreamTraffic
from tidegate_dataplane.contract import AgentReport, StreamCount, StreamReport

RANK = ObjectKey("ads", "rank")
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def a_count(unsettled: int, arrived: int, age_s: float = 0.0) -> StreamCount:
    return StreamCount(unsettled=unsettled, arrived=arrived, age_s=age_s)


def saying(count: StreamCount | None) -> AgentReport:
    return a_report(1, stream=StreamReport(count=count))


def test_what_comes_and_what_waits_is_asked_for() -> None:
    first = update_count(None, a_count(0, 1_000), 100.0)
    assert to_metrics(first) is None  # a count alone is no rate
    second = update_count(first, a_count(300, 1_500, age_s=2.0), 112.0)
    assert second == BrokerCount(110.0, 300, 1_500, 50.0)
    found = to_metrics(second)
    assert found is not None
    assert (found.offered_per_s, found.backlog) == (50.0 + 300 / CATCH_UP_S, 300.0)


def test_the_youngest_count_is_taken_and_one_that_is_known_already_says_nothing_new() -> None:
    reports = [saying(None), saying(a_count(1, 10, 1.5)), a_report(1), saying(a_count(2, 12, 0.5))]
    assert find_newest_count(reports) == a_count(2, 12, 0.5)
    assert find_newest_count([a_report(1)]) is None
    # A pod that has lost its broker goes on saying what it knew.
    assert find_newest_count([saying(a_count(1, 10, STALE_AFTER_S + 1))]) is None
    before = BrokerCount(100.0, 5, 50, 7.0)
    assert update_count(before, a_count(5, 50, 2.0), 102.1) is before


def test_a_consumer_that_was_recreated_has_no_rate_yet() -> None:
    after = update_count(BrokerCount(100.0, 5, 50_000, 7.0), a_count(0, 3), 110.0)
    assert (after.per_s, to_metrics(after)) == (None, None)


class Agents:
    """One pod of `rank`, whose agent says what a test says."""

    def __init__(self) -> None:
        self.says: StreamCount | None = None
        self.pods: Mapping[ObjectKey, tuple[PodView, ...]] = {RANK: (a_pod("rank-0", source="s"),)}

    async def get_reports(self, pods: Iterable[PodView], *, partly: bool) -> Mapping[str, AgentReport]:
        assert partly
        return {pod.uid: saying(self.says) for pod in pods if self.says is not None}


@pytest.fixture
def agents() -> Agents:
    return Agents()


def test_rates_outlive_the_pod_that_counted_and_silence_is_not_zero(agents: Agents) -> None:
    clock = [100.0]
    traffic = StreamTraffic(lambda: agents.pods, agents, lambda: clock[0])

    def looked(after_s: float, count: StreamCount | None) -> MetricsScrape:
        clock[0] += after_s
        agents.says = count
        return asyncio.run(traffic.scrape_signals())

    assert looked(0.0, a_count(0, 100)).by_key == {}
    found = looked(10.0, a_count(60, 200))
    assert (found.by_key[RANK].offered_per_s, found.window) == (11.0, timedelta(seconds=10))
    assert looked(10.0, None).by_key == {}
    # Another pod goes on from what was counted before it came.
    agents.pods = {RANK: (a_pod("rank-1", source="s"),)}
    assert looked(30.0, a_count(0, 600)).by_key[RANK].offered_per_s == 10.0
    # An Inference that is gone is forgotten: another one of its name starts over.
    agents.pods = {}
    looked(1.0, None)
    agents.pods = {RANK: (a_pod("rank-2", source="s"),)}
    assert looked(10.0, a_count(0, 900)).by_key == {}


class Source:
    def __init__(self, look: MetricsScrape) -> None:
        self._look = look

    async def scrape_signals(self) -> MetricsScrape:
        return self._look


def test_a_stream_whose_pods_are_silent_is_stale_and_nobody_else_is() -> None:
    async def scene() -> None:
        clock, agents = [100.0], Agents()
        streams = SignalReader(StreamTraffic(lambda: agents.pods, agents, lambda: clock[0]), lambda: NOW)
        requests = SignalReader(Source(MetricsScrape("the gateways", {}, timedelta(seconds=10))), lambda: NOW)
        watch = MergedSignalReader(requests, streams)
        for arrived in (100, 200):
            clock[0] += 10.0
            agents.says = a_count(0, arrived)
            signals = await watch.read()
        assert (signals.by_key[RANK].offered_per_s, signals.all_fresh) == (10.0, True)
        agents.says = None
        signals = await watch.read()
        assert (signals.problem, signals.all_fresh) == ("", False)
        assert signals.by_key[RANK].held_reason == NO_COUNTS_MESSAGE
        assert signals.by_key[RANK].offered_per_s == 10.0

    asyncio.run(scene())
