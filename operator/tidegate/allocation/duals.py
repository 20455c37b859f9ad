"""Shadow prices from the duals of the solved linear program."""

from __future__ import annotations

from operator import itemgetter

import numpy as np

from tidegate.allocation.assignment import Binding
from tidegate.allocation.highs import Solved
from tidegate.allocation.prices import MOST_BINDINGS, NOTHING, Prices, dearest
from tidegate.allocation.program import Program
from tidegate.allocation.segments import Segment
from tidegate.allocation.worth import Worth


def from_duals(program: Program, solution: Solved) -> Prices:
    """Return the shadow prices of the solved linear program."""
    slices: dict[str, float] = {}
    bindings: list[Binding] = []
    for row, pool in zip(program.layout.pool_rows, program.component.pools, strict=True):
        capacity, budget = float(solution.prices[row]), float(solution.prices[row + 1])
        slices[pool.name] = max(capacity, 0.0)
        bindings.append(Binding(f"capacity of {pool.name}: {pool.slices} slices", capacity))
        bindings.append(Binding(f"budget of {pool.name}: {pool.movable} slices", budget))
        for row_number, rule in enumerate(pool.tiers, start=row + 2):
            price = float(solution.prices[row_number])
            name = f"floor of {rule.tier}" if price < 0 else f"ceiling of {rule.tier}"
            limit = rule.floor if price < 0 else rule.ceiling
            bindings.append(Binding(f"{name} in {pool.name}: {limit} slices", abs(price)))
    bindings += _of_models(program, solution)
    return Prices(slices, dearest(bindings))


def _of_models(program: Program, solution: Solved) -> list[Binding]:
    """Return the prices of models' own rules, the highest first.

    Such a rule starts replicas, or keeps them, although their slices would earn more elsewhere.
    """
    is_priced = np.abs(solution.reduced) > NOTHING
    priced_models: list[tuple[float, int, Worth]] = []
    for number, utility, _ in program.spots():
        first, (above, below) = program.layout.first[number], program.layout.slots[number]
        if not is_priced[first : first + above + below].any():
            continue
        prices = [
            _held_down(segment, float(solution.reduced[column]))
            for column, segment in program.columns(number)
        ]
        priced_models.append((-max(prices, default=0.0), number, utility))
    return [
        Binding(_must(utility), -price)
        for price, _, utility in sorted(priced_models, key=itemgetter(0, 1))[:MOST_BINDINGS]
    ]


def _held_down(segment: Segment, reduced: float) -> float:
    """Return what one replica less of a forced number would earn; 0 where nothing forces it."""
    if segment.forced and segment.up:
        return max(-reduced, 0.0)
    return max(reduced, 0.0) if segment.barred and not segment.up else 0.0


def _must(utility: Worth) -> str:
    """Return the rule that asks for the most replicas of an Inference, as text."""
    key = utility.inference.key
    if utility.must == utility.floor:
        return f"{utility.inference.bounds.least_by} of {key}: {utility.floor} replicas"
    if utility.must == utility.spare_node:
        return f"a node to spare for {key}: {utility.spare_node} replicas"
    return f"SLO of {key}: {utility.needed} replicas"
