"""Pools that share Inferences, and what a number of replicas for each scores there. Components do not know each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from tidegate.allocation.snapshot import Pool, Snapshot
from tidegate.allocation.worth import FLOOR_LEVELS, NOTHING, Level, Spot, Worth
from tidegate.api.inference import Tier

_SAME = 1e-9

Counts = tuple[tuple[int, ...], ...]
"""Replicas by Inference and by pool, in the order of the component's `worths` and their `spots`."""


@dataclass(frozen=True, slots=True)
class Score:
    """What each level misses, the first being the worst, and the value per second less what moving costs."""

    missed: tuple[float, ...]
    value: float

    def beats(self, other: Score) -> bool:
        """Whether this is better, in the order of the levels; rounding errors decide nothing."""
        for mine, theirs in zip(self.missed, other.missed, strict=True):
            if abs(mine - theirs) > _SAME * max(1.0, abs(theirs)):
                return mine < theirs
        return self.value > other.value + _SAME * max(1.0, abs(other.value))


@dataclass(frozen=True)
class Component:
    """Part of a snapshot that can be decided alone."""

    pools: tuple[Pool, ...]
    worths: tuple[Worth, ...]
    seed: int

    @cached_property
    def pool_index(self) -> dict[str, int]:
        """The place of each pool."""
        return {pool.name: number for number, pool in enumerate(self.pools)}

    @cached_property
    def held(self) -> Counts:
        """What there is now."""
        return tuple(tuple(spot.held for spot in worth.spots) for worth in self.worths)

    def score(self, counts: Counts) -> Score:
        """How good `counts` is; capacity is not part of it, since nothing may exceed it."""
        missed = [0.0] * len(Level)
        value = 0.0
        use = [PoolUse(pool) for pool in self.pools]
        for worth, replicas in zip(self.worths, counts, strict=True):
            value += worth.value(replicas) - worth.move_cost(replicas)
            levels = worth.levels(replicas)
            if levels is not NOTHING:
                for level, amount in enumerate(levels):
                    missed[level] += amount
            for spot, count in zip(worth.spots, replicas, strict=True):
                use[self.pool_index[spot.pool]].add(worth.inference.tier, spot, count)
        for each in use:
            for level, amount in enumerate(each.missed()):
                missed[level] += amount
        return Score(tuple(missed), value)

    def fits(self, counts: Counts) -> bool:
        """Whether no pool gives more slices than it has."""
        given = [0] * len(self.pools)
        for worth, replicas in zip(self.worths, counts, strict=True):
            for spot, count in zip(worth.spots, replicas, strict=True):
                given[self.pool_index[spot.pool]] += count * spot.slices
        return all(slices <= pool.slices for slices, pool in zip(given, self.pools, strict=True))


class PoolUse:
    """What is given of one pool: slices by tier, moved ones, and those moved against a dwell."""

    __slots__ = ("given", "moved", "pool", "tiers", "unripe")

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.given = self.moved = self.unripe = 0
        self.tiers: dict[Tier, int] = dict.fromkeys(Tier, 0)

    def add(self, tier: Tier, spot: Spot, count: int) -> None:
        """Counts the replicas of one spot."""
        self._count(tier, spot, count, 1)

    def remove(self, tier: Tier, spot: Spot, count: int) -> None:
        """Takes back what `add` counted."""
        self._count(tier, spot, count, -1)

    def _count(self, tier: Tier, spot: Spot, count: int, sign: int) -> None:
        self.given += sign * count * spot.slices
        self.tiers[tier] += sign * count * spot.slices
        moved = (count - spot.held) * spot.slices
        self.moved += sign * abs(moved)
        if (spot.frozen_up and moved > 0) or (spot.frozen_down and moved < 0):
            self.unripe += sign * abs(moved)

    def missed(self) -> tuple[float, ...]:
        """How far each level is missed by the pool, in slices."""
        return pool_missed(self.pool, self.given, self.tiers, self.moved, self.unripe)


def pool_missed(pool: Pool, given: int, tiers: dict[Tier, int], moved: int, unripe: int) -> tuple[float, ...]:
    """How far a pool's own rules are missed, by level, in slices (a tier's floor counts for less than a model's)."""
    missed = list(NOTHING)
    for rule in pool.tiers:
        level = FLOOR_LEVELS[rule.tier]
        missed[level] += max(rule.floor - tiers[rule.tier], 0) * TIER_FLOOR_WEIGHT[level]
        if rule.ceiling is not None:
            missed[Level.CEILING] += max(tiers[rule.tier] - rule.ceiling, 0)
    missed[Level.WARM_SPARES] += min(max(given + pool.spares - pool.slices, 0), pool.spares)
    if pool.movable is not None:
        missed[Level.BUDGET] += max(moved - pool.movable, 0)
    missed[Level.BUDGET] += unripe
    return tuple(missed)


TIER_FLOOR_WEIGHT = {Level.REALTIME_FLOOR: 1e-3, Level.NEARLINE_FLOOR: 1.0, Level.OFFLINE_FLOOR: 1.0}
"""A slice of a tier's floor against one of a model's: real-time models keep theirs by value, before their tier does."""


def components(snapshot: Snapshot) -> tuple[Component, ...]:
    """The snapshot in parts that share no pool, by their first pool's name."""
    pools = {pool.name: pool for pool in snapshot.pools}
    root = {name: name for name in pools}

    def find(name: str) -> str:
        while root[name] != name:
            root[name] = root[root[name]]
            name = root[name]
        return name

    for inference in snapshot.inferences:
        first, *others = sorted(find(placement.pool) for placement in inference.placements)
        for other in others:
            root[find(other)] = find(first)
    worths: dict[str, list[Worth]] = {}
    for inference in snapshot.inferences:
        worth = Worth(snapshot, inference, pools)
        worths.setdefault(find(inference.placements[0].pool), []).append(worth)
    members: dict[str, list[Pool]] = {}
    for pool in snapshot.pools:
        members.setdefault(find(pool.name), []).append(pool)
    return tuple(_component(members[name], worths.get(name, []), snapshot.seed) for name in sorted(members))


def _component(pools: Sequence[Pool], worths: Sequence[Worth], seed: int) -> Component:
    densest = max((worth.density for worth in worths), default=0.0)
    for worth in worths:
        if densest > 0:
            worth.weigh_floor(densest)
    return Component(tuple(pools), tuple(worths), seed)
