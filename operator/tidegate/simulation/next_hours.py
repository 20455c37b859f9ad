"""Forecast the next hours of a pool, and run its allocator through them: what it is going to plan, and for which demand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from math import nan
from typing import Final

from tidegate.api.inference import Tier
from tidegate.api.meta import ObjectKey
from tidegate.forecast.local_clock import LocalClock
from tidegate.forecast.seasonal import ForecastSettings, fit_forecast, forecast_rates
from tidegate.planning.allocator.signals import MAX_RATE_PER_S
from tidegate.simulation.allocator_policy import Solve
from tidegate.simulation.changes import SimulatedDay
from tidegate.simulation.day import DayOptions, make_scenario
from tidegate.simulation.engine import Policy, PolicyView, run_policy
from tidegate.simulation.policies import FORECAST, PRESENT, make_policy
from tidegate.simulation.scenario import Scenario
from tidegate.simulation.trace import DemandTrace

STEP: Final = timedelta(minutes=15)
"""Of the history, of the forecasts and of the plan: with shorter steps a fit of four hours would take a second."""
MAX_FORECASTS: Final = 64
"""Inferences that are forecast, the largest first: a fit takes some 50 ms."""


@dataclass(frozen=True, slots=True)
class DemandBand:
    """The median and a quantile of the rate of each step; the same where it is not forecast."""

    median: Sequence[float]
    upper: Sequence[float]


@dataclass(frozen=True, slots=True)
class NextHours:
    """A scenario of the next hours whose demand is the median, the demand of each Inference, and the slices it is given.

    `unforecast` are Inferences at their present rate, because their history is too short or because there are too many.
    """

    scenario: Scenario
    quantile: float
    bands: Mapping[str, DemandBand]
    slices: Mapping[str, Sequence[int]]
    unforecast: frozenset[str]


class _RecordedPolicy:
    """A policy whose targets are kept."""

    def __init__(self, policy: Policy) -> None:
        self.name = policy.name
        self.targets: list[Mapping[str, int]] = []
        self._policy = policy

    def choose_replicas(self, view: PolicyView) -> Mapping[str, int]:
        """Return the policy's targets."""
        self.targets.append(self._policy.choose_replicas(view))
        return self.targets[-1]


def select_largest(day: SimulatedDay) -> Sequence[str]:
    """Return the Inferences to forecast: of those with a rate in the trace, whose steps are those of STEP, the largest.

    Raises TidegateError.
    """
    options = DayOptions(last=len(day.trace.times) * STEP, interval=STEP)
    present = _read_present(day.trace)
    models = [
        model
        for model in make_scenario(day, options, lambda _: None).models
        if model.tier.traits.counts_requests and model.key in present
    ]
    models.sort(key=lambda model: (-model.count_needed(present[model.key]) * model.slices, model.key))
    return [model.key for model in models[:MAX_FORECASTS]]


