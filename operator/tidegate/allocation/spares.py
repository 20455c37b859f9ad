"""Warm spares of the pools: replicas that are loaded without traffic and promoted before any pod could start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tidegate.allocation.assignment import Assignment
from tidegate.allocation.snapshot import Inference, Placement, Pool, Snapshot
from tidegate.api.inference import Tier

_LOADED_FACTOR: Final = 2.0
"""Factor by which a loaded spare's value counts more than another's, because loading takes time."""


@dataclass(frozen=True, slots=True)
class Spare:
    """Number of replicas of an Inference in a pool that stay loaded and get no requests."""

    inference: str
    pool: str
    replicas: int
    slices: int


@dataclass(frozen=True, slots=True)
class _Candidate:
    """Real-time Inference that may have spares in a pool."""

    inference: Inference
    placement: Placement
    target: int

    @property
    def there(self) -> int:
        """Return the replicas that are loaded, or load, beyond the target."""
        replicas = self.placement.replicas
        return max(replicas.held + replicas.spare - self.target, 0)

    def most(self, pool: Pool) -> int:
        """Return the limit of its spares: within its maximum, and in a frozen pool those that are loaded."""
        bound = self.inference.bounds.most
        limit = pool.slices if bound is None else max(bound - self.target, 0)
        return min(limit, self.there) if pool.hold else limit

    def worth(self, number: int) -> float:
        """Return the value per second and per slice that its spare of this number (from 0) promises.

        That is the value of what the replica would serve, times the load of the Inference's other replicas: at half load, half of
        it counts. Without signals it promises nothing.
        """
        load, curve, before = self.inference.load, self.placement.curve, self.target + number
        if load is None:
            return 0.0
        capacity, demand = curve.at(before), max(load.rates)
        load_share = min(demand / capacity, 1.0) if capacity > 0 else 1.0
        added_rate = curve.at(before + 1) - capacity
        loaded_factor = _LOADED_FACTOR if number < self.there else 1.0
        return self.inference.value * added_rate * load_share * loaded_factor / self.placement.slices

    def rank(self, number: int) -> tuple[float, bool, str]:
        """Return the key that sorts candidates for a spare of this number; the smallest comes first."""
        return -self.worth(number), number >= self.there, self.inference.key


def warm_spares(snapshot: Snapshot, assignment: Assignment) -> tuple[Spare, ...]:
    """Choose the spares of all pools within the slices that the assignment leaves free, the most promising first.

    Every Inference gets one before any gets a second. Of equal ones a loaded replica comes first, then the name decides, so
    that equal inputs give equal spares.
    """
    targets = {(assigned.inference, assigned.pool): assigned.replicas for assigned in assignment.replicas}
    spares: list[Spare] = []
    for pool in snapshot.pools:
        spares += _of_pool(snapshot, pool, targets)
    return tuple(spares)


def _of_pool(snapshot: Snapshot, pool: Pool, targets: Mapping[tuple[str, str], int]) -> Sequence[Spare]:
    in_pool = [
        (model, placement)
        for model in snapshot.inferences
        for placement in model.placements
        if placement.pool == pool.name
    ]
    assigned = sum(targets[model.key, pool.name] * placement.slices for model, placement in in_pool)
    free = min(pool.slices - assigned, pool.spares, _below_ceiling(pool, in_pool, targets))
    candidates = [
        _Candidate(model, placement, targets[model.key, pool.name])
        for model, placement in in_pool
        if model.tier is Tier.REALTIME
    ]
    spares: dict[str, int] = {}
    number = 0
    while free > 0:
        round_ = [
            candidate
            for candidate in candidates
            if spares.get(candidate.inference.key, 0) == number < candidate.most(pool)
        ]
        for candidate in sorted(round_, key=lambda rival: rival.rank(number)):
            if candidate.placement.slices <= free:
                free -= candidate.placement.slices
                spares[candidate.inference.key] = number + 1
        number += 1
        if number not in spares.values():
            break
    slices = {candidate.inference.key: candidate.placement.slices for candidate in candidates}
    return [Spare(key, pool.name, count, slices[key]) for key, count in spares.items()]


def _below_ceiling(
    pool: Pool, in_pool: Sequence[tuple[Inference, Placement]], targets: Mapping[tuple[str, str], int]
) -> int:
    """Return the slices that the tier may still have; spares count in it."""
    ceiling = next((rule.ceiling for rule in pool.tiers if rule.tier is Tier.REALTIME), None)
    if ceiling is None:
        return pool.slices
    assigned = sum(
        targets[model.key, pool.name] * placement.slices
        for model, placement in in_pool
        if model.tier is Tier.REALTIME
    )
    return ceiling - assigned
