"""Tidegate's own policy: the solver of the controllers, with the present rates or with forecasts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from math import ceil
from typing import Final

from tidegate.allocation.assembly import SolveLimits
from tidegate.allocation.assignment import Assignment
from tidegate.allocation.errors import MAX_AMOUNT
from tidegate.allocation.shared_spares import (
    SharedSpare,
    SparePlan,
    SpareRules,
    measure_node_shares,
    plan_shared_spares,
)
from tidegate.allocation.snapshot import (
    AllocationSnapshot,
    DemandInput,
    ModelInput,
    PlacementInput,
    PoolInput,
    ReplicaBounds,
)
from tidegate.api.inference import Tier
from tidegate.api.meta import ObjectKey
from tidegate.forecast.book import ForecastBook
from tidegate.forecast.local_clock import LocalClock
from tidegate.planning.allocator.event_baselines import BASELINE_MEMORY, EventBaselines
from tidegate.planning.allocator.event_calendar import EventCalendar, EventDemand
from tidegate.planning.allocator.forecasts import raise_to_expected
from tidegate.planning.allocator.peaks import MIN_PEAK_WINDOW
from tidegate.planning.allocator.replica_times import compute_lead
from tidegate.planning.allocator.snapshot_builder import HORIZON_STEPS, protect_in_event
from tidegate.planning.allocator.spare_limits import count_kept_slices
from tidegate.simulation.engine import PolicyView
from tidegate.simulation.scenario import Scenario, SimulatedModel

_LIMITS: Final = SolveLimits(seconds=10.0)
_MINUTE: Final = timedelta(minutes=1)

Solve = Callable[[AllocationSnapshot, SolveLimits], Assignment]


@dataclass(frozen=True, slots=True)
class AllocatorOptions:
    """Parts of the policy that can be left out: the price of a move, the memory of peaks, and the forecast's quantile."""

    prices_moves: bool = True
    holds_peaks: bool = True
    forecast_quantile: float | None = None


