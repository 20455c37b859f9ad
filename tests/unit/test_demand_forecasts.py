"""The demand that is expected: which rates make a history, which Inferences are forecast, and what counts in a decision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from math import nan
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders.allocator import NOW, a_decision, a_member, observed, signals
from tidegate.allocation.assignment import Assignment
from tidegate.allocation.snapshot import DemandInput, ModelInput
from tidegate.allocation.solver import Solver
from tidegate.api.compute_pool import ForecastPolicy
from tidegate.api.durations import parse_duration
from tidegate.api.inference import Tier
from tidegate.api.meta import ObjectKey
from tidegate.api.reasons import Reason
from tidegate.planning.allocator.forecasts import DemandForecasts, RateHistory
from tidegate.planning.allocator.observed_pool import AllocationObserved
from tidegate.planning.allocator.pool_forecaster import PoolForecaster
from tidegate.planning.allocator.pool_status import summarise_allocation
from tidegate.planning.allocator.replica_times import ReplicaTimes
from tidegate.planning.allocator.signals import (
    InferenceMetrics,
    MetricsScrape,
    RateEstimates,
    Signal,
    Signals,
    estimate_signals,
)
from tidegate.planning.allocator.snapshot_builder import build_allocation_view
from tidegate.planning.inference.serving_status import Verdict

CTR, CVR = ObjectKey("ads", "ctr"), ObjectKey("ads", "cvr")
POLICY = ForecastPolicy()
LEAD = timedelta(minutes=5)
DAY = 288
"""Blocks of five minutes."""
STEP = timedelta(seconds=30)


def daily(days: int) -> list[float]:
    """From midnight on, 100/s, and 500/s from 18:00 to 20:00."""
    return [500.0 if 216 <= block % DAY < 240 else 100.0 for block in range(days * DAY)]


def a_history(rates: Sequence[float], end: datetime, *keys: ObjectKey, problem: str = "") -> RateHistory:
    begin = end - len(rates) * timedelta(minutes=5)
    return RateHistory(begin, dict.fromkeys(keys or (CTR,), rates), problem)


class Ticks:
    """A pool that reads the rates of ads/ctr every half minute."""

    def __init__(self, begin: datetime = NOW, policy: ForecastPolicy = POLICY) -> None:
        self.forecaster, self.policy, self.now = PoolForecaster(policy), policy, begin
        self.estimates: RateEstimates = {}

    def read(self, rate: float | None, **scrape: Any) -> DemandForecasts:
        metrics = {} if rate is None else {CTR: InferenceMetrics(rate)}
        signals, self.estimates = estimate_signals(
            self.estimates, MetricsScrape("gateways", metrics, STEP, **scrape), self.now
        )
        lead = parse_duration(self.policy.horizon)
        found = self.forecaster.forecast_demand(self.policy, {CTR: lead}, signals, self.now)
        self.now += STEP
        return found

    def read_for(self, time: timedelta, rate: float) -> DemandForecasts:
        """Read the same rate for so long; the last forecast."""
        return [self.read(rate) for _ in range(time // STEP)][-1]


def test_a_rise_that_comes_every_day_is_expected_before_it_comes() -> None:
    evening = datetime(2026, 1, 15, 17, 50, tzinfo=UTC)
    ticks = Ticks(evening)
    ticks.forecaster.add_history(a_history(daily(15)[: -6 * 12 - 2], evening))
    assert ticks.read(100.0).peaks[CTR] == pytest.approx(100.0)
    found = ticks.read_for(timedelta(minutes=6), 100.0)
    assert ticks.now - STEP >= evening.replace(minute=55)
    assert found.peaks[CTR] == pytest.approx(500.0)
    assert found.short == frozenset()


def test_a_longer_horizon_expects_it_sooner() -> None:
    afternoon = datetime(2026, 1, 15, 17, 10, tzinfo=UTC)
    rates = daily(15)[: -6 * 12 - 10]
    for horizon, expected in (("30m", 100.0), ("1h", 500.0)):
        ticks = Ticks(afternoon, ForecastPolicy(horizon=horizon))
        ticks.forecaster.add_history(a_history(rates, afternoon))
        assert ticks.read(100.0).peaks[CTR] == pytest.approx(expected), horizon


def test_a_model_that_loads_for_longer_than_the_others_expects_the_same_rise_sooner() -> None:
    afternoon = datetime(2026, 1, 15, 17, 40, tzinfo=UTC)
    forecaster = PoolForecaster(POLICY)
    forecaster.add_history(a_history(daily(15)[: -6 * 12 - 4], afternoon, CTR, CVR))
    leads = {CTR: timedelta(minutes=20, seconds=30), CVR: timedelta(seconds=62)}
    for _ in leads:
        found = forecaster.forecast_demand(POLICY, leads, Signals(problem=""), afternoon)
    assert found.peaks == {CTR: pytest.approx(500.0), CVR: pytest.approx(100.0)}
    # Its load time has grown since: the model of the other one is fitted again, without waiting for six hours.
    leads[CVR] = leads[CTR]
    found = forecaster.forecast_demand(POLICY, leads, Signals(problem=""), afternoon)
    assert found.peaks == {CTR: pytest.approx(500.0), CVR: pytest.approx(500.0)}


def test_a_policy_that_changes_is_followed_and_the_history_stays() -> None:
    afternoon = datetime(2026, 1, 15, 17, 10, tzinfo=UTC)
    ticks = Ticks(afternoon)
    ticks.forecaster.add_history(a_history(daily(15)[: -6 * 12 - 10], afternoon))
    assert ticks.read(100.0).peaks[CTR] == pytest.approx(100.0)
    ticks.policy = ForecastPolicy(horizon="1h")
    assert ticks.read(100.0).peaks[CTR] == pytest.approx(500.0)


@pytest.mark.parametrize(("zone", "expected"), [("Europe/Berlin", 500.0), ("UTC", 100.0)])
def test_the_rise_of_an_evening_is_expected_at_its_hour_after_clocks_are_changed(
    zone: str, expected: float
) -> None:
    """In Berlin the rate rises at 18:00 each day: at 17:00 in UTC until March 28, and at 16:00 from then on."""
    now, berlin = datetime(2026, 3, 29, 15, 56, tzinfo=UTC), ZoneInfo("Europe/Berlin")
    begin = datetime(2026, 3, 15, tzinfo=UTC)
    times = [begin + number * timedelta(minutes=5) for number in range((now - begin) // timedelta(minutes=5))]
    rates = [500.0 if 18 <= time.astimezone(berlin).hour < 20 else 100.0 for time in times]
    policy = ForecastPolicy(time_zone=zone)
    forecaster = PoolForecaster(policy)
    forecaster.add_history(RateHistory(begin, {CTR: rates}))
    found = forecaster.forecast_demand(policy, {CTR: LEAD}, Signals(problem=""), now)
    assert found.peaks == {CTR: pytest.approx(expected)}
    # A policy that changes is followed at once.
    found = forecaster.forecast_demand(
        ForecastPolicy(time_zone="Europe/Berlin"), {CTR: LEAD}, Signals(problem=""), now
    )
    assert found.peaks == {CTR: pytest.approx(500.0)}


def test_a_time_zone_that_does_not_exist_is_named_and_forecasts_nothing() -> None:
    wrong = ForecastPolicy(time_zone="Mars/Olympus")
    forecaster = PoolForecaster(wrong)
    forecaster.add_history(a_history([100.0] * DAY, NOW))
    found = forecaster.forecast_demand(wrong, {CTR: LEAD}, Signals(problem=""), NOW)
    problem = "spec.policy.forecast.timeZone 'Mars/Olympus': there is no such time zone: give a name like Europe/Berlin"
    assert found == DemandForecasts(policy_problem=problem)
    assert judge(found, "ctr") == Verdict(
        False, Reason.FORECAST_INVALID, f"{problem}; until it is corrected the present rates count"
    )
    # The history is kept meanwhile.
    found = forecaster.forecast_demand(POLICY, {CTR: LEAD}, Signals(problem=""), NOW)
    assert found == DemandForecasts({CTR: pytest.approx(100.0)})


def test_less_than_a_day_of_history_is_too_short_and_a_day_is_not() -> None:
    ticks = Ticks()
    ticks.forecaster.add_history(a_history([100.0] * (DAY - 1), NOW))
    found = ticks.read(100.0)
    assert (found.peaks, found.short) == ({}, {CTR})
    found = ticks.read_for(timedelta(minutes=6), 100.0)
    assert found.peaks == {CTR: pytest.approx(100.0)}
    assert found.short == frozenset()


def test_a_history_grows_without_prometheus() -> None:
    ticks = Ticks()
    assert ticks.read_for(timedelta(hours=23, minutes=59), 100.0).short == {CTR}
    assert ticks.read_for(timedelta(minutes=12), 100.0).peaks == {CTR: pytest.approx(100.0)}


def test_a_gap_is_no_history() -> None:
    ticks = Ticks()
    ticks.forecaster.add_history(a_history([100.0, *[nan] * (3 * DAY), 100.0], NOW))
    assert ticks.read(100.0).short == {CTR}


def test_history_from_prometheus_fills_what_was_not_read() -> None:
    ticks = Ticks()
    ticks.read_for(timedelta(minutes=30), 100.0)
    ticks.forecaster.add_history(a_history([40.0] * DAY, ticks.now, problem="no answer"))
    found = ticks.read(100.0)
    # The rates of the last half hour are those of the signals.
    assert found.peaks[CTR] == pytest.approx(100.0)
    assert (found.short, found.history_problem) == (frozenset(), "no answer")


@pytest.mark.parametrize("reads", [1, 2])
def test_a_spike_that_is_not_confirmed_is_no_history(reads: int) -> None:
    """One read of fifty times the rate; and the first of all, with nothing to compare it with."""
    ticks = Ticks()
    ticks.forecaster.add_history(a_history([100.0] * DAY, NOW))
    if reads == 2:
        ticks.read_for(timedelta(minutes=2), 100.0)
    ticks.read(5000.0)
    # The block of the spike ends in between, and is the latest for five minutes.
    peaks = [ticks.read(100.0).peaks[CTR] for _ in range(20)]
    assert peaks == [pytest.approx(100.0)] * 20


def test_a_surge_that_lasts_is_history() -> None:
    ticks = Ticks()
    ticks.forecaster.add_history(a_history([100.0] * DAY, NOW))
    ticks.read_for(timedelta(minutes=2), 100.0)
    assert ticks.read_for(timedelta(minutes=10), 5000.0).peaks[CTR] >= 5000.0


@pytest.mark.parametrize(
    "lie",
    [
        pytest.param((nan, {}), id="no number"),
        pytest.param((-1.0, {}), id="negative"),
        pytest.param((None, {}), id="missing"),
        pytest.param((20.0, {"silent_gateways": ("a",)}), id="a part"),
        pytest.param((250.0, {"silent_gateways": ("a",)}), id="a lower bound"),
        pytest.param((250.0, {"failure": "no answer"}), id="no answer"),
        pytest.param((250.0, {"age": timedelta(minutes=5)}), id="old"),
    ],
)
def test_what_is_held_is_no_history(lie: tuple[float | None, dict[str, Any]]) -> None:
    ticks = Ticks()
    ticks.forecaster.add_history(a_history([100.0] * (DAY - 1), NOW))
    ticks.read_for(timedelta(minutes=4), 100.0)
    before = ticks.read(100.0).short
    rate, scrape = lie
    found = [ticks.read(rate, **scrape) for _ in range(20)][-1]
    # The block of the last true rates has ended; no other was added.
    assert before == {CTR}
    assert found.short == frozenset()
    assert found.peaks[CTR] == pytest.approx(100.0)


def test_few_are_fitted_in_a_tick_and_all_after_thirty_two() -> None:
    keys = [ObjectKey("ads", f"m{number:03}") for number in range(70)]
    forecaster = PoolForecaster(POLICY)
    forecaster.add_history(a_history([100.0] * DAY, NOW, *keys))
    now, counts, leads = NOW, [], dict.fromkeys(keys, LEAD)
    for _ in range(32):
        found = forecaster.forecast_demand(POLICY, leads, Signals(problem=""), now)
        counts.append(len(found.peaks))
        now += STEP
    assert counts[:3] == [3, 6, 9]
    assert counts[-1] == 70
    # They are fitted again after six hours, a few in a tick, and none is without a forecast meanwhile.
    found = forecaster.forecast_demand(POLICY, leads, Signals(problem=""), now + timedelta(hours=6))
    assert len(found.peaks) == 70


def test_an_inference_that_leaves_is_forgotten() -> None:
    forecaster = PoolForecaster(POLICY)
    forecaster.add_history(a_history([100.0] * DAY, NOW, CTR, CVR))
    assert forecaster.forecast_demand(POLICY, {CTR: LEAD}, Signals(), NOW).peaks.keys() == {CTR}
    assert forecaster.forecast_demand(POLICY, {CTR: LEAD, CVR: LEAD}, Signals(), NOW).short == {CVR}


CAPACITY = {"requestsPerSecond": "100"}
FORECAST = {"forecast": {"horizon": "5m"}}


def model_of(seen: AllocationObserved) -> ModelInput:
    return build_allocation_view(seen).snapshot.inferences[0]


def test_the_expected_demand_counts_where_it_exceeds_the_present_one() -> None:
    def load(forecast: float, policy: dict[str, Any] = FORECAST) -> DemandInput | None:
        member = a_member(capacity=CAPACITY)
        seen = observed(member, policy=policy, signals=signals(ctr=250.0), forecasts={CTR: forecast})
        return model_of(seen).load

    assert load(400.0) == DemandInput((400.0,), expectation="expected within 5m")
    assert load(100.0) == load(250.0) == DemandInput((250.0,))
    assert load(400.0, policy={}) == DemandInput((250.0,))


def test_an_inference_without_a_forecast_has_its_present_demand() -> None:
    seen = observed(a_member(capacity=CAPACITY), policy=FORECAST, signals=signals(ctr=250.0))
    assert model_of(seen).load == DemandInput((250.0,))


def test_only_realtime_inferences_with_a_range_are_forecast() -> None:
    near = a_member(tier=Tier.NEARLINE, capacity=CAPACITY)
    fixed = a_member(least=2, most=None, capacity=CAPACITY)
    for member in (near, fixed):
        seen = observed(member, policy=FORECAST, signals=signals(ctr=250.0), forecasts={CTR: 400.0})
        assert model_of(seen).load == DemandInput((250.0,))
        assert seen.forecast_leads == {}
    assert observed(a_member(), policy=FORECAST).forecast_leads == {CTR: LEAD}
    assert observed(a_member()).forecast_leads == {}


@pytest.mark.parametrize(
    ("load_s", "lead_s"), [(None, 300), (0.0, 30), (20.0, 50), (91.5, 122), (1200.0, 1230), (3595.0, 3600)]
)
def test_a_forecast_looks_as_far_ahead_as_a_replica_takes_to_serve(load_s: float | None, lead_s: int) -> None:
    """Until the next decision, half a minute later, and the load time; or, where none is measured, for the horizon."""
    member = replace(a_member(capacity=CAPACITY), times=ReplicaTimes(load_s=load_s))
    seen = observed(member, policy=FORECAST, signals=signals(ctr=250.0), forecasts={CTR: 400.0})
    assert seen.forecast_leads == {CTR: timedelta(seconds=lead_s)}
    within = {300: "5m", 1230: "1230s", 3600: "1h"}.get(lead_s, f"{lead_s}s")
    assert model_of(seen).load == DemandInput((400.0,), expectation=f"expected within {within}")


def test_an_inference_without_signals_keeps_its_replicas_whatever_is_expected() -> None:
    seen = observed(a_member(capacity=CAPACITY), policy=FORECAST, forecasts={CTR: 400.0})
    assert model_of(seen).load is None


def test_a_held_rate_is_raised_and_protects_what_the_inference_has() -> None:
    stale = signals("Prometheus is gone", ctr=50.0)
    ctr = model_of(
        observed(a_member(held=4, capacity=CAPACITY), policy=FORECAST, signals=stale, forecasts={CTR: 600.0})
    )
    assert ctr.load == DemandInput((600.0,), expectation="expected within 5m")
    assert ctr.bounds.floor == 4


def test_replicas_start_for_the_expected_demand_and_the_move_says_so() -> None:
    seen = observed(
        a_member(capacity=CAPACITY), policy=FORECAST, signals=signals(ctr=90.0), forecasts={CTR: 250.0}
    )
    assignment = Solver(lambda: 0.0).solve(build_allocation_view(seen).snapshot)
    [move] = assignment.moves
    assert move.reason == (
        "realtime ads/ctr +2 in cpu-a: demand 250/s expected within 5m exceeds 100/s; from free slices"
    )


def judge(forecasts: DemandForecasts | None, *names: str, **policy: Any) -> Verdict | None:
    seen = observed(*(a_member(name) for name in names), policy=policy or FORECAST, signals=signals(ctr=1.0))
    assignment: Assignment = Solver(lambda: 0.0).solve(build_allocation_view(seen).snapshot)
    seen_decisions = observed(*seen.members, policy=policy or FORECAST, decisions=(a_decision(),))
    return summarise_allocation(seen_decisions, assignment, {}, forecasts).forecast_verdict


def test_the_pool_says_how_much_is_forecast() -> None:
    both = {CTR: 5.0, CVR: 6.0}
    assert judge(DemandForecasts(both), "ctr", "cvr") == Verdict(
        True, Reason.DEMAND_FORECAST, "2 Inferences are forecast"
    )
    assert judge(DemandForecasts({CTR: 5.0}), "ctr") == Verdict(
        True, Reason.DEMAND_FORECAST, "1 Inference is forecast"
    )
    assert judge(DemandForecasts({CTR: 5.0}, frozenset({CVR})), "ctr", "cvr") == Verdict(
        False,
        Reason.HISTORY_TOO_SHORT,
        "1 of 2 Inferences has less than a day of history, so its present rate counts",
    )
    unread = DemandForecasts({}, frozenset({CTR, CVR}), history_problem="earlier rates cannot be read")
    assert judge(unread, "ctr", "cvr") == Verdict(
        False,
        Reason.HISTORY_TOO_SHORT,
        "2 of 2 Inferences have less than a day of history, so their present rates count; earlier rates cannot be read",
    )


def test_the_pool_says_that_a_history_is_not_evaluated_yet() -> None:
    for pending in (
        DemandForecasts({}, frozenset({CTR}), is_pending=True),
        DemandForecasts({}, frozenset()),
        DemandForecasts({CVR: 5.0}, frozenset({CTR}), is_pending=True),
    ):
        verdict = judge(pending, "ctr")
        assert verdict is not None
        assert (verdict.holds, verdict.reason) == (False, Reason.FORECASTS_PENDING)


def test_a_read_for_others_leaves_the_pool_forecast() -> None:
    """Such as for an Inference that has left since."""
    assert judge(DemandForecasts({CTR: 5.0}, is_pending=True), "ctr") == Verdict(
        True, Reason.DEMAND_FORECAST, "1 Inference is forecast"
    )


def test_a_pool_without_anything_to_forecast_says_nothing() -> None:
    assert judge(None, "ctr", mode="Auto") is None
    assert judge(DemandForecasts()) is None


def test_a_rate_beyond_all_measure_is_not_expected() -> None:
    ticks = Ticks()
    ticks.forecaster.add_history(a_history([*[1e-6] * (DAY - 1), 1e9], NOW))
    assert ticks.read(100.0).peaks[CTR] <= 1e9


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.just(nan) | st.floats(0, 1e9) | st.floats(0, 100), min_size=DAY, max_size=2 * DAY),
    st.sampled_from(["10s", "5m", "1h"]),
)
def test_whatever_the_history_is_a_forecast_is_a_rate(rates: list[float], horizon: str) -> None:
    forecaster = PoolForecaster(POLICY)
    forecaster.add_history(a_history([*[100.0] * DAY, *rates], NOW))
    leads = {CTR: parse_duration(horizon)}
    peak = forecaster.forecast_demand(POLICY, leads, Signals(problem=""), NOW).peaks[CTR]
    assert 0 <= peak <= 1e9


def test_the_same_signals_twice_are_added_once() -> None:
    """Pools that decide at about the same time share a read."""
    forecaster = PoolForecaster(POLICY)
    forecaster.add_history(a_history([100.0] * DAY, NOW))
    first = Signals({CTR: Signal(5000.0, NOW)}, "", STEP)
    for later in range(3):
        forecaster.forecast_demand(POLICY, {CTR: LEAD}, first, NOW + later * STEP)
    found = forecaster.forecast_demand(POLICY, {CTR: LEAD}, Signals(problem=""), NOW + timedelta(minutes=10))
    assert found.peaks[CTR] == pytest.approx(100.0)
