"""Metrics of the allocator."""

import contextlib
from collections.abc import Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Gauge

from tidegate_dataplane.contract.metrics import MetricCatalog

_SOLVE_S: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2, 5)
_RECLAIM_S: Final = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600)

ALLOCATOR: Final = MetricCatalog("tidegate_allocator_")
_SOLVE = ALLOCATOR.add_histogram(
    "solve_seconds", "Duration of one solve of a pool.", "pool", buckets=_SOLVE_S
)
_TICK = ALLOCATOR.add_histogram(
    "tick_seconds",
    "Duration of one tick that made a decision: observe, including signals from Prometheus, solve, and write the "
    "changes.",
    "pool",
    buckets=_SOLVE_S,
)
_SOLVES = ALLOCATOR.add_counter(
    "solves_total",
    "Solves by method: LP, MILP, or Greedy if the solver returned no solution.",
    "pool",
    "solver",
)
_DECISIONS = ALLOCATOR.add_counter("decisions_total", "AllocationDecisions written.", "pool", "mode")
_MOVED = ALLOCATOR.add_counter(
    "moved_slices_total",
    "Slices that decisions moved, up or down; in mode RecommendOnly, slices that would have moved.",
    "pool",
    "mode",
    "tier",
    "direction",
)
_RECLAIM = ALLOCATOR.add_histogram(
    "reclaim_seconds",
    "Time from a decision until the pods that freed their slices no longer existed.",
    "tier",
    buckets=_RECLAIM_S,
)
_OVERRIDES = ALLOCATOR.add_gauge(
    "overrides", "Active ComputeOverrides of the pool or its Inferences.", "pool"
)
_FACTOR = ALLOCATOR.add_gauge(
    "capacity_factor",
    "Capacity of the Inference as corrected by measurements in production, divided by its spec.capacity.",
    "pool",
    "inference",
)
_FORECAST = ALLOCATOR.add_gauge(
    "forecast_rate",
    "Requests per second of the Inference that are expected at most until a replica that starts at the next decision serves, or within spec.policy.forecast.horizon where no load time is measured, or by an event of its spec.policy.events that is near; only if it is forecast, or in such an event.",
    "pool",
    "inference",
)
_DEADLINES = ALLOCATOR.add_gauge(
    "deadline_shortfall_rate",
    "Messages per second that the ready replicas of the Inference lack to keep its messages within spec.nearline.maxDelay; 0 if "
    "they keep them.",
    "pool",
    "inference",
)
_OFFERED = ALLOCATOR.add_gauge(
    "offered_value_per_second",
    "Value per second of the requests that clients sent to the Inference.",
    "pool",
    "inference",
)
_VALUE = ALLOCATOR.add_gauge(
    "value_per_second",
    "Value per second of the requests that clients sent to the Inference: served, refused by a limit or by admission control, "
    "or lost because they failed or had no answer.",
    "pool",
    "inference",
    "outcome",
)
_INTERVAL = ALLOCATOR.add_gauge(
    "interval_seconds",
    "The pool's spec.policy.interval, the longest time between its ticks; only for pools that the allocator decides.",
    "pool",
)
_DECIDED = ALLOCATOR.add_gauge(
    "decided_timestamp_seconds",
    "Time of the pool's last tick, whether its decision was new or not, in seconds since 1970.",
    "pool",
)
_DUE = ALLOCATOR.add_gauge(
    "due_timestamp_seconds",
    "Time from which this process decides the pool, in seconds since 1970; for its last tick, see decided_timestamp_seconds.",
    "pool",
)
_SIGNALS = ALLOCATOR.add_gauge(
    "signals_timestamp_seconds",
    "Time of the pool's last tick with usable signals, in seconds since 1970.",
    "pool",
)


