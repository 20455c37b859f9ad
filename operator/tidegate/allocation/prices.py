"""Shadow prices: what one more slice of each pool would earn, and which constraints limit the value.

Without a solver they come from the best change that does not fit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tidegate.allocation.assignment import BindingConstraint
from tidegate.allocation.component import Component, Counts
from tidegate.allocation.greedy import ChangeQueue
from tidegate.allocation.state import AllocationState
from tidegate.allocation.utility import ModelUtility

MIN_PRICE = 1e-7
"""Price below which a constraint does not bind."""
MAX_BINDINGS = 20


@dataclass(frozen=True, slots=True)
class ShadowPrices:
    """Shadow prices of one component.

    `slices` maps a pool to the value per second of one more slice. `bindings` has the most expensive constraints first.
    """

    slices: dict[str, float]
    bindings: tuple[BindingConstraint, ...]


def prices_from_margins(component: Component, counts: Counts) -> ShadowPrices:
    """Estimate the prices without a solver: what the best replica that does not fit would earn per slice."""
    state = AllocationState(component, counts)
    additions = ChangeQueue(state, 1)
    slices: dict[str, float] = {}
    bindings: list[BindingConstraint] = []
    for number, pool in enumerate(component.pools):
        gains = [
            -change[-1]
            for change, slot in additions.best_by_group(number)
            if state.get_option(slot).slices > state.free_slices(number)
        ]
        slices[pool.name] = max([0.0, *gains])
        bindings.append(
            BindingConstraint(f"capacity of {pool.name}: {pool.slices} slices", slices[pool.name])
        )
    return ShadowPrices(slices, rank_bindings(bindings))


def find_limits(component: Component, counts: Counts) -> tuple[BindingConstraint, ...]:
    """Return what stops each model that moves, for where no constraint has a price.

    Then slices are left, and every model has as many as it can use.
    """
    return tuple(
        BindingConstraint(_describe_limit(utility, sum(replicas)), 0.0)
        for utility, replicas in zip(component.utilities, counts, strict=True)
        if any(count != option.current for option, count in zip(utility.options, replicas, strict=True))
    )[:MAX_BINDINGS]


def _describe_limit(utility: ModelUtility, replicas: int) -> str:
    key, bounds = utility.model.key, utility.model.bounds
    count = "1 replica" if replicas == 1 else f"{replicas} replicas"
    if replicas == bounds.ceiling:
        return f"{bounds.ceiling_source} of {key}: {count}"
    if replicas == bounds.floor:
        return f"{bounds.floor_source} of {key}: {count}"
    if utility.loss_price is not None and replicas > utility.slo_replicas:
        return f"the price of losing a node for {key}: {count}"
    return f"demand of {key}: {count}"


def rank_bindings(bindings: Iterable[BindingConstraint]) -> tuple[BindingConstraint, ...]:
    """Return the highest price of each constraint, the most expensive constraints first."""
    by_constraint: dict[str, float] = {}
    for binding in bindings:
        if binding.price > MIN_PRICE:
            highest = by_constraint.get(binding.constraint, 0.0)
            by_constraint[binding.constraint] = max(binding.price, highest)
    ordered = sorted(by_constraint.items(), key=lambda item: (-item[1], item[0]))
    return tuple(
        BindingConstraint(constraint, round(price, 6)) for constraint, price in ordered[:MAX_BINDINGS]
    )
