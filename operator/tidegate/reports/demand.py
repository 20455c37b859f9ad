"""What is asked of each tier of a pool against what it has, from what the allocator asked its solver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidegate.api.compute_pool import ComputePool
from tidegate.api.inference import Tier
from tidegate.reports.plan import AskedReport


@dataclass(frozen=True, slots=True)
class TierDemand:
    """One tier's, of all Inferences that the allocator decides about."""

    tier: Tier
    inferences: int
    unknown: int
    """Of those: how many whose demand nobody knows; they are in none of the sums but `has` and `would`."""
    wanted: int
    """Slices that would serve all that is asked."""
    has: int
    would: int
    """Slices by the decision that the solver would make now."""
    demand: float
    """Requests per second; offline: slices."""
    serves: float
    would_serve: float
    floor: int
    ceiling: int | None


def tiers_of(asked: Sequence[AskedReport], pool: ComputePool) -> tuple[TierDemand, ...]:
    """Every tier's, in their order."""
    return tuple(_tier(tier, [each for each in asked if each.tier is tier], pool) for tier in Tier)


def _tier(tier: Tier, asked: Sequence[AskedReport], pool: ComputePool) -> TierDemand:
    bounds = pool.spec.tiers.of(tier)
    known = [each for each in asked if each.demand is not None]
    return TierDemand(
        tier,
        inferences=len(asked),
        unknown=len(asked) - len(known),
        wanted=sum(each.wanted or 0 for each in asked),
        has=sum(each.before * each.slices for each in asked),
        would=sum(each.after * each.slices for each in asked),
        demand=sum(each.demand or 0.0 for each in known),
        serves=sum(min(each.serves, each.demand or 0.0) for each in known),
        would_serve=sum(min(each.would_serve, each.demand or 0.0) for each in known),
        floor=bounds.floor,
        ceiling=bounds.ceiling,
    )
