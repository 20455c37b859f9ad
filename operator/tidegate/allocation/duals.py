"""Shadow prices from the duals of the solved linear program."""

from __future__ import annotations

from operator import itemgetter

import numpy as np

from tidegate.allocation.assignment import BindingConstraint
from tidegate.allocation.highs import Solution
from tidegate.allocation.prices import MAX_BINDINGS, MIN_PRICE, ShadowPrices, rank_bindings
from tidegate.allocation.program import LinearProgram
from tidegate.allocation.segments import ReplicaSegment
from tidegate.allocation.utility import ModelUtility, RulePriority


def prices_from_duals(program: LinearProgram, solution: Solution) -> ShadowPrices:
    """Return the shadow prices of the solved linear program."""
    slices: dict[str, float] = {}
    bindings: list[BindingConstraint] = []
    for row, pool in zip(program.layout.pool_rows, program.component.pools, strict=True):
        capacity, budget = float(solution.row_prices[row]), float(solution.row_prices[row + 1])
        slices[pool.name] = max(capacity, 0.0)
        bindings.append(BindingConstraint(f"capacity of {pool.name}: {pool.slices} slices", capacity))
        bindings.append(BindingConstraint(f"budget of {pool.name}: {pool.movable_slices} slices", budget))
        for row_number, rule in enumerate(pool.tiers, start=row + 2):
            price = float(solution.row_prices[row_number])
            name = f"floor of {rule.tier}" if price < 0 else f"ceiling of {rule.tier}"
            limit = rule.floor if price < 0 else rule.ceiling
            bindings.append(BindingConstraint(f"{name} in {pool.name}: {limit} slices", abs(price)))
    bindings += _find_model_bindings(program, solution)
    return ShadowPrices(slices, rank_bindings(bindings))


def _find_model_bindings(program: LinearProgram, solution: Solution) -> list[BindingConstraint]:
    """Return the prices of models' own rules, the highest first.

    Such a rule starts replicas, or keeps them, although their slices would earn more elsewhere.
    """
    is_priced = np.abs(solution.reduced_gains) > MIN_PRICE
    priced_models: list[tuple[float, int, ModelUtility]] = []
    for number, utility, _ in program.iter_options():
        first, (above, below) = program.layout.first_columns[number], program.layout.segment_slots[number]
        if not is_priced[first : first + above + below].any():
            continue
        prices = [
            _forced_loss(segment, float(solution.reduced_gains[column]))
            for column, segment in program.iter_columns(number)
        ]
        priced_models.append((-max(prices, default=0.0), number, utility))
    return [
        BindingConstraint(_describe_minimum(utility), -price)
        for price, _, utility in sorted(priced_models, key=itemgetter(0, 1))[:MAX_BINDINGS]
    ]


def _forced_loss(segment: ReplicaSegment, reduced: float) -> float:
    """Return what one replica less of a forced number would earn; 0 where nothing forces it."""
    if segment.forced and segment.up:
        return max(-reduced, 0.0)
    return max(reduced, 0.0) if segment.barred and not segment.up else 0.0


def _describe_minimum(utility: ModelUtility) -> str:
    """Return the rule that asks for the most replicas of an Inference, as text."""
    key = utility.model.key
    if utility.required_replicas == utility.floor:
        return f"{utility.model.bounds.floor_source} of {key}: {utility.floor} replicas"
    if utility.required_replicas == utility.reserve_replicas:
        return f"a node to spare for {key}: {utility.reserve_replicas} replicas"
    rule = "SLO" if utility.promise is RulePriority.SLO else "deadline"
    return f"{rule} of {key}: {utility.slo_replicas} replicas"
