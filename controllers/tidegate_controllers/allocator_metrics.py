"""What the allocator tells Prometheus."""

from collections.abc import Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SOLVE_S: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2, 5)
_RECLAIM_S: Final = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600)


class AllocatorMetrics:
    """Decisions, moves, and how long they took."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.solve_seconds = Histogram(
            "tidegate_allocator_solve_seconds",
            "One solve of one pool.",
            ("pool",),
            registry=registry,
            buckets=_SOLVE_S,
        )
        self.tick_seconds = Histogram(
            "tidegate_allocator_tick_seconds",
            "One pass that decided: what is there was looked at, solved, and what is new was written.",
            ("pool",),
            registry=registry,
            buckets=_SOLVE_S,
        )
        self.solves = Counter(
            "tidegate_allocator_solves_total",
            "Solves by how the answer was found.",
            ("pool", "solver"),
            registry=registry,
        )
        self.decisions = Counter(
            "tidegate_allocator_decisions_total", "Decisions written.", ("pool", "mode"), registry=registry
        )
        self.moved_slices = Counter(
            "tidegate_allocator_moved_slices_total",
            "Slices that decisions move, whether they are carried out or not.",
            ("pool", "mode", "tier", "direction"),
            registry=registry,
        )
        self.reclaim_seconds = Histogram(
            "tidegate_allocator_reclaim_seconds",
            "From a decision until the pods that gave their slices were gone.",
            ("tier",),
            registry=registry,
            buckets=_RECLAIM_S,
        )
        self.overrides = Gauge(
            "tidegate_allocator_overrides",
            "Overrides in force about a pool or its Inferences.",
            ("pool",),
            registry=registry,
        )
        self._factor = Gauge(
            "tidegate_allocator_capacity_factor",
            "What an Inference is planned to serve by what production says, against its spec.capacity.",
            ("pool", "inference"),
            registry=registry,
        )
        self._factors: dict[str, Mapping[str, float]] = {}

    def corrected(self, pool: str, factors: Mapping[str, float]) -> None:
        """By how much capacities of a pool's Inferences are corrected; of others of the pool nothing is said any more."""
        for gone in self._factors.get(pool, {}).keys() - factors.keys():
            self._factor.remove(pool, gone)
        for name, factor in factors.items():
            self._factor.labels(pool, name).set(factor)
        self._factors[pool] = factors
