"""Shadow prices: what one more slice of each pool would earn, and which constraints limit the value.

Without a solver they come from the best change that does not fit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tidegate.allocation.assignment import Binding
from tidegate.allocation.component import Component, Counts
from tidegate.allocation.greedy import Queue
from tidegate.allocation.standing import Standing
from tidegate.allocation.worth import Worth

NOTHING = 1e-7
"""Price below which a constraint does not bind."""
MOST_BINDINGS = 20


@dataclass(frozen=True, slots=True)
class Prices:
    """Shadow prices of one component.

    `slices` maps a pool to the value per second of one more slice. `bindings` has the most expensive constraints first.
    """

    slices: dict[str, float]
    bindings: tuple[Binding, ...]


def from_margins(component: Component, counts: Counts) -> Prices:
    """Estimate the prices without a solver: what the best replica that does not fit would earn per slice."""
    state = Standing(component, counts)
    additions = Queue(state, 1)
    slices: dict[str, float] = {}
    bindings: list[Binding] = []
    for number, pool in enumerate(component.pools):
        gains = [
            -change[-1]
            for change, slot in additions.tops(number)
            if state.spot(slot).slices > state.free(number)
        ]
        slices[pool.name] = max([0.0, *gains])
        bindings.append(Binding(f"capacity of {pool.name}: {pool.slices} slices", slices[pool.name]))
    return Prices(slices, dearest(bindings))


def limits(component: Component, counts: Counts) -> tuple[Binding, ...]:
    """Return what stops each model that moves, for where no constraint has a price.

    Then slices are left, and every model has as many as it can use.
    """
    return tuple(
        Binding(_limit(utility, sum(replicas)), 0.0)
        for utility, replicas in zip(component.worths, counts, strict=True)
        if any(count != option.held for option, count in zip(utility.spots, replicas, strict=True))
    )[:MOST_BINDINGS]


def _limit(utility: Worth, replicas: int) -> str:
    key, bounds = utility.inference.key, utility.inference.bounds
    count = "1 replica" if replicas == 1 else f"{replicas} replicas"
    if replicas == bounds.most:
        return f"{bounds.most_by} of {key}: {count}"
    if replicas == bounds.least:
        return f"{bounds.least_by} of {key}: {count}"
    return f"demand of {key}: {count}"


def dearest(bindings: Iterable[Binding]) -> tuple[Binding, ...]:
    """Return the highest price of each constraint, the most expensive constraints first."""
    by_constraint: dict[str, float] = {}
    for binding in bindings:
        if binding.price > NOTHING:
            highest = by_constraint.get(binding.constraint, 0.0)
            by_constraint[binding.constraint] = max(binding.price, highest)
    ordered = sorted(by_constraint.items(), key=lambda item: (-item[1], item[0]))
    return tuple(Binding(constraint, round(price, 6)) for constraint, price in ordered[:MOST_BINDINGS])
