"""Sharing out: how the slices of a pool are divided among those that claim some, all of them at once."""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

from tidegate.api.compute_pool import ComputePool, Tiers
from tidegate.api.inference import Tier
from tidegate.api.meta import ObjectKey
from tidegate.api.reasons import Reason
from tidegate.planning.claims import Claim
from tidegate.planning.compute_pool import readiness
from tidegate.planning.pool_slices import PoolSlices
from tidegate.resources.slices import PlacementRefusal, refuse_replica

STILL_GIVES: Final = frozenset({Reason.POOL_READY, Reason.FLOORS_EXCEED_POOL})
"""What a pool says of itself while it takes pods."""


def share_out(pool: ComputePool, slices: PoolSlices, claims: Sequence[Claim]) -> Mapping[ObjectKey, int]:
    """Pods for every claim: those that it has, and for the rest what is left to its tier, by tier and age; spares last."""
    given = {each.key: each.kept for each in claims}
    if readiness(pool, slices).reason not in STILL_GIVES:
        return given
    ledger, order = Ledger.of(pool, slices, claims, given), {tier: rank for rank, tier in enumerate(Tier)}
    admission = Admission.of(pool, slices)
    waiting = [each for each in claims if each.kept < each.replicas]
    waiting.sort(key=lambda one: (order[one.tier], one.made, one.key))
    wanted = [(each, each.replicas - each.spares) for each in waiting]
    wanted += [(each, each.replicas) for each in waiting if each.spares]
    for each, replicas in wanted:
        before = given[each.key]
        has = each.has(before, ledger.nodes)
        # What it has beyond that, of another size or on its way out, is room for itself and for nobody else.
        left = ledger.room(each.tier) + has - before * each.slices
        more = min(replicas - before, left // each.slices)
        if more > 0 and admission.refusal(each) is None:
            given[each.key] += more
            ledger.has[each.tier] += each.has(given[each.key], ledger.nodes) - has
    return given


@dataclass(frozen=True, slots=True)
class Ledger:
    """Who has how many slices, and who may have more."""

    bounds: Tiers
    healthy: int
    nodes: Container[str]
    """Those whose slices are counted in `healthy`."""
    has: dict[Tier, int]

    @classmethod
    def of(
        cls, pool: ComputePool, slices: PoolSlices, claims: Iterable[Claim], given: Mapping[ObjectKey, int]
    ) -> Self:
        """What everybody has with so many replicas."""
        has, nodes = dict.fromkeys(Tier, 0), slices.healthy_nodes
        for each in claims:
            has[each.tier] += each.has(given[each.key], nodes)
        return cls(pool.spec.tiers, slices.healthy, nodes, has)

    def room(self, tier: Tier) -> int:
        """Slices for more replicas of a tier: not those that floors keep for others, nor above its ceiling.

        Below zero where more has been given than that.
        """
        others = (other for other in Tier if other is not tier)
        kept = sum(max(self.bounds.of(other).floor - self.has[other], 0) for other in others)
        left = self.healthy - sum(self.has.values()) - kept
        ceiling = self.bounds.of(tier).ceiling
        return left if ceiling is None else min(left, ceiling - self.has[tier])


@dataclass(frozen=True, slots=True)
class Admission:
    """Whom a pool takes at all, however many slices are free."""

    pool: ComputePool
    largest: int
    """Slices of the largest node."""

    @classmethod
    def of(cls, pool: ComputePool, slices: PoolSlices) -> Self:
        """The rules of a pool as its nodes are now."""
        return cls(pool, slices.largest)

    def refusal(self, wanted: Claim) -> PlacementRefusal | None:
        """Why no replica of this Inference gets a place; None where it may."""
        said = refuse_replica(self.pool, wanted.slices, wanted.model)
        if said is not None or wanted.slices <= self.largest:
            return said
        message = (
            f"a replica wants {wanted.slices} slices on one node, and the largest has {self.largest}: "
            f"set spec.placement.slices to {self.largest} at most, and more replicas instead"
        )
        return PlacementRefusal(Reason.TOO_MANY_SLICES, message)
