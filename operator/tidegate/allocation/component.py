"""Components of a snapshot (pools that share Inferences), and the score of replica counts in one of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from tidegate.allocation.snapshot import AllocationSnapshot, PoolInput
from tidegate.allocation.utility import (
    FLOOR_PRIORITIES,
    NO_VIOLATIONS,
    ModelUtility,
    PoolOption,
    RulePriority,
)
from tidegate.api.inference import Tier

_TOLERANCE = 1e-9

Counts = tuple[tuple[int, ...], ...]
"""Replicas by Inference and by pool, in the order of the component's `utilities` and their `options`."""


@dataclass(frozen=True, slots=True)
class Score:
    """Score of an assignment: the violation of each rule priority, the highest first, and the net value per second.

    The net value is the value of the requests that are served, less the cost of the moves.
    """

    violations: tuple[float, ...]
    value: float

    def is_better_than(self, other: Score) -> bool:
        """Return whether this score is better, by priority and then by value; differences of rounding do not count."""
        for amount, other_amount in zip(self.violations, other.violations, strict=True):
            if abs(amount - other_amount) > _TOLERANCE * max(1.0, abs(other_amount)):
                return amount < other_amount
        return self.value > other.value + _TOLERANCE * max(1.0, abs(other.value))


@dataclass(frozen=True)
class Component:
    """Part of a snapshot that can be solved alone."""

    pools: tuple[PoolInput, ...]
    utilities: tuple[ModelUtility, ...]
    seed: int

    @cached_property
    def pool_index(self) -> dict[str, int]:
        """Return the index of each pool by its name."""
        return {pool.name: number for number, pool in enumerate(self.pools)}

    @cached_property
    def current_counts(self) -> Counts:
        """Return the current replicas."""
        return tuple(tuple(option.current for option in utility.options) for utility in self.utilities)

    def score_counts(self, counts: Counts) -> Score:
        """Return the score of `counts`, whether or not they fit the capacity."""
        violations = [0.0] * len(RulePriority)
        value = 0.0
        use = [PlacedShare(pool) for pool in self.pools]
        for utility, replicas in zip(self.utilities, counts, strict=True):
            value += utility.value_at(replicas) - utility.move_cost(replicas)
            own = utility.violations_at(replicas)
            if own is not NO_VIOLATIONS:
                for priority, amount in enumerate(own):
                    violations[priority] += amount
            for option, count in zip(utility.options, replicas, strict=True):
                use[self.pool_index[option.pool]].add_replicas(utility.model.tier, option, count)
        for pool_use in use:
            for priority, amount in enumerate(pool_use.get_violations()):
                violations[priority] += amount
        return Score(tuple(violations), value)

    def fits_capacity(self, counts: Counts) -> bool:
        """Return whether no pool assigns more slices than it has."""
        assigned = [0] * len(self.pools)
        for utility, replicas in zip(self.utilities, counts, strict=True):
            for option, count in zip(utility.options, replicas, strict=True):
                assigned[self.pool_index[option.pool]] += count * option.slices
        return all(slices <= pool.slices for slices, pool in zip(assigned, self.pools, strict=True))


class PlacedShare:
    """Use of one pool: slices assigned, by tier, moved, and moved within their stabilization window."""

    __slots__ = (
        "assigned",
        "moved_in_dwell",
        "moved_slices",
        "pool",
        "tiers",
    )

    def __init__(self, pool: PoolInput) -> None:
        self.pool = pool
        self.assigned = self.moved_slices = self.moved_in_dwell = 0
        self.tiers: dict[Tier, int] = dict.fromkeys(Tier, 0)

    def add_replicas(self, tier: Tier, option: PoolOption, count: int) -> None:
        """Add the replicas of one option."""
        self._add_signed(tier, option, count, 1)

    def remove_replicas(self, tier: Tier, option: PoolOption, count: int) -> None:
        """Remove the replicas of one option again."""
        self._add_signed(tier, option, count, -1)

    def _add_signed(self, tier: Tier, option: PoolOption, count: int, sign: int) -> None:
        self.assigned += sign * count * option.slices
        self.tiers[tier] += sign * count * option.slices
        moved = (count - option.current) * option.slices
        self.moved_slices += sign * abs(moved)
        if (option.frozen_up and moved > 0) or (option.frozen_down and moved < 0):
            self.moved_in_dwell += sign * abs(moved)

    def get_violations(self) -> tuple[float, ...]:
        """Return the violation of each priority by the pool's own rules, in slices."""
        return pool_violations(self.pool, self.assigned, self.tiers, self.moved_slices, self.moved_in_dwell)


