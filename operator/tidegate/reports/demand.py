"""Compare the demand of each tier of a pool with its slices, from the last input of the solver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidegate.api.compute_pool import ComputePool
from tidegate.api.inference import Tier
from tidegate.reports.plan import AskedReport


@dataclass(frozen=True, slots=True)
class TierDemand:
    """Demand and slices of one tier, of all Inferences that the allocator decides about."""

    tier: Tier
    inferences: int
    unknown: int
    """Inferences with unknown demand; only the sums of slices that they have include them."""
    wanted: int
    """Slices that would serve the whole demand."""
    has: int
    would: int
    """Slices after the decision that the solver would make now."""
    demand: float
    """Requests per second; in tier offline, slices."""
    serves: float
    would_serve: float
    floor: int
    ceiling: int | None


def tiers_of(asked: Sequence[AskedReport], pool: ComputePool) -> tuple[TierDemand, ...]:
    """Return the demand of every tier, in the tiers' order."""
    return tuple(
        _tier(tier, [inference for inference in asked if inference.tier is tier], pool) for tier in Tier
    )


def _tier(tier: Tier, asked: Sequence[AskedReport], pool: ComputePool) -> TierDemand:
    bounds = pool.spec.tiers.of(tier)
    with_demand = [inference for inference in asked if inference.demand is not None]
    return TierDemand(
        tier,
        inferences=len(asked),
        unknown=len(asked) - len(with_demand),
        wanted=sum(inference.wanted or 0 for inference in asked),
        has=sum(inference.before * inference.slices for inference in asked),
        would=sum(inference.after * inference.slices for inference in asked),
        demand=sum(inference.demand or 0.0 for inference in with_demand),
        serves=sum(min(inference.serves, inference.demand or 0.0) for inference in with_demand),
        would_serve=sum(min(inference.would_serve, inference.demand or 0.0) for inference in with_demand),
        floor=bounds.floor,
        ceiling=bounds.ceiling,
    )