class AllocatorPolicy:
    """The allocator of the controllers; `solve` is its solver."""

    def __init__(
        self, name: str, scenario: Scenario, solve: Solve, options: AllocatorOptions = AllocatorOptions()
    ) -> None:
        self.name = name
        self._scenario = scenario
        self._solve = solve
        self._options = options
        self._price = 0.0
        self._spare_room = 0
        self._planned: Mapping[str, float] = {}
        self._recent: dict[str, list[float]] = {model.key: [] for model in scenario.models}
        quantile = options.forecast_quantile
        self._forecasts = None if quantile is None else _read_history(scenario, quantile)
        self._baselines = EventBaselines()
        self._keys = {model.key: ObjectKey.parse(model.key) for model in scenario.select_tier(Tier.REALTIME)}
        self._replay_history()

    def choose_replicas(self, view: PolicyView) -> Mapping[str, int]:
        """Return the solver's replicas."""
        rates = view.demand_rates
        for model in self._scenario.models:
            recent = [*self._recent[model.key], rates[model.key]]
            self._recent[model.key] = recent[-self._count_peak_intervals(model) :]
        if self._forecasts is not None and view.step:
            for key, rate in view.rates.items():
                self._forecasts.add_rate(key, view.now_s - self._scenario.interval_s, rate)
        self._planned = {model.key: self._estimate_rate(model, view.now_s) for model in self._scenario.models}
        demands = self._plan_events(view.now_s, view.rates)
        models = tuple(
            self._make_model(
                model,
                view,
                self._planned[model.key],
                demands.get(model.key),
            )
            for model in self._scenario.models
        )
        pool = view.pool
        if self._options.prices_moves:
            pool = replace(pool, price=self._price)
        self._spare_room = _limit_spares(pool, models)
        dwell_s = self._scenario.dwell_s if self._options.prices_moves else 0.0
        assignment = self._solve(AllocationSnapshot((pool,), models, HORIZON_STEPS, dwell_s=dwell_s), _LIMITS)
        self._price = min(assignment.get_price(pool.name), MAX_AMOUNT)
        replicas = {assigned.inference: assigned.replicas for assigned in assignment.replicas}
        return {model.key: replicas[model.key] for tier in Tier for model in self._scenario.select_tier(tier)}

    def plan_spares(
        self,
        spread: Mapping[str, Mapping[str, int]],
        missing: Mapping[str, int],
        nodes: Sequence[str],
        current: Sequence[SharedSpare],
    ) -> SparePlan:
        """Return the spares for its replicas, as they are spread over the nodes."""
        shares = [
            replace(
                measure_node_shares(
                    self._scenario.by_key[key].capacity_curve,
                    self._planned[key],
                    counts,
                    key,
                    self._scenario.by_key[key].slices,
                ),
                missing=missing[key],
            )
            for key, counts in spread.items()
        ]
        rules = self._scenario.spare_rules or SpareRules(0)
        rules = replace(rules, slices=min(rules.slices, self._spare_room))
        return plan_shared_spares(shares, nodes, rules, current)

    def _plan_events(self, now_s: float, rates: Mapping[str, float]) -> Mapping[str, EventDemand]:
        """Take the rates of the interval before, and return what events bring."""
        scenario = self._scenario
        if not scenario.calendar.events:
            return {}
        now = scenario.begin + timedelta(seconds=now_s)
        for name, key in self._keys.items():
            self._add_rate(key, now, rates[name])
        demands = self._baselines.plan_demand(scenario.calendar, frozenset(self._keys.values()), now)
        return {str(key): demand for key, demand in demands.items()}

    def _add_rate(self, key: ObjectKey, end: datetime, rate: float) -> None:
        """Add the rate of an interval to each of its minutes."""
        begin = end - timedelta(seconds=self._scenario.interval_s)
        while begin < end:
            self._baselines.add_rate(key, begin, rate)
            begin += _MINUTE

    def _replay_history(self) -> None:
        """Find the demand before an event that is near or runs when the demand begins."""
        scenario, interval = self._scenario, timedelta(seconds=self._scenario.interval_s)
        if not scenario.calendar.events:
            return
        count = ceil(BASELINE_MEMORY / interval)
        for name, key in self._keys.items():
            rates = scenario.history.get(name, ())
            first = scenario.calendar.find_first(scenario.calendar.select_concerning(key), scenario.begin)
            # Of an event that runs, the rates since its begin are no baseline.
            since = timedelta() if first is None else max(scenario.begin - first.begins, timedelta())
            last = len(rates) - since // interval
            for number in range(max(last - count, 0), last):
                self._add_rate(key, scenario.begin - (len(rates) - number - 1) * interval, rates[number])
        self._baselines.plan_demand(scenario.calendar, frozenset(self._keys.values()), scenario.begin)

    def _make_model(
        self, model: SimulatedModel, view: PolicyView, rate: float, event: EventDemand | None
    ) -> ModelInput:
        load, bounds = DemandInput((rate,)), ReplicaBounds(model.floor, model.ceiling)
        if event is not None:
            load = raise_to_expected(load, None, event)
            bounds = protect_in_event(bounds, view.replicas[model.key].current, event)
        placement = PlacementInput(
            self._scenario.pool.name,
            model.capacity_curve,
            slices=model.slices,
            replicas=view.replicas[model.key],
            load_s=model.load_s,
            drain_s=model.drain_s,
            since_up_s=view.since_up_s[model.key],
            since_down_s=view.since_down_s[model.key],
        )
        return ModelInput(
            model.key,
            model.tier,
            (placement,),
            load,
            bounds,
            model.value,
            keeps_node_spare=model.keeps_node_spare or self._is_on_all_nodes(model, view.pool, rate),
        )

    def _is_on_all_nodes(self, model: SimulatedModel, pool: PoolInput, rate: float) -> bool:
        """Return whether no node is without its replicas, so that no spare can serve for all nodes."""
        has_spares = self._scenario.spare_rules is not None and model.tier is Tier.REALTIME
        return has_spares and model.count_needed(rate) >= pool.nodes

    def _count_peak_intervals(self, model: SimulatedModel) -> int:
        """Return in how many intervals a peak of the demand counts, as `peaks.apply_peaks` counts it in a cluster."""
        if not self._options.holds_peaks or not model.tier.traits.counts_requests:
            return 1
        peak_s = MIN_PEAK_WINDOW.total_seconds()
        if model.tier.traits.has_slo:
            peak_s = max(self._scenario.dwell_s, peak_s)
        return max(1, ceil(peak_s / self._scenario.interval_s))

    def _estimate_rate(self, model: SimulatedModel, now_s: float) -> float:
        """Return the rate to plan for: the highest of late, or of real-time requests that which is expected."""
        rate = max(self._recent[model.key])
        if self._forecasts is None or not model.tier.traits.has_slo:
            return rate
        lead = compute_lead(model.load_s, timedelta(seconds=self._scenario.interval_s))
        return max(rate, self._forecasts.forecast_peak(model.key, now_s, lead.total_seconds()) or 0.0)


def _limit_spares(pool: PoolInput, models: Sequence[ModelInput]) -> int:
    """Return the most slices that shared spares may have, as in a cluster."""
    floors = {rule.tier: rule.floor for rule in pool.tiers}
    realtime, reserved = count_kept_slices(models, floors, pool.nodes)
    ceilings = [
        rule.ceiling for rule in pool.tiers if rule.tier is Tier.REALTIME and rule.ceiling is not None
    ]
    return max(min([pool.slices - reserved, *ceilings]) - realtime, 0)


def _read_history(scenario: Scenario, quantile: float) -> ForecastBook[str]:
    book = ForecastBook[str](quantile, LocalClock(scenario.zone, begin_s=scenario.begin.timestamp()))
    for key, rates in scenario.history.items():
        for number, rate in enumerate(rates):
            book.add_rate(key, (number - len(rates)) * scenario.interval_s, rate)
    return book


class ClairvoyantPolicy:
    """The allocator if it knew the demand of the interval that begins; it is run with replicas that load in no time."""

    name = "oracle"

    def __init__(self, scenario: Scenario, solve: Solve) -> None:
        self._scenario = scenario
        options = AllocatorOptions(prices_moves=False, holds_peaks=False)
        unplanned = replace(scenario, history={}, calendar=EventCalendar())
        self._policy = AllocatorPolicy(self.name, unplanned, solve, options)

    def choose_replicas(self, view: PolicyView) -> Mapping[str, int]:
        """Return the replicas that serve the interval's own demand best."""
        rates = {key: rates[view.step] for key, rates in self._scenario.demand.items()}
        return self._policy.choose_replicas(replace(view, rates=rates, pool=replace(view.pool, nodes=1)))
