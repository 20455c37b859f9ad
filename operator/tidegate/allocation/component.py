"""Components of a snapshot (pools that share Inferences), and the score of replica counts in one of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from tidegate.allocation.snapshot import Pool, Snapshot
from tidegate.allocation.worth import FLOOR_LEVELS, NOTHING, Level, Spot, Worth
from tidegate.api.inference import Tier

_TOLERANCE = 1e-9

Counts = tuple[tuple[int, ...], ...]
"""Replicas by Inference and by pool, in the order of the component's `utilities` and their `options`."""


@dataclass(frozen=True, slots=True)
class Score:
    """Score of an assignment: the violation of each rule priority, the highest first, and the net value per second.

    The net value is the value of the requests that are served, less the cost of the moves.
    """

    missed: tuple[float, ...]
    value: float

    def beats(self, other: Score) -> bool:
        """Return whether this score is better, by priority and then by value; differences of rounding do not count."""
        for amount, other_amount in zip(self.missed, other.missed, strict=True):
            if abs(amount - other_amount) > _TOLERANCE * max(1.0, abs(other_amount)):
                return amount < other_amount
        return self.value > other.value + _TOLERANCE * max(1.0, abs(other.value))


@dataclass(frozen=True)
class Component:
    """Part of a snapshot that can be solved alone."""

    pools: tuple[Pool, ...]
    worths: tuple[Worth, ...]
    seed: int

    @cached_property
    def pool_index(self) -> dict[str, int]:
        """Return the index of each pool by its name."""
        return {pool.name: number for number, pool in enumerate(self.pools)}

    @cached_property
    def held(self) -> Counts:
        """Return the current replicas."""
        return tuple(tuple(option.held for option in utility.spots) for utility in self.worths)

    def score(self, counts: Counts) -> Score:
        """Return the score of `counts`, whether or not they fit the capacity."""
        violations = [0.0] * len(Level)
        value = 0.0
        use = [PoolUse(pool) for pool in self.pools]
        for utility, replicas in zip(self.worths, counts, strict=True):
            value += utility.value(replicas) - utility.move_cost(replicas)
            own = utility.levels(replicas)
            if own is not NOTHING:
                for priority, amount in enumerate(own):
                    violations[priority] += amount
            for option, count in zip(utility.spots, replicas, strict=True):
                use[self.pool_index[option.pool]].add(utility.inference.tier, option, count)
        for pool_use in use:
            for priority, amount in enumerate(pool_use.missed()):
                violations[priority] += amount
        return Score(tuple(violations), value)

    def fits(self, counts: Counts) -> bool:
        """Return whether no pool assigns more slices than it has."""
        assigned = [0] * len(self.pools)
        for utility, replicas in zip(self.worths, counts, strict=True):
            for option, count in zip(utility.spots, replicas, strict=True):
                assigned[self.pool_index[option.pool]] += count * option.slices
        return all(slices <= pool.slices for slices, pool in zip(assigned, self.pools, strict=True))


class PoolUse:
    """Use of one pool: slices assigned, by tier, moved, and moved within their dwell time."""

    __slots__ = ("given", "moved", "pool", "tiers", "unripe")

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.given = self.moved = self.unripe = 0
        self.tiers: dict[Tier, int] = dict.fromkeys(Tier, 0)

    def add(self, tier: Tier, option: Spot, count: int) -> None:
        """Add the replicas of one option."""
        self._count(tier, option, count, 1)

    def remove(self, tier: Tier, option: Spot, count: int) -> None:
        """Remove the replicas of one option again."""
        self._count(tier, option, count, -1)

    def _count(self, tier: Tier, option: Spot, count: int, sign: int) -> None:
        self.given += sign * count * option.slices
        self.tiers[tier] += sign * count * option.slices
        moved = (count - option.held) * option.slices
        self.moved += sign * abs(moved)
        if (option.frozen_up and moved > 0) or (option.frozen_down and moved < 0):
            self.unripe += sign * abs(moved)

    def missed(self) -> tuple[float, ...]:
        """Return the violation of each priority by the pool's own rules, in slices."""
        return pool_missed(self.pool, self.given, self.tiers, self.moved, self.unripe)


def pool_missed(
    pool: Pool, assigned: int, tiers: dict[Tier, int], moved: int, moved_in_dwell: int
) -> tuple[float, ...]:
    """Return the violation of each priority by a pool's own rules, in weighted slices.

    A tier's floor weighs less than a model's.
    """
    violations = list(NOTHING)
    for rule in pool.tiers:
        priority = FLOOR_LEVELS[rule.tier]
        violations[priority] += max(rule.floor - tiers[rule.tier], 0) * TIER_FLOOR_WEIGHT[priority]
        if rule.ceiling is not None:
            violations[Level.CEILING] += max(tiers[rule.tier] - rule.ceiling, 0)
    violations[Level.WARM_SPARES] += min(max(assigned + pool.spares - pool.slices, 0), pool.spares)
    if pool.movable is not None:
        violations[Level.BUDGET] += max(moved - pool.movable, 0)
    violations[Level.BUDGET] += moved_in_dwell
    return tuple(violations)


TIER_FLOOR_WEIGHT = {Level.REALTIME_FLOOR: 1e-3, Level.NEARLINE_FLOOR: 1.0, Level.OFFLINE_FLOOR: 1.0}
"""Weight of a slice of a tier's floor against one of a model's floor.

Real-time models keep their floors before their tier does, so that among them value decides.
"""


def components(snapshot: Snapshot) -> tuple[Component, ...]:
    """Split a snapshot into the components that share no pool, in the order of their first pool's name."""
    pools = {pool.name: pool for pool in snapshot.pools}
    root = {name: name for name in pools}

    def find_root(name: str) -> str:
        while root[name] != name:
            root[name] = root[root[name]]
            name = root[name]
        return name

    for model in snapshot.inferences:
        first, *rest = sorted(find_root(placement.pool) for placement in model.placements)
        for name in rest:
            root[find_root(name)] = find_root(first)
    utilities: dict[str, list[Worth]] = {}
    for model in snapshot.inferences:
        utility = Worth(snapshot, model, pools)
        utilities.setdefault(find_root(model.placements[0].pool), []).append(utility)
    members: dict[str, list[Pool]] = {}
    for pool in snapshot.pools:
        members.setdefault(find_root(pool.name), []).append(pool)
    return tuple(
        _component(members[name], utilities.get(name, []), snapshot.seed) for name in sorted(members)
    )


def _component(pools: Sequence[Pool], utilities: Sequence[Worth], seed: int) -> Component:
    densest = max((utility.density for utility in utilities), default=0.0)
    for utility in utilities:
        if densest > 0:
            utility.weigh_floor(densest)
    return Component(tuple(pools), tuple(utilities), seed)