class AllocatorMetrics:
    """Counts decisions and moves, and measures their durations."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.solve_seconds = _SOLVE.register(registry)
        self.tick_seconds = _TICK.register(registry)
        self.solves = _SOLVES.register(registry)
        self.decisions = _DECISIONS.register(registry)
        self.moved_slices = _MOVED.register(registry)
        self.reclaim_seconds = _RECLAIM.register(registry)
        self.overrides = _OVERRIDES.register(registry)
        self._factor = _FACTOR.register(registry)
        self._forecast = _FORECAST.register(registry)
        self._deadlines = _DEADLINES.register(registry)
        self._offered = _OFFERED.register(registry)
        self._value = _VALUE.register(registry)
        self._interval = _INTERVAL.register(registry)
        self._decided = _DECIDED.register(registry)
        self._due = _DUE.register(registry)
        self._signals = _SIGNALS.register(registry)
        self._waiting: set[str] = set()
        self._factors: dict[str, Mapping[str, float]] = {}
        self._forecasts: dict[str, Mapping[str, float]] = {}
        self._shortfalls: dict[str, Mapping[str, float]] = {}
        self._offers: dict[str, Mapping[str, float]] = {}
        self._values: dict[str, Mapping[str, Mapping[str, float]]] = {}

    def show_corrections(self, pool: str, factors: Mapping[str, float]) -> None:
        """Show the capacity corrections of a pool's Inferences, and remove those of other Inferences of the pool."""
        _show_inferences(self._factor, self._factors, pool, factors)

    def show_forecasts(self, pool: str, rates: Mapping[str, float]) -> None:
        """Show the forecast requests per second of a pool's Inferences, and remove those of other Inferences of the pool."""
        _show_inferences(self._forecast, self._forecasts, pool, rates)

    def show_deadlines(self, pool: str, shortfalls: Mapping[str, float]) -> None:
        """Show the messages per second that a pool's Inferences lack for their deadlines, and remove the values of all others."""
        _show_inferences(self._deadlines, self._shortfalls, pool, shortfalls)

    def show_offers(self, pool: str, values: Mapping[str, float]) -> None:
        """Show the value per second that a pool's Inferences were offered, and remove that of other Inferences of the pool."""
        _show_inferences(self._offered, self._offers, pool, values)

    def show_values(self, pool: str, values: Mapping[str, Mapping[str, float]]) -> None:
        """Show the value per second of a pool's Inferences by outcome, and remove that of other Inferences of the pool."""
        shown = self._values.get(pool, {})
        for removed in shown.keys() - values.keys():
            for outcome in shown[removed]:
                self._value.remove(pool, removed, outcome)
        for inference, by_outcome in values.items():
            for outcome, amount in by_outcome.items():
                self._value.labels(pool, inference, outcome).set(amount)
        self._values[pool] = values

    def show_due(self, pool: str, *, interval_s: float, now_s: float) -> None:
        """Show the interval within which a pool must be decided, from the first call on; `now_s` is in seconds since 1970."""
        self._interval.labels(pool).set(interval_s)
        if pool not in self._waiting:
            self._waiting.add(pool)
            self._due.labels(pool).set(now_s)

    def show_decided(self, pool: str, *, now_s: float, signals_usable: bool) -> None:
        """Show that a pool was decided at a time in seconds since 1970."""
        self._decided.labels(pool).set(now_s)
        if signals_usable:
            self._signals.labels(pool).set(now_s)

    def hide_pool(self, pool: str) -> None:
        """Remove the times and values of a pool without Inferences to decide about, so that no alert fires."""
        self.show_deadlines(pool, {})
        self.show_offers(pool, {})
        self.show_values(pool, {})
        self._waiting.discard(pool)
        for gauge in (self._interval, self._due, self._decided, self._signals):
            with contextlib.suppress(KeyError):
                gauge.remove(pool)

    def forget_pool(self, pool: str) -> None:
        """Remove all metrics of a deleted pool."""
        self.hide_pool(pool)
        self.show_corrections(pool, {})
        self.show_forecasts(pool, {})
        with contextlib.suppress(KeyError):
            self.overrides.remove(pool)

    def clear(self) -> None:
        """Remove all current values at the end of a term: the next leader reports them."""
        for gauge in (
            self.overrides,
            self._factor,
            self._forecast,
            self._deadlines,
            self._offered,
            self._value,
            self._interval,
            self._due,
            self._decided,
            self._signals,
        ):
            gauge.clear()
        self._factors.clear()
        self._forecasts.clear()
        self._shortfalls.clear()
        self._offers.clear()
        self._values.clear()
        self._waiting.clear()


def _show_inferences(
    gauge: Gauge, shown: dict[str, Mapping[str, float]], pool: str, values: Mapping[str, float]
) -> None:
    """Set the value of each Inference of a pool, and remove those in `shown` that have none any more."""
    for removed in shown.get(pool, {}).keys() - values.keys():
        gauge.remove(pool, removed)
    for name, value in values.items():
        gauge.labels(pool, name).set(value)
    shown[pool] = values