def plan_next_hours(
    day: SimulatedDay,
    histories: Mapping[str, Sequence[float | None]],
    hours: int,
    solve: Solve,
    report_step: Callable[[str, float], None],
) -> NextHours:
    """Plan the hours that follow the trace, whose steps are those of STEP, with the pool's own policy.

    `histories` are the rates of the Inferences to forecast, in as many steps as are known, until the end of the trace; an
    Inference without one stays at its last rate in the trace, or at 0 if it has none there. Real-time Inferences have the demand that is forecast, times the factor of an event. `report_step` gets what is done, and
    ends the work by raising. Raises TidegateError.
    """
    policy = day.pool.spec.policy
    quantile = float(policy.forecast.quantile) if policy.forecast is not None else 0.9
    count = timedelta(hours=hours) // STEP
    trace, step_s = day.trace, STEP.total_seconds()
    begin_s = trace.times[-1] + step_s
    present = _read_present(trace)
    bands = {
        name: DemandBand([present.get(name, 0.0)] * count, [present.get(name, 0.0)] * count)
        for name in trace.rates
    }
    longer = replace(
        trace,
        times=(*trace.times, *(begin_s + number * step_s for number in range(count))),
        rates={name: (*rates, *bands[name].median) for name, rates in trace.rates.items()},
    )
    options = DayOptions(last=count * STEP, interval=STEP)
    scenario = make_scenario(replace(day, trace=longer), options, lambda _: None)
    clock = LocalClock(scenario.zone, step_s, scenario.begin.timestamp())
    forecast: set[str] = set()
    for number, (name, rates) in enumerate(histories.items()):
        report_step("forecasting", number / len(histories))
        band = _forecast_band(rates, count, quantile, clock)
        if band is not None:
            forecast.add(name)
            bands[name] = band
    bands = {name: _add_events(scenario, name, band) for name, band in bands.items()}
    demand = {**scenario.demand, **{name: band.median for name, band in bands.items()}}
    longest = {name: _join_history(rates, scenario.history[name]) for name, rates in histories.items()}
    scenario = replace(scenario, demand=demand, history={**scenario.history, **longest})
    run_in, chosen = make_policy(
        FORECAST if policy.forecast is not None else PRESENT, scenario, solve, quantile
    )
    recorded = _RecordedPolicy(chosen)
    run_policy(run_in, recorded, lambda step: report_step("planning", step / count))
    slices = {
        model.key: [targets[model.key] * model.slices for targets in recorded.targets]
        for model in scenario.models
    }
    return NextHours(scenario, quantile, bands, slices, frozenset(bands.keys() - forecast))


def _read_present(trace: DemandTrace) -> Mapping[str, float]:
    """Return the last rate of each Inference that has one in the trace."""
    last = {
        name: next((rate for rate in reversed(rates) if rate is not None), None)
        for name, rates in trace.rates.items()
    }
    return {name: rate for name, rate in last.items() if rate is not None}


def _join_history(rates: Sequence[float | None], recent: Sequence[float]) -> Sequence[float]:
    """Return the rates of a long history, without gaps, that end with those of the trace."""
    times = tuple(number * STEP.total_seconds() for number in range(len(rates)))
    filled = DemandTrace(times, {"": tuple(rates)}).sample_rates("", STEP.total_seconds())
    return [*filled[: max(len(filled) - len(recent), 0)], *recent]


def _forecast_band(
    rates: Sequence[float | None], count: int, quantile: float, clock: LocalClock
) -> DemandBand | None:
    """Return the band of the next steps, the first of which is number 0 of the clock; None if the history is too short."""
    history = [nan if rate is None else rate for rate in rates]
    offsets = clock.read_offsets(-len(history), count)
    courses: list[Sequence[float]] = []
    for share in (0.5, quantile):
        model = fit_forecast(history, ForecastSettings(STEP.total_seconds(), count, share), offsets)
        if model is None:
            return None
        expected = forecast_rates(history, model, offsets)
        courses.append([min(max(rate, 0.0), MAX_RATE_PER_S) for rate in expected])
    median, upper = courses
    # The two are fitted apart, and may cross where the demand hardly varies.
    return DemandBand(median, [max(pair) for pair in zip(median, upper, strict=True)])


def _add_events(scenario: Scenario, name: str, band: DemandBand) -> DemandBand:
    """Return the band times the factor of the events that run in each step."""
    events = scenario.calendar.select_concerning(ObjectKey.parse(name))
    if not events or scenario.by_key[name].tier is not Tier.REALTIME:
        return band
    # With a lead, the next occurrence of an event would hide the running one.
    calendar = replace(scenario.calendar, events=events, lead=timedelta())
    factors: list[float] = []
    for number in range(len(band.median)):
        moment = scenario.begin + number * STEP
        running = [float(item.event.factor) for item in calendar.find_near(moment)]
        factors.append(max(running, default=1.0))
    return DemandBand(
        [rate * factor for rate, factor in zip(band.median, factors, strict=True)],
        [rate * factor for rate, factor in zip(band.upper, factors, strict=True)],
    )
