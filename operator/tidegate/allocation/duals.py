"""Prices from the duals of the solved linear program."""

from __future__ import annotations

from operator import itemgetter

import numpy as np

from tidegate.allocation.assignment import Binding
from tidegate.allocation.highs import Solved
from tidegate.allocation.prices import MOST_BINDINGS, NOTHING, Prices, dearest
from tidegate.allocation.program import Program
from tidegate.allocation.segments import Segment
from tidegate.allocation.worth import Worth


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
    return Prices(slices, dearest(found))


def _of_models(program: Program, solved: Solved) -> list[Binding]:
    """Replicas that a rule of their model starts, or does not let go, against what their slices would earn; the dearest."""
    priced = np.abs(solved.reduced) > NOTHING
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
        for price, _, worth in sorted(found, key=itemgetter(0, 1))[:MOST_BINDINGS]
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
