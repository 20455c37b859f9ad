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
from tidegate.planning.claims import Claim
from tidegate.planning.compute_pool import readiness
from tidegate.planning.pool_slices import PoolSlices
from tidegate.planning.slice_queue import PendingReplicas, SliceQueue
from tidegate.resources.slices import PlacementRefusal, refuse_replica

ASSIGNING_REASONS: Final = frozenset({Reason.POOL_READY, Reason.FLOORS_EXCEED_POOL})
"""Reasons of the condition Ready of a pool that assigns slices."""


def refuse_claim(pool: ComputePool, slices: PoolSlices, claim: Claim) -> PlacementRefusal | None:
    """Return why the pool can place no replica of the claim, however many slices are free; None if it can."""
    refusal = refuse_replica(pool, claim.slices, claim.model)
    if refusal is not None or claim.slices <= slices.largest:
        return refusal
    message = (
        f"a replica wants {claim.slices} slices on one node, and the largest has {slices.largest}: "
        f"set spec.placement.slices to {slices.largest} at most, and more replicas instead"
    )
    return PlacementRefusal(Reason.TOO_MANY_SLICES, message)


class Ledger:
    """How many slices the claims of each tier have."""

    def __init__(self, assigned: Mapping[Tier, int] | None = None) -> None:
        """Begin with what each tier has; by default, with nothing."""
        self._assigned = dict.fromkeys(Tier, 0) if assigned is None else dict(assigned)

    @property
    def assigned(self) -> Mapping[Tier, int]:
        """Slices by tier."""
        return self._assigned

    def assign(self, tier: Tier, slices: int) -> None:
        """Count so many more slices as those of a tier."""
        self._assigned[tier] += slices

    def release(self, tier: Tier, slices: int) -> None:
        """Count so many slices of a tier no longer."""
        self._assigned[tier] -= slices

    def count_room(self, tier: Tier, pool: ComputePool, slices: PoolSlices) -> int:
        """Return the slices that are left to a tier: none below the floors of other tiers, none above its ceiling.

        Negative if more are assigned than that.
        """
        bounds = pool.spec.tiers
        other_tiers = (other for other in Tier if other is not tier)
        reserved = sum(max(bounds.of(other).floor - self._assigned[other], 0) for other in other_tiers)
        room = slices.healthy - sum(self._assigned.values()) - reserved
        ceiling = bounds.of(tier).ceiling
        return room if ceiling is None else min(room, ceiling - self._assigned[tier])


@dataclass(frozen=True, slots=True)
class _Entry:
    """A claim as it is counted."""

    claim: Claim
    assigned: int
    """Slices that it has with the replicas that it keeps."""
    pending: tuple[PendingReplicas | None, PendingReplicas | None]
    """Its replicas that wait, and its warm spares that wait; None for none."""


_Queues = Mapping[Tier, SliceQueue]


