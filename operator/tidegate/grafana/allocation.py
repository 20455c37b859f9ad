"""The dashboard of the allocator: its decisions, its speed, and how fast compute moves."""

from __future__ import annotations

from typing import Final

from tidegate.grafana.panels import Dashboard, Panel, PanelQuery, PanelRow, PanelUnit
from tidegate.grafana.promql import (
    INFERENCE,
    NAMESPACE,
    OFFERED,
    POOL,
    RATE,
    histogram_quantile,
    or_zero,
    pool_series,
    replica_count,
)

_POOL: Final = 'pool=~"$pool"'


def _p50_and_p99(metric: str) -> tuple[PanelQuery, ...]:
    """Return queries for the median and the p99 of a histogram, by pool."""
    return tuple(
        PanelQuery(
            histogram_quantile(share, metric, by="pool", matchers=_POOL), f"{{{{pool}}}} p{share * 100:.0f}"
        )
        for share in (0.5, 0.99)
    )


ALLOCATION: Final = Dashboard(
    uid="tidegate-allocation",
    title="Tidegate / Allocation",
    description="The allocator's decisions about slices, how long they take, and how soon the slices have moved.",
    variables=(POOL, NAMESPACE, INFERENCE),
    rows=(
        PanelRow(
            "Demand and supply",
            (
                Panel(
                    title="Demand by Inference",
                    description="Requests per second that clients send. The allocator plans for this demand, or for the expected one where that is higher.",
                    queries=(PanelQuery(OFFERED, "{{namespace}}/{{inference}}"),),
                    unit=PanelUnit.REQUESTS_PER_SECOND,
                ),
                Panel(
                    title="Value served, refused, lost",
                    description="Value per second of the requests of the pool's Inferences: served, refused by a limit or by admission control, or lost because they failed or had no answer.",
                    queries=(
                        PanelQuery(
                            f"max by (pool, outcome) ({pool_series('tidegate_pool_value_per_second')})",
                            "{{pool}} {{outcome}}",
                        ),
                    ),
                ),
                Panel(
                    title="Forecast by Inference",
                    description="Highest demand that is expected until a replica that starts at the next decision serves, or within spec.policy.forecast.horizon where no load time is measured, or by an event of spec.policy.events that is near; only where the pool forecasts it or plans for an event.",
                    queries=(
                        PanelQuery(
                            f"max by (pool, inference) ({pool_series('tidegate_allocator_forecast_rate')})",
                            "{{inference}}",
                        ),
                    ),
                    unit=PanelUnit.REQUESTS_PER_SECOND,
                ),
                Panel(
                    title="Deadlines of streams, messages per second short",
                    description="What ready replicas lack to answer messages within spec.nearline.maxDelay; 0 while the deadline is kept.",
                    queries=(
                        PanelQuery(
                            f"max by (pool, inference) ({pool_series('tidegate_allocator_deadline_shortfall_rate')})",
                            "{{inference}}",
                        ),
                    ),
                    unit=PanelUnit.REQUESTS_PER_SECOND,
                ),
                Panel(
                    title="Desired replicas by Inference",
                    description="With spec.scaling, the replicas that the allocator decided. Ready replicas follow after the time that a move takes.",
                    queries=(
                        PanelQuery(
                            replica_count("desired"),
                            "{{namespace}}/{{name}}",
                        ),
                    ),
                    stacked=True,
                ),
                Panel(
                    title="Ready replicas by Inference",
                    description="Pods that serve requests.",
                    queries=(
                        PanelQuery(
                            replica_count("ready"),
                            "{{namespace}}/{{name}}",
                        ),
                    ),
                    stacked=True,
                ),
            ),
        ),
        PanelRow(
            "Decisions",
            (
                Panel(
                    title="Decisions",
                    description="AllocationDecisions written, by mode. The allocator writes one only when an assignment changes.",
                    queries=(
                        PanelQuery(
                            f"sum by (pool, mode) (increase({pool_series('tidegate_allocator_decisions_total')}[{RATE}]))",
                            "{{pool}} {{mode}}",
                        ),
                    ),
                ),
                Panel(
                    title="Slices moved",
                    description="Slices that tiers gave and took. In mode RecommendOnly, slices that would have moved.",
                    queries=(
                        PanelQuery(
                            f"sum by (pool, tier, direction, mode) (increase({pool_series('tidegate_allocator_moved_slices_total')}[{RATE}]))",
                            "{{pool}} {{tier}} {{direction}} {{mode}}",
                        ),
                    ),
                ),
                Panel(
                    title="Time to reclaim, p90",
                    description="From a decision until the pods that had to free slices have ended.",
                    queries=(
                        PanelQuery(
                            or_zero(histogram_quantile(0.9, "tidegate_allocator_reclaim_seconds", by="tier")),
                            "{{tier}}",
                        ),
                    ),
                    unit=PanelUnit.SECONDS,
                ),
                Panel(
                    title="Active overrides",
                    description="ComputeOverrides that have not ended. `kubectl get computeoverrides` shows their authors and expiry.",
                    queries=(
                        PanelQuery(
                            f"max by (pool) ({pool_series('tidegate_allocator_overrides')})", "{{pool}}"
                        ),
                    ),
                ),
                Panel(
                    title="Measured capacity factor",
                    description="Capacity that the allocator measured in production, relative to spec.capacity. If it is far from 1, measure the capacity again.",
                    queries=(
                        PanelQuery(
                            f"max by (pool, inference) ({pool_series('tidegate_allocator_capacity_factor')})",
                            "{{pool}} {{inference}}",
                        ),
                    ),
                ),
            ),
        ),
        PanelRow(
            "The solver",
            (
                Panel(
                    title="Time since the last decision",
                    description="Normally less than a few intervals (spec.policy.interval). If it keeps growing, the allocator does not run.",
                    queries=(
                        PanelQuery(
                            f"time() - max by (pool) ({pool_series('tidegate_allocator_decided_timestamp_seconds')})",
                            "{{pool}}",
                        ),
                        PanelQuery(
                            f"max by (pool) ({pool_series('tidegate_allocator_interval_seconds')})",
                            "{{pool}} interval",
                        ),
                    ),
                    unit=PanelUnit.SECONDS,
                    width=12,
                ),
                Panel(
                    title="Age of the signals",
                    description="Time since the last complete signals. With stale signals the allocator keeps the last demand and scales no Inference down.",
                    queries=(
                        PanelQuery(
                            f"time() - max by (pool) ({pool_series('tidegate_allocator_signals_timestamp_seconds')} > 0)",
                            "{{pool}}",
                        ),
                    ),
                    unit=PanelUnit.SECONDS,
                    width=12,
                ),
                Panel(
                    title="Time to solve",
                    description="p50 and p99 of one run of the solver for one pool.",
                    queries=_p50_and_p99("tidegate_allocator_solve_seconds"),
                    unit=PanelUnit.SECONDS,
                ),
                Panel(
                    title="Time of a tick",
                    description="p50 and p99 of one tick: reading signals (including queries to Prometheus), solving and writing.",
                    queries=_p50_and_p99("tidegate_allocator_tick_seconds"),
                    unit=PanelUnit.SECONDS,
                ),
                Panel(
                    title="Solves by method",
                    description="LP or MILP; Greedy if the solver found no solution in time.",
                    queries=(
                        PanelQuery(
                            f"sum by (pool, solver) (rate({pool_series('tidegate_allocator_solves_total')}[{RATE}]))",
                            "{{pool}} {{solver}}",
                        ),
                    ),
                    unit=PanelUnit.PER_SECOND,
                    stacked=True,
                ),
            ),
        ),
    ),
)
