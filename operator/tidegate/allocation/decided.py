"""What was decided for one component, and the answer without a solver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidegate.allocation.assignment import Method
from tidegate.allocation.component import Component, Counts, Score
from tidegate.allocation.greedy import improve
from tidegate.allocation.prices import Prices, from_margins


@dataclass(frozen=True, slots=True)
class Decided:
    """Replicas of one component, how they were found, the upper bound of their value (None: unknown), and why not better."""

    counts: Counts
    score: Score
    bound: float | None
    method: Method
    prices: Prices
    note: str = ""


def decide_greedily(component: Component, note: str) -> Decided:
    """The answer without a solver; `note` says why there is none."""
    counts = improve(component, component.held)
    return Decided(
        counts, component.score(counts), None, Method.GREEDY, from_margins(component, counts), note
    )


def worst(decided: Sequence[Decided]) -> Method:
    """The method of the part that was solved with the least care."""
    order = (Method.GREEDY, Method.LINEAR, Method.MILP)
    found = {each.method for each in decided}
    return next((method for method in order if method in found), Method.MILP)
