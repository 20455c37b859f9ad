"""The simulator: replicas load, serve and drain; what policies achieve is counted exactly."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.allocation.assembly import SolveLimits
from tidegate.allocation.assignment import Assignment
from tidegate.allocation.errors import InvalidInputError
from tidegate.allocation.snapshot import AllocationSnapshot, PoolInput, TierRule
from tidegate.allocation.solver import Solver
from tidegate.api.inference import Tier
from tidegate.simulation.baselines import StaticSplit, StrictPriority, UtilizationScaling, fill_equally
from tidegate.simulation.engine import PolicyView, run_policy
from tidegate.simulation.fleet import ReplicaSet, SimulatedFleet
from tidegate.simulation.outcome import SimulationOutcome
from tidegate.simulation.policies import DESCRIPTIONS, ORACLE, make_policy
from tidegate.simulation.scenario import Scenario, SimulatedModel
from tidegate.simulation.trace import parse_trace

CTR = SimulatedModel("ads/ctr", Tier.REALTIME, 100.0, value=2.0, floor=1, load_s=90.0, drain_s=30.0)
LOG = SimulatedModel("ads/log", Tier.NEARLINE, 50.0, load_s=60.0, drain_s=10.0)
EMBED = SimulatedModel("ads/embed", Tier.OFFLINE, 1.0, value=5.0, ceiling=8, load_s=60.0, drain_s=10.0)


def scenario(
    slices: int,
    demand: Mapping[SimulatedModel, Sequence[float]],
    history: Mapping[SimulatedModel, Sequence[float]] | None = None,
    interval_s: float = 60.0,
) -> Scenario:
    return Scenario(
        PoolInput("pool", slices),
        tuple(demand),
        {model.key: rates for model, rates in demand.items()},
        interval_s,
        history={model.key: rates for model, rates in (history or {}).items()},
    )


def run(where: Scenario, name: str) -> SimulationOutcome:
    run_in, policy = make_policy(name, where, Solver(time.monotonic).solve, 0.9)
    return run_policy(run_in, policy)


def test_replica_serves_after_it_has_loaded_and_frees_its_slices_after_it_has_drained() -> None:
    replicas = ReplicaSet(CTR, 2)
    replicas.start_replicas(3, 0.0)
    assert (replicas.ready, replicas.active_replicas, replicas.occupied_slices) == (2, 5, 5)
    assert list(replicas.iter_phases(60.0, 120.0)) == [(30.0, 2), (30.0, 5)]
    replicas.advance_to(90.0)
    assert replicas.ready == 5
    replicas.stop_replicas(4, 100.0)
    assert (replicas.ready, replicas.occupied_slices) == (1, 5)
    replicas.advance_to(130.0)
    assert replicas.occupied_slices == 1


def test_replicas_serve_together_what_was_measured_of_them_together() -> None:
    slowed = replace(CTR, together=((4, 280.0),))
    four = ReplicaSet(slowed, 4)
    assert [model.count_needed(330.0) for model in (CTR, slowed)] == [4, 5]
    assert slowed.capacity_curve.rate_at(four.ready) == 280.0
    lost = {}
    for model in (CTR, slowed):
        where = scenario(4, {replace(model, floor=4): [400.0] * 3})
        lost[model] = run(where, "priority").unserved
    assert lost[CTR] == 0
    assert lost[slowed] == pytest.approx(120.0 * 180)


def test_replicas_that_load_are_stopped_first() -> None:
    replicas = ReplicaSet(CTR, 2)
    replicas.start_replicas(3, 0.0)
    replicas.stop_replicas(4, 10.0)
    assert (replicas.ready, replicas.phase_counts.loading, replicas.phase_counts.draining) == (1, 0, 4)


def test_starts_wait_for_free_slices() -> None:
    fleet = SimulatedFleet(scenario(10, {CTR: [1.0], EMBED: [1.0]}), {CTR.key: 2, EMBED.key: 8})
    assert fleet.apply_targets({CTR.key: 6, EMBED.key: 4}, 0.0) == 4
    assert fleet.sets[CTR.key].active_replicas == 2
    fleet.advance_to(10.0)
    assert fleet.apply_targets({CTR.key: 6, EMBED.key: 4}, 10.0) == 4
    assert (fleet.sets[CTR.key].active_replicas, fleet.free_slices) == (6, 0)


def test_value_and_missed_minutes_are_exact() -> None:
    # The rate doubles with the third interval. The policy sees that at the fourth, and new replicas take 90 s more.
    outcome = run(scenario(10, {CTR: [200.0, 200.0, 400.0, 400.0, 400.0, 400.0]}), "priority")
    assert outcome.missed_minutes == pytest.approx(1 + 1.5)
    assert outcome.unserved == pytest.approx(200 * 150)
    assert outcome.total_value == pytest.approx(2 * (2 * 60 * 200 + 4 * 60 * 400 - 200 * 150))
    assert outcome.moved_slices == 2
    assert outcome.idle_slice_s == pytest.approx(2 * 90)
    assert outcome.slice_s[Tier.REALTIME] == pytest.approx(60 * (3 * 2 + 3 * 4))


def test_stream_serves_later_what_it_cannot_serve_now() -> None:
    outcome = run(scenario(1, {LOG: [80.0, 0.0, 0.0]}), "priority")
    assert outcome.backlog == 0
    assert outcome.value[Tier.NEARLINE] == pytest.approx(80 * 60)
    assert outcome.missed_minutes == 0


def test_backlog_is_demand_that_is_caught_up_with_in_a_minute() -> None:
    view = PolicyView(0, 0.0, PoolInput("pool", 4), {LOG.key: 40.0}, {}, {}, {}, {LOG.key: 600.0})
    assert view.demand_rates == {LOG.key: 50.0}


def test_peak_of_a_stream_counts_for_a_minute_and_that_of_requests_for_the_dwell() -> None:
    # One replica of each serves the rate before and after the peak of one interval.
    ctr, log, embed = (replace(model, load_s=0.0, drain_s=0.0) for model in (CTR, LOG, EMBED))
    peak = [0.5, 0.5, 1.5, *[0.5] * 40]
    demand = {ctr: [100 * share for share in peak], log: [50 * share for share in peak]}
    # Offline work has a use for each slice that they do not need.
    where = scenario(6, {**demand, embed: [8.0] * len(peak)}, interval_s=10.0)
    replicas = {tier: [round(item.slices[tier]) for item in run(where, "present").intervals] for tier in Tier}
    # Seen at the interval after it; 60 s for the stream, 300 s for requests.
    assert [replicas[Tier.NEARLINE].count(2), replicas[Tier.REALTIME].count(2)] == [6, 30]


@pytest.mark.parametrize("name", DESCRIPTIONS)
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_no_policy_has_more_slices_than_there_are_or_serves_more_than_is_asked(name: str, seed: int) -> None:
    random = Random(seed)
    demand = {
        model: [random.choice((0.0, random.uniform(0, 1500))) for _ in range(12)] for model in (CTR, LOG)
    } | {EMBED: [8.0] * 12}
    where = scenario(random.randint(3, 20), demand)
    outcome = run(where, name)
    assert len(outcome.intervals) == 12
    for interval in outcome.intervals:
        assert sum(interval.slices.values()) <= where.pool.slices + 1e-9
    asked = {model.tier: 60 * sum(demand[model]) for model in (CTR, LOG)}
    assert outcome.value[Tier.REALTIME] <= 2 * asked[Tier.REALTIME] + 1e-3
    assert outcome.value[Tier.REALTIME] == pytest.approx(2 * (asked[Tier.REALTIME] - outcome.unserved))
    assert outcome.value[Tier.NEARLINE] + outcome.backlog == pytest.approx(asked[Tier.NEARLINE])
    assert (outcome.missed_minutes > 0) == (outcome.unserved > 1e-6)


@pytest.mark.parametrize("name", ["forecast", "hpa", "over-quota"])
def test_equal_inputs_give_equal_days(name: str) -> None:
    random = Random(3)
    where = scenario(8, {CTR: [random.uniform(0, 700) for _ in range(30)], EMBED: [8.0] * 30})
    assert run(where, name) == run(where, name)


def evening(days: int) -> list[float]:
    return [150 + 600 * math.exp(-(((minute % 1440 / 60 - 20) / 0.7) ** 2)) for minute in range(days * 1440)]


def test_forecast_starts_before_the_peak() -> None:
    rates = evening(4)
    where = scenario(
        10,
        {CTR: rates[3 * 1440 + 1100 : 3 * 1440 + 1300], EMBED: [8.0] * 200},
        {CTR: rates[: 3 * 1440 + 1100]},
    )
    outcomes = {name: run(where, name) for name in ("forecast", "present", ORACLE)}
    assert outcomes["present"].missed_minutes > 10
    assert outcomes["forecast"].missed_minutes <= 0.5
    assert outcomes[ORACLE].missed_minutes == 0
    assert outcomes["forecast"].total_value > outcomes["present"].total_value
    assert outcomes[ORACLE].total_value >= outcomes["forecast"].total_value


def test_the_simulated_allocator_plans_with_the_times_of_each_inference() -> None:
    planned: dict[str, tuple[float, float]] = {}
    solver = Solver(time.monotonic)

    def solve(snapshot: AllocationSnapshot, limits: SolveLimits) -> Assignment:
        for model in snapshot.inferences:
            [placement] = model.placements
            planned[model.key] = placement.load_s, placement.drain_s
        return solver.solve(snapshot, limits)

    run_in, policy = make_policy("present", scenario(10, {CTR: [1.0], EMBED: [1.0]}), solve, 0.9)
    run_policy(run_in, policy)
    assert planned == {CTR.key: (90.0, 30.0), EMBED.key: (60.0, 10.0)}


@pytest.mark.parametrize(("zone", "missed_minutes"), [("Europe/Berlin", 0.0), ("UTC", 2.5)])
def test_a_simulated_forecast_follows_the_hours_of_the_pool(zone: str, missed_minutes: float) -> None:
    """The demand rises at 18:00 in Berlin each day, an hour earlier in UTC on the day on which clocks are changed.

    A rise that is not forecast is seen after an interval of a minute, and replicas load for 90 s.
    """
    begin, berlin = datetime(2026, 3, 29, 15, tzinfo=UTC), ZoneInfo("Europe/Berlin")

    def rate(number: int) -> float:
        return 500.0 if (begin + timedelta(minutes=number)).astimezone(berlin).hour == 18 else 100.0

    rates = [rate(number) for number in range(90)]
    history = [rate(number) for number in range(-4 * 1440, 0)]
    where = replace(scenario(10, {CTR: rates}, {CTR: history}), begin=begin, zone=ZoneInfo(zone))
    assert run(where, "forecast").missed_minutes == missed_minutes


def test_forecast_without_a_history_is_the_present_rate() -> None:
    where = scenario(8, {CTR: [100.0, 300.0, 500.0, 200.0] * 3, EMBED: [8.0] * 12})
    forecast, present = run(where, "forecast"), run(where, "present")
    assert forecast.value == present.value
    assert forecast.moved_slices == present.moved_slices


def test_fixed_shares_are_those_of_the_peak_of_the_history() -> None:
    where = scenario(10, {CTR: [100.0] * 3, EMBED: [8.0] * 3}, {CTR: [250.0, 420.0]})
    view = _view(where, {CTR: 100.0})
    assert StaticSplit(where).choose_replicas(view) == {CTR.key: 5, EMBED.key: 5}


def test_autoscaler_keeps_within_its_tolerance_and_waits_before_it_scales_down() -> None:
    where = scenario(20, {CTR: [100.0] * 3}, {CTR: [1000.0]})
    policy = UtilizationScaling(where)
    near, busy, idle = (_view(where, {CTR: rate}, ready=10, now_s=60.0) for rate in (750.0, 980.0, 100.0))
    assert policy.choose_replicas(near) == {CTR.key: 10}
    assert policy.choose_replicas(busy) == {CTR.key: 14}
    assert policy.choose_replicas(idle) == {CTR.key: 14}
    later = _view(where, {CTR: 100.0}, ready=10, now_s=400.0)
    assert policy.choose_replicas(later) == {CTR.key: 2}


def test_a_start_that_waits_begins_when_a_stopped_replica_is_gone() -> None:
    # At the second interval the stream needs both slices, which offline work frees after 10 s; loading takes 60 s more.
    where = scenario(2, {LOG: [0.0, 100.0, 100.0], EMBED: [8.0] * 3}, interval_s=120.0)
    outcome = run(where, "priority")
    served_s = 120 - 10 - 60
    assert outcome.value[Tier.NEARLINE] == pytest.approx(100 * served_s)
    assert outcome.value[Tier.OFFLINE] == pytest.approx(5 * 2 * 240)
    assert outcome.slice_s[Tier.NEARLINE] == pytest.approx(2 * 110)


def test_rules_of_the_pool_hold_for_every_policy_and_the_oracle_serves_the_most() -> None:
    pool = PoolInput(
        "pool",
        12,
        spares=1,
        tiers=(TierRule(Tier.OFFLINE, floor=3, ceiling=6), TierRule(Tier.REALTIME, ceiling=7)),
    )
    rates = evening(1)[1100:1300]
    where = replace(scenario(12, {CTR: rates, LOG: [60.0] * 200, EMBED: [8.0] * 200}), pool=pool)
    outcomes = {name: run(where, name) for name in DESCRIPTIONS}
    for name, outcome in outcomes.items():
        for interval in outcome.intervals[2:]:
            assert interval.slices[Tier.OFFLINE] <= 6 + 1e-9, name
            assert interval.slices[Tier.REALTIME] <= 7 + 1e-9, name
            assert sum(interval.slices.values()) <= 12 + 1e-9, name
        assert outcome.total_value <= outcomes[ORACLE].total_value * (1 + 1e-9), name


def test_the_oracle_knows_each_interval_however_short_it_is() -> None:
    model = replace(CTR, floor=0, load_s=0.0, drain_s=0.0)
    values = []
    for interval_s, every in ((60.0, 1), (10.0, 6)):
        rates = [rate for rate in (1500.0, 200.0) * 10 for _ in range(every)]
        where = scenario(15, {model: rates, EMBED: [8.0] * len(rates)}, interval_s=interval_s)
        values.append(run(where, ORACLE).total_value)
    assert values[0] == pytest.approx(values[1])


def test_priority_gives_offline_work_the_rest() -> None:
    where = scenario(10, {CTR: [1.0], LOG: [1.0], EMBED: [8.0]})
    view = _view(where, {CTR: 350.0, LOG: 120.0, EMBED: 8.0})
    assert StrictPriority(where).choose_replicas(view) == {CTR.key: 4, LOG.key: 3, EMBED.key: 3}


@pytest.mark.parametrize(
    ("needs", "slices", "shares"),
    [
        ({"a": 2, "b": 8, "c": 9}, 12, {"a": 2, "b": 5, "c": 5}),
        ({"a": 1, "b": 1}, 10, {"a": 1, "b": 1}),
        ({"a": 3, "b": 3}, 1, {"a": 1, "b": 0}),
    ],
)
def test_equal_shares_as_far_as_they_are_needed(
    needs: Mapping[str, int], slices: int, shares: Mapping[str, int]
) -> None:
    assert fill_equally(needs, slices) == shares


def test_tier_lends_what_it_does_not_need_and_takes_it_back() -> None:
    where = scenario(10, {CTR: [1.0], EMBED: [8.0]}, {CTR: [600.0]})
    for name in ("borrowing", "over-quota"):
        _, policy = make_policy(name, where, Solver(time.monotonic).solve, 0.9)
        idle, busy = (_view(where, {CTR: rate, EMBED: 8.0}) for rate in (100.0, 600.0))
        assert policy.choose_replicas(idle) == {CTR.key: 1, EMBED.key: 8}
        assert policy.choose_replicas(busy) == {CTR.key: 6, EMBED.key: 4}


def _view(
    where: Scenario, rates: Mapping[SimulatedModel, float], ready: int = 0, now_s: float = 60.0
) -> PolicyView:
    sets = {model.key: ReplicaSet(model, ready) for model in where.models}
    return PolicyView(
        round(now_s / 60),
        now_s,
        where.pool,
        {model.key: rates.get(model, 0.0) for model in where.models},
        {key: replicas.phase_counts for key, replicas in sets.items()},
        dict.fromkeys(sets, math.inf),
        dict.fromkeys(sets, math.inf),
        {},
    )


@pytest.mark.parametrize(
    ("demand", "message"),
    [
        ({}, "inferences: is empty"),
        ({CTR: []}, "demand of ads/ctr: is missing"),
        ({CTR: [1.0], LOG: [1.0, 2.0]}, "demand: has between 1 and 2 intervals"),
        ({CTR: [1.0, math.nan]}, "demand of ads/ctr: interval 1: nan is not a number"),
        ({CTR: [-1.0]}, "demand of ads/ctr: interval 0: -1 is outside"),
        ({CTR: [1e300]}, "demand of ads/ctr: interval 0: 1e\\+300 is outside"),
    ],
)
def test_impossible_demand_is_refused(demand: Mapping[SimulatedModel, Sequence[float]], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        scenario(10, demand)


def test_rate_of_a_trace_holds_until_the_next_line() -> None:
    trace = parse_trace(
        [
            "time,ads/ctr,ads/rank\n",
            "2026-11-02T00:00:00Z,10,\n",
            "2026-11-02T00:02:00Z,,5\n",
            "2026-11-02T00:03:00+00:00,30,5\n",
        ]
    )
    assert trace.sample_rates("ads/ctr", 60.0) == [10.0, 10.0, 10.0, 30.0]
    assert trace.sample_rates("ads/rank", 60.0) == [0.0, 0.0, 5.0, 5.0]


def test_a_rate_counts_for_its_share_of_an_interval() -> None:
    trace = parse_trace(["time,ads/ctr\n", "0,10\n", "90,40\n", "300,0\n"])
    assert trace.sample_rates("ads/ctr", 120.0) == pytest.approx([17.5, 40.0, 20.0])
    assert trace.sample_rates("ads/ctr", 300.0) == pytest.approx([31.0, 0.0])


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "trace, line 1: want the columns time and namespace/name"),
        (["time\n"], "trace, line 1: want the columns"),
        (["when,ads/ctr\n"], "trace, line 1: want the columns"),
        (["time,a/b,a/b\n"], "trace, line 1: names an Inference twice"),
        (["time,a/b\n"], "trace: has no line of rates"),
        (["time,a/b\n", "0,1,2\n"], "trace, line 2: has 3 cells, the header 2"),
        (["time,a/b\n", "now,1\n"], "trace, line 2: 'now' is neither seconds"),
        (
            ["time,a/b\n", "2026-11-02T00:00:00,1\n"],
            "trace, line 2: .* neither seconds nor a time in RFC 3339",
        ),
        (["time,a/b\n", "2026-11-02,1\n"], "trace, line 2: .* neither seconds nor a time in RFC 3339"),
        (["time,a/b\n", "nan,1\n"], "trace, line 2: its time nan is not from 1970 to 5138"),
        (["time,a/b\n", "1e12,1\n"], "trace, line 2: its time 1e12 is not from 1970 to 5138"),
        (["time,a/b\n", "-9e10,1\n"], "trace, line 2: its time -9e10 is not from 1970 to 5138"),
        (["time,a/b\n", "1969-12-31T00:00:00Z,1\n"], "trace, line 2: its time 1969-12-31T00:00:00Z is not"),
        (["time,a/b\n", f"0,{'1' * 200_000}\n"], "trace, line 2: is no CSV: field larger"),
        (["time,a/b\n", "60,1\n", "60,1\n"], "trace, line 3: its time is not after"),
        (["time,a/b\n", "0,many\n"], "trace, line 2, a/b: 'many' is not a number"),
        (["time,a/b\n", "0,-1\n"], "trace, line 2, a/b: -1 is outside"),
        (["time,a/b\n", "0,nan\n"], "trace, line 2, a/b: nan is not a number"),
    ],
)
def test_trace_that_does_not_fit_is_refused_by_line(lines: Sequence[str], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        parse_trace(lines)
