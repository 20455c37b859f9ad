"""Events in the simulator: its allocator plans for them as the controllers do, whatever the interval."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from tidegate.allocation.snapshot import PoolInput
from tidegate.allocation.solver import Solver
from tidegate.api.compute_pool import AllocationPolicy
from tidegate.api.inference import Tier
from tidegate.planning.allocator.event_calendar import EventCalendar, read_calendar
from tidegate.simulation.allocator_policy import AllocatorPolicy
from tidegate.simulation.engine import PolicyView, run_policy
from tidegate.simulation.scenario import Scenario, SimulatedModel

CTR = SimulatedModel("ads/ctr", Tier.REALTIME, 100.0, floor=1, load_s=60.0, drain_s=10.0)
EMBED = SimulatedModel("ads/embed", Tier.OFFLINE, 1.0, ceiling=20, load_s=60.0, drain_s=10.0)
SALE: dict[str, Any] = {"name": "sale", "at": "2026-11-27T20:00:00Z", "duration": "2h", "factor": "3"}


def at(hour: int, minute: int = 0) -> datetime:
    return datetime(2026, 11, 27, hour, minute, tzinfo=UTC)


class RecordedTargets(AllocatorPolicy):
    """The allocator; `targets` has the replicas of each decision."""

    def __init__(self, where: Scenario) -> None:
        super().__init__("recorded", where, Solver(time.monotonic).solve)
        self.targets: list[int] = []

    def choose_replicas(self, view: PolicyView) -> dict[str, int]:
        chosen = dict(super().choose_replicas(view))
        self.targets.append(chosen[CTR.key])
        return chosen


def evening(
    begin: datetime,
    rates: Sequence[float],
    interval_s: float = 60.0,
    history: Sequence[float] = (),
    events: Sequence[dict[str, Any]] = (SALE,),
) -> Scenario:
    policy = AllocationPolicy.model_validate({"events": events})
    return Scenario(
        PoolInput("pool", 20),
        (CTR, EMBED),
        {CTR.key: rates, EMBED.key: [20.0] * len(rates)},
        interval_s,
        dwell_s=0.0,
        history={CTR.key: history} if history else {},
        begin=begin,
        calendar=read_calendar(policy, (60.0,), begin),
    )


def list_targets(where: Scenario) -> Sequence[int]:
    policy = RecordedTargets(where)
    run_policy(where, policy)
    return policy.targets


@pytest.mark.parametrize("interval_s", [60.0, 600.0, 900.0, 1800.0, 3600.0])
def test_an_event_is_planned_for_at_every_interval(interval_s: float) -> None:
    count = int(2 * 3600 // interval_s)
    targets = list_targets(evening(at(19), [200.0] * count, interval_s))
    assert targets[0] == 2
    assert set(targets[count // 2 :]) == {6}


@pytest.mark.parametrize("interval_s", [60.0, 1800.0])
def test_an_event_that_runs_when_the_demand_begins_has_the_rates_before_it(interval_s: float) -> None:
    before, during = int(24 * 3600 // interval_s), int(3600 // interval_s)
    history = [200.0] * before + [590.0] * during
    assert set(list_targets(evening(at(21), [100.0], interval_s, history))) == {6}


def test_without_rates_before_an_event_replicas_are_not_taken_away() -> None:
    # The demand and the record begin in the event, so nothing is known of before it.
    rates = [500.0, *[100.0] * 20]
    assert set(list_targets(evening(at(20, 30), rates))) == {5}
    assert list_targets(evening(at(20, 30), rates, events=()))[-1] == 1


def test_a_long_history_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[datetime] = []
    find_near = EventCalendar.find_near

    def count_search(calendar: EventCalendar, now: datetime) -> Any:
        searched.append(now)
        return find_near(calendar, now)

    where = evening(at(19), [200.0], history=[200.0] * (14 * 1440))
    monkeypatch.setattr(EventCalendar, "find_near", count_search)
    RecordedTargets(where)
    assert searched == [at(19)]
