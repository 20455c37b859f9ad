"""Compare the demand of each tier of a pool with its slices, from the last input of the solver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidegate.api.compute_pool import ComputePool
from tidegate.api.inference import Tier
from tidegate.reports.plan import InferenceOutcomeReport


@dataclass(frozen=True, slots=True)
class TierDemand:
    """Demand and slices of one tier, of all Inferences that the allocator decides about."""

    tier: Tier
    inferences: int
    unknown: int
    """Inferences with unknown demand; only the sums of slices that they have include them."""
    needed_slices: int
    """Slices that would serve the whole demand."""
    current_slices: int
    planned_slices: int
    """Slices after the decision that the solver would make now."""
    demand: float
    """Requests per second; in tier offline, slices."""
    serves: float
    would_serve: float
    floor: int
    ceiling: int | None


def sum_demand(inferences: Sequence[InferenceOutcomeReport], pool: ComputePool) -> tuple[TierDemand, ...]:
    """Return the demand of every tier, in the tiers' order."""
    return tuple(
        _sum_tier(tier, [inference for inference in inferences if inference.tier is tier], pool)
        for tier in Tier
    )


def _sum_tier(tier: Tier, inferences: Sequence[InferenceOutcomeReport], pool: ComputePool) -> TierDemand:
    bounds = pool.spec.tiers.bounds_for(tier)
    with_demand = [inference for inference in inferences if inference.demand is not None]
    return TierDemand(
        tier,
        inferences=len(inferences),
        unknown=len(inferences) - len(with_demand),
        needed_slices=sum(inference.wanted or 0 for inference in inferences),
        current_slices=sum(inference.before * inference.slices for inference in inferences),
        planned_slices=sum(inference.after * inference.slices for inference in inferences),
        demand=sum(inference.demand or 0.0 for inference in with_demand),
        serves=sum(min(inference.serves, inference.demand or 0.0) for inference in with_demand),
        would_serve=sum(min(inference.would_serve, inference.demand or 0.0) for inference in with_demand),
        floor=bounds.floor,
        ceiling=bounds.ceiling,
    )
