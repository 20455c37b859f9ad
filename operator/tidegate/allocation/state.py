"""Mutable replica counts of one component, with the effect of each single change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tidegate.allocation.component import Component, Counts, PlacedShare
from tidegate.allocation.utility import ModelUtility, PoolOption

_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class OptionSlot:
    """Option by its number in the component, with the indices of its model and pool."""

    number: int
    utility: int
    option: int
    pool: int


Change = tuple[float, ...]
"""Increase of the violation of each priority, then the value that is lost; smaller is better, negative is a gain."""


class AllocationState:
    """Replicas by Inference and pool, changed in place."""

    def __init__(self, component: Component, counts: Counts) -> None:
        self.component = component
        self._counts = [list(replicas) for replicas in counts]
        self.slots: list[OptionSlot] = []
        self.pool_uses = [PlacedShare(pool) for pool in component.pools]
        for index, utility in enumerate(component.utilities):
            for number, option in enumerate(utility.options):
                pool = component.pool_index[option.pool]
                self.slots.append(OptionSlot(len(self.slots), index, number, pool))
                self.pool_uses[pool].add_replicas(utility.model.tier, option, self._counts[index][number])

    @property
    def counts(self) -> Counts:
        """Return the replicas as they are now."""
        return tuple(tuple(replicas) for replicas in self._counts)

    def get_utility(self, slot: OptionSlot) -> ModelUtility:
        """Return the model of a slot."""
        return self.component.utilities[slot.utility]

    def get_option(self, slot: OptionSlot) -> PoolOption:
        """Return the option of a slot."""
        return self.component.utilities[slot.utility].options[slot.option]

    def get_count(self, slot: OptionSlot) -> int:
        """Return the replicas of a slot."""
        return self._counts[slot.utility][slot.option]

    def can_scale_up(self, slot: OptionSlot) -> bool:
        """Return whether one more replica is within the limits of the Inference; it may not fit."""
        utility, option = self.get_utility(slot), self.get_option(slot)
        return (
            self.get_count(slot) < max(option.cap_plus_one, option.current)
            and sum(self._counts[slot.utility]) < utility.max_replicas
        )

    def free_slices(self, pool: int) -> int:
        """Return the free slices of a pool; negative when more are assigned than there are."""
        return self.component.pools[pool].slices - self.pool_uses[pool].assigned

    def marginal_change(self, slot: OptionSlot, by: int) -> Change:
        """Return the effect of `by` more replicas, the pool's own rules included."""
        own = self.marginal_change_alone(slot, by)
        before = self.pool_uses[slot.pool].get_violations()
        self.change_count(slot, by)
        after = self.pool_uses[slot.pool].get_violations()
        self.change_count(slot, -by)
        shared = [new - old for new, old in zip(after, before, strict=True)]
        return (*(a + b for a, b in zip(own, shared, strict=False)), own[-1])

    def marginal_change_alone(self, slot: OptionSlot, by: int) -> Change:
        """Return the effect of `by` more replicas without the pool's own rules; it depends on no other Inference."""
        utility = self.get_utility(slot)
        before = tuple(self._counts[slot.utility])
        after = (*before[: slot.option], before[slot.option] + by, *before[slot.option + 1 :])
        violations = [
            new - old
            for new, old in zip(utility.violations_at(after), utility.violations_at(before), strict=True)
        ]
        lost = (
            utility.value_at(before)
            - utility.value_at(after)
            + utility.move_cost(after)
            - utility.move_cost(before)
        )
        return (*violations, lost)

    def change_count(self, slot: OptionSlot, by: int) -> None:
        """Add `by` replicas."""
        utility, option = self.get_utility(slot), self.get_option(slot)
        use, count = self.pool_uses[slot.pool], self.get_count(slot)
        use.remove_replicas(utility.model.tier, option, count)
        self._counts[slot.utility][slot.option] = count + by
        use.add_replicas(utility.model.tier, option, count + by)


def is_improvement(change: Change) -> bool:
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


def add_changes(change: Change, other: Change) -> Change:
    """Return the sum of two changes."""
    return tuple(a + b for a, b in zip(change, other, strict=True))


def iter_siblings(state: AllocationState, slot: OptionSlot) -> Iterator[OptionSlot]:
    """Yield all slots of the same Inference, because a change of one alters the effect of the others."""
    first = slot.number - slot.option
    for number in range(first, first + len(state.get_utility(slot).options)):
        yield state.slots[number]
