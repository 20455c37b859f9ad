"""Whose replicas the warm spares of a pool are: loaded, without requests, and promoted before any pod could start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tidegate.allocation.assignment import Assignment
from tidegate.allocation.snapshot import Inference, Placement, Pool, Snapshot
from tidegate.api.inference import Tier

_STAYS: Final = 2.0
"""A replica that is there stays the spare until another would be worth so many times as much: loading takes time."""


@dataclass(frozen=True, slots=True)
class Spare:
    """`replicas` of an Inference in a pool are to be loaded and get no requests."""

    inference: str
    pool: str
    replicas: int
    slices: int


@dataclass(frozen=True, slots=True)
class _Candidate:
    inference: Inference
    placement: Placement
    target: int

    @property
    def there(self) -> int:
        """Replicas that are loaded, or load, and are not among those that are to serve."""
        replicas = self.placement.replicas
        return max(replicas.held + replicas.spare - self.target, 0)

    def most(self, pool: Pool) -> int:
        """Spares that it may have: within its maximum; where nothing is to move, those that are there."""
        bound = self.inference.bounds.most
        limit = pool.slices if bound is None else max(bound - self.target, 0)
        return min(limit, self.there) if pool.hold else limit

    def worth(self, number: int) -> float:
        """What its spare of this number (from 0) promises, per slice, in value per second.

        That is what the replica would serve if it were asked, as far as demand is on its way there: half of what the others
        serve is asked, half of it counts. Where nobody knows what is asked it promises nothing.
        """
        load, curve, before = self.inference.load, self.placement.curve, self.target + number
        if load is None:
            return 0.0
        capacity, asked = curve.at(before), max(load.rates)
        near = min(asked / capacity, 1.0) if capacity > 0 else 1.0
        more = curve.at(before + 1) - capacity
        stays = _STAYS if number < self.there else 1.0
        return self.inference.value * more * near * stays / self.placement.slices

    def rank(self, number: int) -> tuple[float, bool, str]:
        """Its place among those who could have a spare of this number; the least comes first."""
        return -self.worth(number), number >= self.there, self.inference.key


def warm_spares(snapshot: Snapshot, assignment: Assignment) -> tuple[Spare, ...]:
    """The spares of all pools, in what the assignment leaves free; in each pool those first that promise most.

    Everybody gets one before anybody gets a second. Of equals those come first that are there, and then it goes by name, so
    that the same inputs give the same spares.
    """
    targets = {(each.inference, each.pool): each.replicas for each in assignment.replicas}
    found: list[Spare] = []
    for pool in snapshot.pools:
        found += _of_pool(snapshot, pool, targets)
    return tuple(found)


def _of_pool(snapshot: Snapshot, pool: Pool, targets: Mapping[tuple[str, str], int]) -> Sequence[Spare]:
    here = [
        (inference, placement)
        for inference in snapshot.inferences
        for placement in inference.placements
        if placement.pool == pool.name
    ]
    given = sum(targets[each.key, pool.name] * placement.slices for each, placement in here)
    room = min(pool.slices - given, pool.spares, _below_ceiling(pool, here, targets))
    candidates = [
        _Candidate(inference, placement, targets[inference.key, pool.name])
        for inference, placement in here
        if inference.tier is Tier.REALTIME
    ]
    spares: dict[str, int] = {}
    number = 0
    while room > 0:
        round_ = [
            each for each in candidates if spares.get(each.inference.key, 0) == number < each.most(pool)
        ]
        for each in sorted(round_, key=lambda one: one.rank(number)):
            if each.placement.slices <= room:
                room -= each.placement.slices
                spares[each.inference.key] = number + 1
        number += 1
        if number not in spares.values():
            break
    slices = {each.inference.key: each.placement.slices for each in candidates}
    return [Spare(key, pool.name, count, slices[key]) for key, count in spares.items()]


def _below_ceiling(
    pool: Pool, here: Sequence[tuple[Inference, Placement]], targets: Mapping[tuple[str, str], int]
) -> int:
    """Slices that the tier may still have; spares count in it."""
    ceiling = next((rule.ceiling for rule in pool.tiers if rule.tier is Tier.REALTIME), None)
    if ceiling is None:
        return pool.slices
    has = sum(
        targets[each.key, pool.name] * placement.slices
        for each, placement in here
        if each.tier is Tier.REALTIME
    )
    return ceiling - has
