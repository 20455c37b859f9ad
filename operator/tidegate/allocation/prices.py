"""What one more slice of each pool would earn, and which constraints hold the value down, by what price.

From the duals of the linear program. Without one: from the best change that does not fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import itemgetter

import numpy as np

from tidegate.allocation.assignment import Binding
from tidegate.allocation.component import Component, Counts
from tidegate.allocation.greedy import Queue
from tidegate.allocation.highs import Solved
from tidegate.allocation.program import Program
from tidegate.allocation.segments import Segment
from tidegate.allocation.standing import Standing
from tidegate.allocation.worth import Worth

_NOTHING = 1e-7
_MOST_BINDINGS = 20


@dataclass(frozen=True, slots=True)
class Prices:
    """`slices`: by pool, value per second of one more slice; `bindings`: the dearest constraints first."""

    slices: dict[str, float]
    bindings: tuple[Binding, ...]


def from_duals(program: Program, solved: Solved) -> Prices:
    """The prices of the solved linear program."""
    slices: dict[str, float] = {}
    found: list[Binding] = []
    for row, pool in zip(program.layout.pool_rows, program.component.pools, strict=True):
        capacity, budget = float(solved.prices[row]), float(solved.prices[row + 1])
        slices[pool.name] = max(capacity, 0.0)
        found.append(Binding(f"capacity of {pool.name}: {pool.slices} slices", capacity))
        found.append(Binding(f"budget of {pool.name}: {pool.movable} slices", budget))
        for place, rule in enumerate(pool.tiers, start=row + 2):
            price = float(solved.prices[place])
            name = f"floor of {rule.tier}" if price < 0 else f"ceiling of {rule.tier}"
            limit = rule.floor if price < 0 else rule.ceiling
            found.append(Binding(f"{name} in {pool.name}: {limit} slices", abs(price)))
    found += _of_models(program, solved)
    return Prices(slices, _dearest(found))


def from_margins(component: Component, counts: Counts) -> Prices:
    """What the best replica that does not fit would earn per slice, where a pool is full."""
    standing = Standing(component, counts)
    waiting = Queue(standing, 1)
    slices: dict[str, float] = {}
    found: list[Binding] = []
    for number, pool in enumerate(component.pools):
        gains = [
            -change[-1]
            for change, place in waiting.tops(number)
            if standing.spot(place).slices > standing.free(number)
        ]
        slices[pool.name] = max([0.0, *gains])
        found.append(Binding(f"capacity of {pool.name}: {pool.slices} slices", slices[pool.name]))
    return Prices(slices, _dearest(found))


def limits(component: Component, counts: Counts) -> tuple[Binding, ...]:
    """What stops each model that moves, for where no rule has a price: slices are left, and everybody has what they can use."""
    return tuple(
        Binding(_limit(worth, sum(replicas)), 0.0)
        for worth, replicas in zip(component.worths, counts, strict=True)
        if any(count != spot.held for spot, count in zip(worth.spots, replicas, strict=True))
    )[:_MOST_BINDINGS]


def _limit(worth: Worth, replicas: int) -> str:
    key, bounds = worth.inference.key, worth.inference.bounds
    count = "1 replica" if replicas == 1 else f"{replicas} replicas"
    if replicas == bounds.most:
        return f"{bounds.most_by} of {key}: {count}"
    if replicas == bounds.least:
        return f"{bounds.least_by} of {key}: {count}"
    return f"demand of {key}: {count}"


def _of_models(program: Program, solved: Solved) -> list[Binding]:
    """Replicas that a rule of their model starts, or does not let go, against what their slices would earn; the dearest."""
    priced = np.abs(solved.reduced) > _NOTHING
    found: list[tuple[float, int, Worth]] = []
    for number, worth, _ in program.spots():
        first, (above, below) = program.layout.first[number], program.layout.slots[number]
        if not priced[first : first + above + below].any():
            continue
        prices = [
            _held_down(segment, float(solved.reduced[column])) for column, segment in program.columns(number)
        ]
        found.append((-max(prices, default=0.0), number, worth))
    return [
        Binding(_must(worth), -price)
        for price, _, worth in sorted(found, key=itemgetter(0, 1))[:_MOST_BINDINGS]
    ]


def _held_down(segment: Segment, reduced: float) -> float:
    """What one replica less of what must be would earn; 0 where nothing must be."""
    if segment.forced and segment.up:
        return max(-reduced, 0.0)
    return max(reduced, 0.0) if segment.barred and not segment.up else 0.0


def _must(worth: Worth) -> str:
    """Which of the rules that an Inference is under asks for the most replicas."""
    key = worth.inference.key
    if worth.must == worth.floor:
        return f"{worth.inference.bounds.least_by} of {key}: {worth.floor} replicas"
    if worth.must == worth.spare_node:
        return f"a node to spare for {key}: {worth.spare_node} replicas"
    return f"SLO of {key}: {worth.needed} replicas"


def _dearest(found: list[Binding]) -> tuple[Binding, ...]:
    by_constraint: dict[str, float] = {}
    for binding in found:
        if binding.price > _NOTHING:
            dearest = max(binding.price, by_constraint.get(binding.constraint, 0.0))
            by_constraint[binding.constraint] = dearest
    ordered = sorted(by_constraint.items(), key=lambda each: (-each[1], each[0]))
    return tuple(Binding(constraint, round(price, 6)) for constraint, price in ordered[:_MOST_BINDINGS])
