"""The claims on one pool, and how many replicas of each get slices, kept up to date change by change.

Assigned slices are sticky. Only pending replicas queue, by tier and then by creation time; warm spares queue after the replicas
of all tiers. So starting or losing a pod never moves another Inference.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tidegate.api.compute_pool import ComputePool
from tidegate.api.inference import Tier
from tidegate.api.meta import ObjectKey
from tidegate.api.reasons import Reason
from tidegate.planning.pools.claims import PoolClaim
from tidegate.planning.pools.compute_pool import judge_readiness
from tidegate.planning.pools.pool_slices import PoolSlices
from tidegate.planning.pools.slice_queue import PendingReplicas, SliceQueue
from tidegate.resources.slices import PlacementRefusal, refuse_replica

ASSIGNING_REASONS: Final = frozenset({Reason.POOL_READY, Reason.FLOORS_EXCEED_POOL})
"""Reasons of the condition Ready of a pool that assigns slices."""


def refuse_claim(pool: ComputePool, slices: PoolSlices, claim: PoolClaim) -> PlacementRefusal | None:
    """Return why the pool can place no replica of the claim, however many slices are free; None if it can."""
    refusal = refuse_replica(pool, claim.slices, claim.model)
    if refusal is not None or claim.slices <= slices.largest_node:
        return refusal
    message = (
        f"a replica wants {claim.slices} slices on one node, and the largest has {slices.largest_node}: "
        f"set spec.placement.slices to {slices.largest_node} at most, and more replicas instead"
    )
    return PlacementRefusal(Reason.TOO_MANY_SLICES, message)


class SliceLedger:
    """How many slices the claims of each tier have."""

    def __init__(self, assigned: Mapping[Tier, int] | None = None) -> None:
        """Begin with what each tier has; by default, with nothing."""
        self._assigned = dict.fromkeys(Tier, 0) if assigned is None else dict(assigned)

    @property
    def assigned_slices(self) -> Mapping[Tier, int]:
        """Slices by tier."""
        return self._assigned

    def assign_slices(self, tier: Tier, slices: int) -> None:
        """Count this many more slices for a tier."""
        self._assigned[tier] += slices

    def release_slices(self, tier: Tier, slices: int) -> None:
        """Count this many fewer slices for a tier."""
        self._assigned[tier] -= slices

    def count_room(self, tier: Tier, pool: ComputePool, slices: PoolSlices) -> int:
        """Return the slices that are left to a tier: none below the floors of other tiers, none above its ceiling.

        Negative if more are assigned than that.
        """
        bounds = pool.spec.tiers
        other_tiers = (other for other in Tier if other is not tier)
        reserved = sum(
            max(bounds.bounds_for(other).floor - self._assigned[other], 0) for other in other_tiers
        )
        room = slices.healthy - sum(self._assigned.values()) - reserved
        ceiling = bounds.bounds_for(tier).ceiling
        return room if ceiling is None else min(room, ceiling - self._assigned[tier])


@dataclass(frozen=True, slots=True)
class _CountedClaim:
    """A claim as it is counted."""

    claim: PoolClaim
    assigned: int
    """Slices that it has with the replicas that it keeps."""
    pending: tuple[PendingReplicas | None, PendingReplicas | None]
    """Its replicas that wait, and its warm spares that wait; None for none."""


_Queues = Mapping[Tier, SliceQueue]


class SliceAssignments:
    """How many replicas of each claim get slices, until the claims or the pool change."""

    def __init__(
        self,
        entries: Mapping[ObjectKey, _CountedClaim],
        rounds: Sequence[_Queues],
        ledger: SliceLedger,
        pool: ComputePool,
        slices: PoolSlices,
    ) -> None:
        """Serve the queues of all rounds; `ledger` has what the claims keep, and from here on what they get."""
        self.ledger = ledger
        self._entries = entries
        self._served: list[dict[Tier, tuple[SliceQueue, int]]] = []
        # A pool that takes no pods assigns nothing beyond what the claims keep.
        for queues in rounds if judge_readiness(pool, slices).reason in ASSIGNING_REASONS else ():
            served: dict[Tier, tuple[SliceQueue, int]] = {}
            for tier in Tier:
                room = ledger.count_room(tier, pool, slices)
                served[tier] = queues[tier], room
                ledger.assign_slices(tier, room - queues[tier].serve_entries(room))
            self._served.append(served)

    def count_replicas(self, key: ObjectKey) -> int:
        """Return how many replicas of one claim have slices: those that it keeps, and those that get some.

        Raises KeyError if there is no claim.
        """
        entry = self._entries[key]
        replicas = entry.claim.kept_replicas
        for served, pending in zip(self._served, entry.pending, strict=False):
            if pending is not None:
                queue, room = served[entry.claim.tier]
                replicas += pending.count_served(queue.find_room(pending, room))
        return replicas

    def find_gains(self) -> Mapping[ObjectKey, int]:
        """Return the replicas of each claim that gets more than it keeps."""
        gains: dict[ObjectKey, int] = {}
        for served in self._served:
            for queue, room in served.values():
                for pending, replicas in queue.find_served(room):
                    _, key = pending.rank
                    gains[key] = pending.placed + replicas
        return gains


class PoolClaims:
    """All claims on one pool, put and removed one by one."""

    def __init__(self, claims: Iterable[PoolClaim] = ()) -> None:
        self._by_key: dict[ObjectKey, PoolClaim] = {}
        self._changed: set[ObjectKey] = set()
        """Claims that differ from how they are counted."""
        self._entries: dict[ObjectKey, _CountedClaim] = {}
        self._of_nodes: set[ObjectKey] = set()
        """Claims whose count depends on which nodes are healthy."""
        self._rounds = tuple({tier: SliceQueue() for tier in Tier} for _ in range(2))
        """For replicas, and then for warm spares."""
        self._ledger = SliceLedger()
        """What the claims keep."""
        self._counted_for: tuple[ComputePool, PoolSlices] | None = None
        self._assignments: SliceAssignments | None = None
        for claim in claims:
            self.put_claim(claim)

    def __iter__(self) -> Iterator[PoolClaim]:
        return iter(self._by_key.values())

    def list_keys(self) -> Sequence[ObjectKey]:
        """Return the Inferences that have a claim."""
        return tuple(self._by_key)

    def find_pending(self) -> Sequence[ObjectKey]:
        """Return the Inferences that ask for more replicas than they keep."""
        return tuple(claim.key for claim in self._by_key.values() if claim.kept_replicas < claim.replicas)

    def put_claim(self, claim: PoolClaim) -> None:
        """Add a claim, or replace its Inference's claim."""
        if self._by_key.get(claim.key) != claim:
            self._by_key[claim.key] = claim
            self._changed.add(claim.key)

    def remove_claim(self, key: ObjectKey) -> None:
        """Remove the claim of an Inference, if there is one."""
        if self._by_key.pop(key, None) is not None:
            self._changed.add(key)

    def assign_slices(self, pool: ComputePool, slices: PoolSlices) -> SliceAssignments:
        """Assign the `slices` of `pool` to the replicas of all claims; costs what has changed since the last call."""
        self._mark_changed(pool, slices)
        if self._changed:
            for key in self._changed:
                self._count_claim(key, pool, slices)
            self._changed.clear()
            self._assignments = None
        if self._assignments is None:
            ledger = SliceLedger(self._ledger.assigned_slices)
            self._assignments = SliceAssignments(self._entries, self._rounds, ledger, pool, slices)
        return self._assignments

    def _mark_changed(self, pool: ComputePool, slices: PoolSlices) -> None:
        """Mark the claims whose count another spec or other nodes of the pool change."""
        before, self._counted_for = self._counted_for, (pool, slices)
        if before is None or (before[0] is not pool and before[0].spec != pool.spec):
            self._changed.update(self._by_key)
        elif before[1] is slices:
            return
        elif before[1].largest_node != slices.largest_node:
            self._changed.update(self._by_key)
        elif before[1].healthy_nodes is not slices.healthy_nodes:
            self._changed.update(self._of_nodes)
        self._assignments = None

    def _count_claim(self, key: ObjectKey, pool: ComputePool, slices: PoolSlices) -> None:
        self._discount_claim(key)
        claim = self._by_key.get(key)
        if claim is None:
            return
        if claim.pods:
            self._of_nodes.add(key)
        assigned = claim.count_slices(claim.kept_replicas, slices.healthy_nodes)
        waits = claim.kept_replicas < claim.replicas and refuse_claim(pool, slices, claim) is None
        pending = _make_pending(claim, assigned) if waits else (None, None)
        self._entries[key] = _CountedClaim(claim, assigned, pending)
        self._ledger.assign_slices(claim.tier, assigned)
        for queues, replicas in zip(self._rounds, pending, strict=True):
            if replicas is not None:
                queues[claim.tier].insert_entry(replicas)

    def _discount_claim(self, key: ObjectKey) -> None:
        entry = self._entries.pop(key, None)
        self._of_nodes.discard(key)
        if entry is None:
            return
        tier = entry.claim.tier
        self._ledger.release_slices(tier, entry.assigned)
        for queues, pending in zip(self._rounds, entry.pending, strict=True):
            if pending is not None:
                queues[tier].remove_entry(pending)


def _make_pending(claim: PoolClaim, assigned: int) -> tuple[PendingReplicas | None, PendingReplicas | None]:
    """Return what waits of a claim: its replicas, and its warm spares.

    The spares are written as if all replicas had got their slices. Where they have not, there is no room for one replica more,
    and the room of a tier never grows while slices are assigned.
    """
    rank, needed = (claim.created, claim.key), claim.replicas - claim.spares
    replicas = spares = None
    placed = claim.kept_replicas
    if needed > placed:
        replicas = PendingReplicas(rank, claim.slices, placed, needed, assigned)
        placed, assigned = needed, max(assigned, needed * claim.slices)
    if claim.replicas > placed:
        spares = PendingReplicas(rank, claim.slices, placed, claim.replicas, assigned)
    return replicas, spares
