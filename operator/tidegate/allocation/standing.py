"""Mutable replica counts of one component, with the effect of each single change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tidegate.allocation.component import Component, Counts, PoolUse
from tidegate.allocation.worth import Spot, Worth

_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class Place:
    """Option by its number in the component, with the indices of its model and pool."""

    number: int
    worth: int
    spot: int
    pool: int


Change = tuple[float, ...]
"""Increase of the violation of each priority, then the value that is lost; smaller is better, negative is a gain."""


class Standing:
    """Replicas by Inference and pool, changed in place."""

    def __init__(self, component: Component, counts: Counts) -> None:
        self.component = component
        self._counts = [list(replicas) for replicas in counts]
        self.places: list[Place] = []
        self.use = [PoolUse(pool) for pool in component.pools]
        for index, utility in enumerate(component.worths):
            for number, option in enumerate(utility.spots):
                pool = component.pool_index[option.pool]
                self.places.append(Place(len(self.places), index, number, pool))
                self.use[pool].add(utility.inference.tier, option, self._counts[index][number])

    @property
    def counts(self) -> Counts:
        """Return the replicas as they are now."""
        return tuple(tuple(replicas) for replicas in self._counts)

    def worth(self, slot: Place) -> Worth:
        """Return the model of a slot."""
        return self.component.worths[slot.worth]

    def spot(self, slot: Place) -> Spot:
        """Return the option of a slot."""
        return self.component.worths[slot.worth].spots[slot.spot]

    def count(self, slot: Place) -> int:
        """Return the replicas of a slot."""
        return self._counts[slot.worth][slot.spot]

    def may_grow(self, slot: Place) -> bool:
        """Return whether one more replica is within the limits of the Inference; it may not fit."""
        utility, option = self.worth(slot), self.spot(slot)
        return (
            self.count(slot) < max(option.beyond, option.held)
            and sum(self._counts[slot.worth]) < utility.highest
        )

    def free(self, pool: int) -> int:
        """Return the free slices of a pool; negative when more are assigned than there are."""
        return self.component.pools[pool].slices - self.use[pool].given

    def brings(self, slot: Place, by: int) -> Change:
        """Return the effect of `by` more replicas, the pool's own rules included."""
        own = self.brings_alone(slot, by)
        before = self.use[slot.pool].missed()
        self.change(slot, by)
        after = self.use[slot.pool].missed()
        self.change(slot, -by)
        shared = [new - old for new, old in zip(after, before, strict=True)]
        return (*(a + b for a, b in zip(own, shared, strict=False)), own[-1])

    def brings_alone(self, slot: Place, by: int) -> Change:
        """Return the effect of `by` more replicas without the pool's own rules; it depends on no other Inference."""
        utility = self.worth(slot)
        before = tuple(self._counts[slot.worth])
        after = (*before[: slot.spot], before[slot.spot] + by, *before[slot.spot + 1 :])
        violations = [
            new - old for new, old in zip(utility.levels(after), utility.levels(before), strict=True)
        ]
        lost = (
            utility.value(before)
            - utility.value(after)
            + utility.move_cost(after)
            - utility.move_cost(before)
        )
        return (*violations, lost)

    def change(self, slot: Place, by: int) -> None:
        """Add `by` replicas."""
        utility, option = self.worth(slot), self.spot(slot)
        use, count = self.use[slot.pool], self.count(slot)
        use.remove(utility.inference.tier, option, count)
        self._counts[slot.worth][slot.spot] = count + by
        use.add(utility.inference.tier, option, count + by)


def better(change: Change) -> bool:
    """Return whether a change improves the state, by priority; differences of rounding do not count."""
    for amount in change:
        if abs(amount) > _TOLERANCE:
            return amount < 0
    return False


def per_slice(change: Change, slices: int) -> Change:
    """Divide a change by its slices, to compare changes of different sizes.

    The result is rounded, so that rounding errors do not decide.
    """
    return tuple(round(amount / slices, 9) for amount in change)


def added(change: Change, other: Change) -> Change:
    """Return the sum of two changes."""
    return tuple(a + b for a, b in zip(change, other, strict=True))


def siblings(state: Standing, slot: Place) -> Iterator[Place]:
    """Yield all slots of the same Inference, because a change of one alters the effect of the others."""
    first = slot.number - slot.spot
    for number in range(first, first + len(state.worth(slot).spots)):
        yield state.places[number]
