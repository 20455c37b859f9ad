"""What one more slice of each pool would earn, and which constraints hold the value down, by what price.

Without a solver: from the best change that does not fit.
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
"""A price below this is none."""
MOST_BINDINGS = 20


@dataclass(frozen=True, slots=True)
class Prices:
    """`slices`: by pool, value per second of one more slice; `bindings`: the dearest constraints first."""

    slices: dict[str, float]
    bindings: tuple[Binding, ...]


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
    return Prices(slices, dearest(found))


def limits(component: Component, counts: Counts) -> tuple[Binding, ...]:
    """What stops each model that moves, for where no rule has a price: slices are left, and everybody has what they can use."""
    return tuple(
        Binding(_limit(worth, sum(replicas)), 0.0)
        for worth, replicas in zip(component.worths, counts, strict=True)
        if any(count != spot.held for spot, count in zip(worth.spots, replicas, strict=True))
    )[:MOST_BINDINGS]


def _limit(worth: Worth, replicas: int) -> str:
    key, bounds = worth.inference.key, worth.inference.bounds
    count = "1 replica" if replicas == 1 else f"{replicas} replicas"
    if replicas == bounds.most:
        return f"{bounds.most_by} of {key}: {count}"
    if replicas == bounds.least:
        return f"{bounds.least_by} of {key}: {count}"
    return f"demand of {key}: {count}"


def dearest(found: Iterable[Binding]) -> tuple[Binding, ...]:
    """Return the dearest price of each constraint, the dearest constraints first."""
    by_constraint: dict[str, float] = {}
    for binding in found:
        if binding.price > NOTHING:
            known = by_constraint.get(binding.constraint, 0.0)
            by_constraint[binding.constraint] = max(binding.price, known)
    ordered = sorted(by_constraint.items(), key=lambda each: (-each[1], each[0]))
    return tuple(Binding(constraint, round(price, 6)) for constraint, price in ordered[:MOST_BINDINGS])