class Assignments:
    """How many replicas of each claim get slices, until the claims or the pool change."""

    def __init__(
        self,
        entries: Mapping[ObjectKey, _Entry],
        rounds: Sequence[_Queues],
        ledger: Ledger,
        pool: ComputePool,
        slices: PoolSlices,
    ) -> None:
        """Serve the queues of all rounds; `ledger` has what the claims keep, and from here on what they get."""
        self.ledger = ledger
        self._entries = entries
        self._served: list[dict[Tier, tuple[SliceQueue, int]]] = []
        # A pool that takes no pods assigns nothing beyond what the claims keep.
        for queues in rounds if readiness(pool, slices).reason in ASSIGNING_REASONS else ():
            served: dict[Tier, tuple[SliceQueue, int]] = {}
            for tier in Tier:
                room = ledger.count_room(tier, pool, slices)
                served[tier] = queues[tier], room
                ledger.assign(tier, room - queues[tier].serve(room))
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

    def __init__(self, claims: Iterable[Claim] = ()) -> None:
        self._by_key: dict[ObjectKey, Claim] = {}
        self._changed: set[ObjectKey] = set()
        """Claims that differ from how they are counted."""
        self._entries: dict[ObjectKey, _Entry] = {}
        self._of_nodes: set[ObjectKey] = set()
        """Claims whose count depends on which nodes are healthy."""
        self._rounds = tuple({tier: SliceQueue() for tier in Tier} for _ in range(2))
        """For replicas, and then for warm spares."""
        self._ledger = Ledger()
        """What the claims keep."""
        self._counted_for: tuple[ComputePool, PoolSlices] | None = None
        self._assignments: Assignments | None = None
        for claim in claims:
            self.put(claim)

    def __iter__(self) -> Iterator[Claim]:
        return iter(self._by_key.values())

    def keys(self) -> Sequence[ObjectKey]:
        """Return the Inferences that have a claim."""
        return tuple(self._by_key)

    def find_pending(self) -> Sequence[ObjectKey]:
        """Return the Inferences that ask for more replicas than they keep."""
        return tuple(claim.key for claim in self._by_key.values() if claim.kept_replicas < claim.replicas)

    def put(self, claim: Claim) -> None:
        """Add a claim, or replace the one that its Inference has."""
        if self._by_key.get(claim.key) != claim:
            self._by_key[claim.key] = claim
            self._changed.add(claim.key)

    def remove(self, key: ObjectKey) -> None:
        """Remove the claim of an Inference, if there is one."""
        if self._by_key.pop(key, None) is not None:
            self._changed.add(key)

    def assign_slices(self, pool: ComputePool, slices: PoolSlices) -> Assignments:
        """Assign the `slices` of `pool` to the replicas of all claims; costs what has changed since the last call."""
        self._mark_changed(pool, slices)
        if self._changed:
            for key in self._changed:
                self._count(key, pool, slices)
            self._changed.clear()
            self._assignments = None
        if self._assignments is None:
            ledger = Ledger(self._ledger.assigned)
            self._assignments = Assignments(self._entries, self._rounds, ledger, pool, slices)
        return self._assignments

    def _mark_changed(self, pool: ComputePool, slices: PoolSlices) -> None:
        """Mark the claims whose count another spec or other nodes of the pool change."""
        before, self._counted_for = self._counted_for, (pool, slices)
        if before is None or (before[0] is not pool and before[0].spec != pool.spec):
            self._changed.update(self._by_key)
        elif before[1] is slices:
            return
        elif before[1].largest != slices.largest:
            self._changed.update(self._by_key)
        elif before[1].healthy_nodes is not slices.healthy_nodes:
            self._changed.update(self._of_nodes)
        self._assignments = None

    def _count(self, key: ObjectKey, pool: ComputePool, slices: PoolSlices) -> None:
        self._discount(key)
        claim = self._by_key.get(key)
        if claim is None:
            return
        if claim.pods:
            self._of_nodes.add(key)
        assigned = claim.count_slices(claim.kept_replicas, slices.healthy_nodes)
        waits = claim.kept_replicas < claim.replicas and refuse_claim(pool, slices, claim) is None
        pending = _make_pending(claim, assigned) if waits else (None, None)
        self._entries[key] = _Entry(claim, assigned, pending)
        self._ledger.assign(claim.tier, assigned)
        for queues, replicas in zip(self._rounds, pending, strict=True):
            if replicas is not None:
                queues[claim.tier].insert(replicas)

    def _discount(self, key: ObjectKey) -> None:
        entry = self._entries.pop(key, None)
        self._of_nodes.discard(key)
        if entry is None:
            return
        tier = entry.claim.tier
        self._ledger.release(tier, entry.assigned)
        for queues, pending in zip(self._rounds, entry.pending, strict=True):
            if pending is not None:
                queues[tier].remove(pending)


def _make_pending(claim: Claim, assigned: int) -> tuple[PendingReplicas | None, PendingReplicas | None]:
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
