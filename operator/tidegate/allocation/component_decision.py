"""Decision for one component, and the greedy way to make it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidegate.allocation.assignment import SolveMethod
from tidegate.allocation.component import Component, Counts, Score
from tidegate.allocation.greedy import improve_counts
from tidegate.allocation.prices import ShadowPrices, prices_from_margins


@dataclass(frozen=True, slots=True)
class ComponentDecision:
    """Replicas of one component with their score, method and prices.

    `bound` is an upper bound of their value, None when unknown. `note` says why no better method was used.
    """

    counts: Counts
    score: Score
    bound: float | None
    method: SolveMethod
    prices: ShadowPrices
    note: str = ""


def decide_greedily(component: Component, note: str) -> ComponentDecision:
    """Return the answer without a solver; `note` says why there is none."""
    counts = improve_counts(component, component.current_counts)
    return ComponentDecision(
        counts,
        component.score_counts(counts),
        None,
        SolveMethod.GREEDY,
        prices_from_margins(component, counts),
        note,
    )


def worst_method(decided: Sequence[ComponentDecision]) -> SolveMethod:
    """Return the least exact method among the decisions."""
    order = (SolveMethod.GREEDY, SolveMethod.LINEAR, SolveMethod.MILP)
    methods = {decision.method for decision in decided}
    return next((method for method in order if method in methods), SolveMethod.MILP)
