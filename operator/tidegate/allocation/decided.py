"""Decision for one component, and the greedy way to make it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidegate.allocation.assignment import Method
from tidegate.allocation.component import Component, Counts, Score
from tidegate.allocation.greedy import improve
from tidegate.allocation.prices import Prices, from_margins


@dataclass(frozen=True, slots=True)
class Decided:
    """Replicas of one component with their score, method and prices.

    `bound` is an upper bound of their value, None when unknown. `note` says why no better method was used.
    """

    counts: Counts
    score: Score
    bound: float | None
    method: Method
    prices: Prices
    note: str = ""


def decide_greedily(component: Component, note: str) -> Decided:
    """Return the answer without a solver; `note` says why there is none."""
    counts = improve(component, component.held)
    return Decided(
        counts, component.score(counts), None, Method.GREEDY, from_margins(component, counts), note
    )


def worst(decided: Sequence[Decided]) -> Method:
    """Return the least exact method among the decisions."""
    order = (Method.GREEDY, Method.LINEAR, Method.MILP)
    methods = {decision.method for decision in decided}
    return next((method for method in order if method in methods), Method.MILP)
