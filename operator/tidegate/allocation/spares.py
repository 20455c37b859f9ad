"""Warm spares of the pools: replicas that are loaded without traffic and promoted before any pod could start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tidegate.allocation.assignment import Assignment
from tidegate.allocation.snapshot import AllocationSnapshot, ModelInput, PlacementInput, PoolInput

_LOADED_FACTOR: Final = 2.0
"""Factor by which a loaded spare's value counts more than another's, because loading takes time."""


@dataclass(frozen=True, slots=True)
class WarmSpare:
    """Number of replicas of an Inference in a pool that stay loaded and get no requests."""

    inference: str
    pool: str
    replicas: int
    slices: int


@dataclass(frozen=True, slots=True)
class _SpareCandidate:
    """Real-time Inference that may have spares in a pool."""

    model: ModelInput
    placement: PlacementInput
    target: int

    @property
    def loaded_replicas(self) -> int:
        """Return the replicas that are loaded, or load, beyond the target."""
        replicas = self.placement.replicas
        return max(replicas.current + replicas.spare - self.target, 0)

    def max_spares(self, pool: PoolInput) -> int:
        """Return the limit of its spares: within its maximum, and in a frozen pool those that are loaded."""
        bound = self.model.bounds.ceiling
        limit = pool.slices if bound is None else max(bound - self.target, 0)
        return min(limit, self.loaded_replicas) if pool.hold else limit

    def promised_value(self, number: int) -> float:
        """Return the value per second and per slice that its spare of this number (from 0) promises.

        That is the value of what the replica would serve, times the load of the Inference's other replicas: at half load, half of
        it counts. Without signals it promises nothing.
        """
        load, curve, before = self.model.load, self.placement.curve, self.target + number
        if load is None:
            return 0.0
        capacity, demand = curve.rate_at(before), max(load.rates)
        load_share = min(demand / capacity, 1.0) if capacity > 0 else 1.0
        added_rate = curve.rate_at(before + 1) - capacity
        loaded_factor = _LOADED_FACTOR if number < self.loaded_replicas else 1.0
        return self.model.value * added_rate * load_share * loaded_factor / self.placement.slices

    def rank_key(self, number: int) -> tuple[float, bool, str]:
        """Return the key that sorts candidates for a spare of this number; the smallest comes first."""
        return -self.promised_value(number), number >= self.loaded_replicas, self.model.key


def choose_warm_spares(snapshot: AllocationSnapshot, assignment: Assignment) -> tuple[WarmSpare, ...]:
    """Choose the spares of all pools within the slices that the assignment leaves free, the most promising first.

    Every Inference gets one before any gets a second. Of equal ones a loaded replica comes first, then the name decides, so
    that equal inputs give equal spares.
    """
    targets = {(assigned.inference, assigned.pool): assigned.replicas for assigned in assignment.replicas}
    spares: list[WarmSpare] = []
    for pool in snapshot.pools:
        spares += _choose_in_pool(snapshot, pool, targets)
    return tuple(spares)


def _choose_in_pool(
    snapshot: AllocationSnapshot, pool: PoolInput, targets: Mapping[tuple[str, str], int]
) -> Sequence[WarmSpare]:
    in_pool = [
        (model, placement)
        for model in snapshot.inferences
        for placement in model.placements
        if placement.pool == pool.name
    ]
    assigned = sum(targets[model.key, pool.name] * placement.slices for model, placement in in_pool)
    free = min(pool.slices - assigned, pool.spares, _slices_below_ceiling(pool, in_pool, targets))
    candidates = [
        _SpareCandidate(model, placement, targets[model.key, pool.name])
        for model, placement in in_pool
        if model.tier.traits.has_warm_spares
    ]
    spares: dict[str, int] = {}
    number = 0
    while free > 0:
        round_ = [
            candidate
            for candidate in candidates
            if spares.get(candidate.model.key, 0) == number < candidate.max_spares(pool)
        ]
        for candidate in sorted(round_, key=lambda rival: rival.rank_key(number)):
            if candidate.placement.slices <= free:
                free -= candidate.placement.slices
                spares[candidate.model.key] = number + 1
        number += 1
        if number not in spares.values():
            break
    slices = {candidate.model.key: candidate.placement.slices for candidate in candidates}
    return [WarmSpare(key, pool.name, count, slices[key]) for key, count in spares.items()]


def _slices_below_ceiling(
    pool: PoolInput,
    in_pool: Sequence[tuple[ModelInput, PlacementInput]],
    targets: Mapping[tuple[str, str], int],
) -> int:
    """Return the slices that the tier may still have; spares count in it."""
    ceiling = next((rule.ceiling for rule in pool.tiers if rule.tier.traits.has_warm_spares), None)
    if ceiling is None:
        return pool.slices
    assigned = sum(
        targets[model.key, pool.name] * placement.slices
        for model, placement in in_pool
        if model.tier.traits.has_warm_spares
    )
    return ceiling - assigned
