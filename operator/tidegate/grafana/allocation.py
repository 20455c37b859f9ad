"""The allocator: what it decides, how long it takes, and what moving costs."""

from __future__ import annotations

from typing import Final

from tidegate.grafana.panels import Dashboard, Panel, Query, Row, Unit
from tidegate.grafana.selecting import (
    INFERENCE,
    NAMESPACE,
    OFFERED,
    POOL,
    RATE,
    of_pools,
    or_none,
    quantile,
    replicas,
)

_POOL: Final = 'pool=~"$pool"'


def _p50_and_p99(metric: str) -> tuple[Query, ...]:
    """Of a histogram of each pool's."""
    return tuple(
        Query(quantile(share, metric, by="pool", matchers=_POOL), f"{{{{pool}}}} p{share * 100:.0f}")
        for share in (0.5, 0.99)
    )


ALLOCATION: Final = Dashboard(
    uid="tidegate-allocation",
    title="Tidegate / Allocation",
    description="What the allocator decides about slices, how long it takes, and how soon compute has moved.",
    variables=(POOL, NAMESPACE, INFERENCE),
    rows=(
        Row(
            "Demand and supply",
            (
                Panel(
                    title="Demand by Inference",
                    description="Requests per second that clients send: what the allocator plans for.",
                    queries=(Query(OFFERED, "{{namespace}}/{{inference}}"),),
                    unit=Unit.REQUESTS_PER_SECOND,
                ),
                Panel(
                    title="Replicas wanted by Inference",
                    description="With spec.scaling, what was decided. Between this and those ready lies the time that a move takes.",
                    queries=(
                        Query(
                            replicas("wanted"),
                            "{{namespace}}/{{name}}",
                        ),
                    ),
                    stacked=True,
                ),
                Panel(
                    title="Replicas ready by Inference",
                    description="Pods that answer.",
                    queries=(
                        Query(
                            replicas("ready"),
                            "{{namespace}}/{{name}}",
                        ),
                    ),
                    stacked=True,
                ),
            ),
        ),
        Row(
            "Decisions",
            (
                Panel(
                    title="Decisions",
                    description="AllocationDecisions written, by mode; one is written when something is to change.",
                    queries=(
                        Query(
                            f"sum by (pool, mode) (increase({of_pools('tidegate_allocator_decisions_total')}[{RATE}]))",
                            "{{pool}} {{mode}}",
                        ),
                    ),
                ),
                Panel(
                    title="Slices moved",
                    description="By tier, given and taken. Of mode RecommendOnly, what would have moved.",
                    queries=(
                        Query(
                            f"sum by (pool, tier, direction, mode) (increase({of_pools('tidegate_allocator_moved_slices_total')}[{RATE}]))",
                            "{{pool}} {{tier}} {{direction}} {{mode}}",
                        ),
                    ),
                ),
                Panel(
                    title="Time to reclaim, p90",
                    description="From a decision until the pods that gave their slices were gone.",
                    queries=(
                        Query(
                            or_none(quantile(0.9, "tidegate_allocator_reclaim_seconds", by="tier")),
                            "{{tier}}",
                        ),
                    ),
                    unit=Unit.SECONDS,
                ),
                Panel(
                    title="Overrides in force",
                    description="Decisions of people over the allocator's. `kubectl get computeoverrides` says whose and until when.",
                    queries=(
                        Query(f"max by (pool) ({of_pools('tidegate_allocator_overrides')})", "{{pool}}"),
                    ),
                ),
                Panel(
                    title="Capacity as production shows it",
                    description="What an Inference is planned to serve by what it does, against its spec.capacity: far from 1, measure again.",
                    queries=(
                        Query(
                            f"max by (pool, inference) ({of_pools('tidegate_allocator_capacity_factor')})",
                            "{{pool}} {{inference}}",
                        ),
                    ),
                ),
            ),
        ),
        Row(
            "The solver",
            (
                Panel(
                    title="Since a pool was decided about",
                    description="It stays below a few times spec.policy.interval; beyond, nobody decides.",
                    queries=(
                        Query(
                            f"time() - max by (pool) ({of_pools('tidegate_allocator_decided_timestamp_seconds')})",
                            "{{pool}}",
                        ),
                        Query(
                            f"max by (pool) ({of_pools('tidegate_allocator_interval_seconds')})",
                            "{{pool}} interval",
                        ),
                    ),
                    unit=Unit.SECONDS,
                    width=12,
                ),
                Panel(
                    title="Age of the signals",
                    description="Since figures of demand last came whole. Old ones are held, and nothing is taken away by them.",
                    queries=(
                        Query(
                            f"time() - max by (pool) ({of_pools('tidegate_allocator_signals_timestamp_seconds')} > 0)",
                            "{{pool}}",
                        ),
                    ),
                    unit=Unit.SECONDS,
                    width=12,
                ),
                Panel(
                    title="Time to solve",
                    description="p50 and p99 of one solve of one pool.",
                    queries=_p50_and_p99("tidegate_allocator_solve_seconds"),
                    unit=Unit.SECONDS,
                ),
                Panel(
                    title="Time to decide",
                    description="p50 and p99 of one pass: looking, solving, writing; Prometheus, where signals come from there, is part of it.",
                    queries=_p50_and_p99("tidegate_allocator_tick_seconds"),
                    unit=Unit.SECONDS,
                ),
                Panel(
                    title="How answers were found",
                    description="LP or MILP; Greedy where the solver had none in time.",
                    queries=(
                        Query(
                            f"sum by (pool, solver) (rate({of_pools('tidegate_allocator_solves_total')}[{RATE}]))",
                            "{{pool}} {{solver}}",
                        ),
                    ),
                    unit=Unit.PER_SECOND,
                    stacked=True,
                ),
            ),
        ),
    ),
)
