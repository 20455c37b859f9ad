"""The allocator's ticks around an event: replicas start before it, its demand is not multiplied, a restart changes nothing."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
from prometheus_client import CollectorRegistry

from builders.allocator import a_member, nodes, observed
from builders.compute_pool import a_compute_pool
from builders.fake_clock import FakeClock
from tidegate.allocation.assembly import SolveLimits
from tidegate.allocation.assignment import Assignment
from tidegate.allocation.snapshot import AllocationSnapshot
from tidegate.allocation.solver import Solver
from tidegate.api.allocation_decision import DecisionTrigger
from tidegate.api.inference import Tier
from tidegate.api.meta import ObjectKey
from tidegate.exporters.allocator import AllocatorMetrics
from tidegate.exporters.solver_inputs import SolverInputs
from tidegate.planning.allocator.event_calendar import read_calendar
from tidegate.planning.allocator.forecasts import RateHistory
from tidegate.planning.allocator.signals import (
    InferenceMetrics,
    MetricsScrape,
    RateEstimates,
    Signals,
    estimate_signals,
)
from tidegate_controllers.allocator import events
from tidegate_controllers.allocator.events import AllocationEvents
from tidegate_controllers.allocator.forecasts import AllocationForecasts
from tidegate_controllers.allocator.observer import PoolObserver
from tidegate_controllers.allocator.solver import PoolSolver

CTR = ObjectKey("ads", "ctr")
STEP = timedelta(seconds=30)
SALE = {"name": "sale-20h", "schedule": "0 20 * * *", "duration": "1h", "factor": "3"}


class EveningClock(FakeClock):
    def __init__(self, hour: int, minute: int) -> None:
        super().__init__()
        self._now = datetime(2026, 6, 1, hour, minute, tzinfo=UTC)


@dataclass
class Calls:
    """A Prometheus that has the rate before the event, or a problem."""

    clock: FakeClock
    rate: float = 200.0
    problem: str = ""
    hangs: bool = False
    asked: list[tuple[frozenset[ObjectKey], datetime, timedelta]] = field(default_factory=list)

    async def read_history(
        self, keys: frozenset[ObjectKey], now: datetime, length: timedelta = timedelta(days=28)
    ) -> RateHistory:
        self.asked.append((keys, now, length))
        if self.hangs:
            await asyncio.Event().wait()
        rates = {} if self.problem else {key: [self.rate, self.rate] for key in keys}
        return RateHistory(now - length, rates, self.problem)


class TickedPool:
    """A pool of twenty slices, where offline work takes what ads/ctr leaves; each has what the last tick decided."""

    def __init__(self, clock: FakeClock, history: Calls | None = None, holds: int = 2) -> None:
        self.clock, self.holds, self.reason = clock, {"ctr": holds, "batch": 20 - holds}, ""
        self.policy = {"mode": "Auto", "dwell": "0s", "events": [SALE]}
        self.estimates: RateEstimates = {}
        self.registry = CollectorRegistry()
        self.solver = PoolSolver(
            solver=self,
            demand=self,
            forecasts=AllocationForecasts(None, clock),
            events=AllocationEvents(history, clock),
            inputs=SolverInputs(),
            metrics=AllocatorMetrics(self.registry),
            clock=clock,
        )

    async def solve(
        self, snapshot: AllocationSnapshot, limits: SolveLimits | None = None, *, outwait: bool = True
    ) -> Assignment:
        return Solver(lambda: 0.0).solve(snapshot)

    async def read(self) -> Signals:
        raise NotImplementedError

    async def tick(self, rate: float | None) -> int:
        """Read a rate, solve, carry out the decision, and wait for the next tick; return the replicas."""
        now = self.clock.now()
        metrics = {} if rate is None else {CTR: InferenceMetrics(rate)}
        found, self.estimates = estimate_signals(
            self.estimates, MetricsScrape("gateways", metrics, STEP), now
        )
        members = (
            a_member(held=self.holds["ctr"], most=20, capacity={"requestsPerSecond": "100"}),
            a_member("batch", self.holds["batch"], least=0, most=20, tier=Tier.OFFLINE),
        )
        seen = observed(*members, slices=(20,), policy=self.policy, now=now, signals=found)
        seen = replace(seen, calendar=read_calendar(seen.pool.spec.policy, (20.0,), now))
        solve, _ = await self.solver.solve_pool(seen, DecisionTrigger.INTERVAL)
        self.holds |= {
            assigned.inference.removeprefix("ads/"): assigned.replicas
            for assigned in solve.assignment.replicas
        }
        reasons = (move.reason for move in solve.assignment.moves if move.inference == "ads/ctr")
        self.reason = next(reasons, self.reason)
        await self.clock.advance(STEP.total_seconds())
        return self.holds["ctr"]

    async def tick_until(self, hour: int, minute: int, rate: float) -> list[int]:
        end = self.clock.now().replace(hour=hour, minute=minute, second=0)
        return [await self.tick(rate) for _ in range((end - self.clock.now()) // STEP)]


async def test_replicas_are_up_before_the_event_and_not_multiplied_in_it() -> None:
    pool = TickedPool(EveningClock(19, 30))
    assert set(await pool.tick_until(19, 55, 200.0)) == {2}
    assert set(await pool.tick_until(20, 0, 200.0)) == {6}
    assert pool.reason.startswith(
        "realtime ads/ctr +4 in cpu-a: demand 600/s expected for sale-20h: 3 x 200/s exceeds 200/s"
    )
    labels = {"inference": "ads/ctr", "pool": "cpu-a"}
    assert pool.registry.get_sample_value("tidegate_allocator_forecast_rate", labels) == 600.0
    # The sale is as large as expected: six replicas serve it, and not three times as many.
    assert set(await pool.tick_until(20, 30, 590.0)) == {6}
    # It may be larger, and a pause does not take away what is expected.
    assert (await pool.tick_until(20, 40, 700.0))[-1] == 7
    assert (await pool.tick_until(20, 59, 150.0))[-1] == 6
    assert (await pool.tick_until(21, 10, 190.0))[-1] == 2
    assert pool.registry.get_sample_value("tidegate_allocator_forecast_rate", labels) is None


async def test_without_the_event_the_same_evening_starts_nothing_beforehand() -> None:
    pool = TickedPool(EveningClock(19, 30))
    pool.policy = {"mode": "Auto", "dwell": "0s"}
    assert set(await pool.tick_until(20, 0, 200.0)) == {2}
    assert (await pool.tick_until(20, 10, 590.0))[-1] == 6


async def test_controllers_that_restart_in_the_event_read_the_demand_before_it() -> None:
    clock = EveningClock(20, 20)
    history = Calls(clock)
    pool = TickedPool(clock, history, holds=6)
    # The first tick has it already: fewer replicas for one tick would drop requests.
    assert set(await pool.tick_until(20, 59, 100.0)) == {6}
    before = datetime(2026, 6, 1, 19, 55, tzinfo=UTC)
    assert history.asked == [(frozenset({CTR}), before, timedelta(minutes=10))]


@pytest.mark.parametrize("problem", [None, "no answer"])
async def test_without_history_controllers_that_restart_in_the_event_keep_what_is_there(
    problem: str | None,
) -> None:
    clock = EveningClock(20, 20)
    history = None if problem is None else Calls(clock, problem=problem)
    pool = TickedPool(clock, history, holds=5)
    with structlog.testing.capture_logs() as logs:
        assert set(await pool.tick_until(20, 40, 100.0)) == {5}
        # The present demand still counts where it is higher, and is not multiplied.
        assert (await pool.tick_until(20, 59, 290.0))[-1] == 5
        assert (await pool.tick_until(21, 10, 290.0))[-1] == 3
    assert [log["problem"] for log in logs] == ([] if problem is None else [problem] * 4)


async def test_a_prometheus_that_hangs_delays_one_tick_and_is_read_again_after_ten_minutes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(events, "_TIMEOUT_S", 0.01)
    clock = EveningClock(20, 20)
    history = Calls(clock, hangs=True)
    pool = TickedPool(clock, history, holds=5)
    assert set(await pool.tick_until(20, 30, 100.0)) == {5}
    assert len(history.asked) == 1
    history.hangs = False
    assert (await pool.tick_until(20, 31, 100.0))[-1] == 6
    assert len(history.asked) == 2


async def test_an_inference_without_signals_is_not_raised() -> None:
    pool = TickedPool(EveningClock(19, 50))
    assert {await pool.tick(None) for _ in range(40)} == {2}


async def test_a_pool_without_events_is_forgotten() -> None:
    pool = TickedPool(EveningClock(19, 30))
    await pool.tick_until(19, 57, 200.0)
    planned, pool.policy = pool.policy, {"mode": "Auto"}
    await pool.tick_until(20, 5, 600.0)
    pool.policy = planned
    pool.holds = {"ctr": 9, "batch": 11}
    # The event came back while its demand was there. The rates before it are forgotten, so it keeps what it has.
    assert set(await pool.tick_until(20, 20, 100.0)) == {9}


async def test_an_event_that_never_ends_does_not_delay_the_read_for_another() -> None:
    clock = EveningClock(19, 30)
    history = Calls(clock)
    pool = TickedPool(clock, history, holds=6)
    always = {"name": "always", "schedule": "* * * * *", "duration": "1h", "factor": "2"}
    pool.policy = {**pool.policy, "events": [always]}
    assert set(await pool.tick_until(19, 31, 100.0)) == {6}
    assert not history.asked
    pool.policy = {**pool.policy, "events": [{**SALE, "schedule": "0 19 * * *"}]}
    await pool.tick(100.0)
    assert len(history.asked) == 1


async def test_a_shorter_load_time_does_not_put_an_event_off_that_is_near() -> None:
    clock, member, loads = EveningClock(19, 51), a_member(), [600.0]
    caches: Any = SimpleNamespace(
        get_slices=lambda _: nodes(8),
        list_claims=lambda _: [replace(member.claim, load_s=loads[-1])],
        get=lambda _: member.inference,
        find_pool_workload=lambda *_: None,
        list_all=tuple,
        store=SimpleNamespace(by_label=lambda *_: ()),
        list_live=lambda _: (),
        get_plan=lambda _: None,
    )
    observer = PoolObserver(
        pools=caches, inferences=caches, decisions=caches, slices_cache=caches, occupancy=caches, placements=caches,
        spares=caches, overrides=caches, clock=clock,
    )  # fmt: skip
    pool = a_compute_pool(policy={"events": [SALE]})

    def count_near() -> int:
        return len(observer.observe_pool(pool).calendar.find_near(clock.now()))

    assert count_near() == 1
    loads.append(20.0)
    assert count_near() == 1
    observer.forget_pool(pool.key)
    assert count_near() == 0
    # The lead is that of now again, once no event is near.
    loads.append(600.0)
    assert count_near() == 1
    await clock.advance(timedelta(minutes=70).total_seconds())
    loads.append(20.0)
    assert count_near() == 0
    assert observer.observe_pool(pool).calendar.lead == timedelta(minutes=5)