def pool_violations(
    pool: PoolInput, assigned: int, tiers: dict[Tier, int], moved: int, moved_in_dwell: int
) -> tuple[float, ...]:
    """Return the violation of each priority by a pool's own rules, in weighted slices.

    A tier's floor weighs less than a model's.
    """
    violations = list(NO_VIOLATIONS)
    for rule in pool.tiers:
        priority = FLOOR_PRIORITIES[rule.tier]
        violations[priority] += max(rule.floor - tiers[rule.tier], 0) * TIER_FLOOR_WEIGHTS[priority]
        if rule.ceiling is not None:
            violations[RulePriority.CEILING] += max(tiers[rule.tier] - rule.ceiling, 0)
    violations[RulePriority.WARM_SPARES] += min(max(assigned + pool.spares - pool.slices, 0), pool.spares)
    if pool.movable_slices is not None:
        violations[RulePriority.BUDGET] += max(moved - pool.movable_slices, 0)
    violations[RulePriority.BUDGET] += moved_in_dwell
    return tuple(violations)


TIER_FLOOR_WEIGHTS = {
    RulePriority.REALTIME_FLOOR: 1e-3,
    RulePriority.NEARLINE_FLOOR: 1.0,
    RulePriority.OFFLINE_FLOOR: 1.0,
}
"""Weight of a slice of a tier's floor against one of a model's floor.

Real-time models keep their floors before their tier does, so that among them value decides.
"""


def split_components(snapshot: AllocationSnapshot) -> tuple[Component, ...]:
    """Split a snapshot into the components that share no pool, in the order of their first pool's name."""
    pools = {pool.name: pool for pool in snapshot.pools}
    # A price of before may be that of a model that is gone: no slice earns more than the best of those that are there.
    best = _find_best_earnings(snapshot)
    pools = {name: replace(pool, price=min(pool.price, best.get(name, 0.0))) for name, pool in pools.items()}
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
    utilities: dict[str, list[ModelUtility]] = {}
    for model in snapshot.inferences:
        utility = ModelUtility(snapshot, model, pools)
        utilities.setdefault(find_root(model.placements[0].pool), []).append(utility)
    members: dict[str, list[PoolInput]] = {}
    for pool in pools.values():
        members.setdefault(find_root(pool.name), []).append(pool)
    return tuple(
        _make_component(members[name], utilities.get(name, []), snapshot.seed) for name in sorted(members)
    )


def _find_best_earnings(snapshot: AllocationSnapshot) -> dict[str, float]:
    """Return the most value per second that a slice of each pool can earn, with urgency."""
    best: dict[str, float] = {}
    for model in snapshot.inferences:
        urgency = max(model.load.urgency, default=1.0) if model.load is not None else 1.0
        for placement in model.placements:
            earned = model.value * max(urgency, 1.0) * placement.curve.rate_at(1) / placement.slices
            best[placement.pool] = max(best.get(placement.pool, 0.0), earned)
    return best


def _make_component(pools: Sequence[PoolInput], utilities: Sequence[ModelUtility], seed: int) -> Component:
    densest = max((utility.value_density for utility in utilities), default=0.0)
    for utility in utilities:
        if densest > 0:
            utility.weigh_floor(densest)
    for pool in pools:
        _ration_moves(pool, utilities)
    return Component(tuple(pools), tuple(utilities), seed)


def _ration_moves(pool: PoolInput, utilities: Sequence[ModelUtility]) -> None:
    """Let moves cost SLO, or deadline, in a pool that cannot keep all those of the Inferences that have no other pool."""
    needed_before = 0
    for tier in (tier for tier in Tier if tier.traits.counts_requests):
        rationed = [
            utility
            for utility in utilities
            if utility.model.tier is tier and [option.pool for option in utility.options] == [pool.name]
        ]
        needed = sum(
            max(utility.floor, utility.slo_replicas) * utility.options[0].slices for utility in rationed
        )
        if needed > min(pool.limit_tier(tier), pool.slices - needed_before):
            for utility in rationed:
                if tier.traits.has_slo or utility.promised_rate > 0:
                    utility.ration_moves()
        needed_before += needed
