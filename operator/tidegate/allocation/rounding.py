"""Rounding of a linear program's fractions to whole replicas, and the repair of what that loses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import floor

from tidegate.allocation.component import Component, Counts
from tidegate.allocation.state import AllocationState, OptionSlot, is_improvement, per_slice

_WHOLE = 1e-6


def round_down(component: Component, replicas: Sequence[float]) -> Counts:
    """Return the whole part of `replicas`, by option; a number just below a whole one counts as it."""
    counts = iter(replicas)
    return tuple(_take_counts(len(utility.options), counts) for utility in component.utilities)


def round_and_repair(component: Component, replicas: Sequence[float]) -> Counts:
    """Round down, then add one replica to those that had a fraction where it fits and gains, the best first.

    At most one option for each rule of a pool has a fraction, except for those in several pools, so that little is lost.
    """
    state = AllocationState(component, round_down(component, replicas))
    fractions = [
        slot
        for slot, count in zip(state.slots, replicas, strict=True)
        if count - floor(count + _WHOLE) > _WHOLE
    ]
    order = sorted(
        (per_slice(state.marginal_change(slot, 1), state.get_option(slot).slices), slot.number)
        for slot in fractions
    )
    for _, number in order:
        _add_if_better(state, state.slots[number])
    _revert_needless(state)
    return state.counts


def _revert_needless(state: AllocationState) -> None:
    """Revert moves that were made for a fraction that rounding removed, replica by replica, while that is better."""
    for slot in state.slots:
        while state.get_count(slot) > state.get_option(slot).current and is_improvement(
            state.marginal_change(slot, -1)
        ):
            state.change_count(slot, -1)
    for slot in state.slots:
        while state.get_count(slot) < state.get_option(slot).current and _add_if_better(state, slot):
            pass


def _add_if_better(state: AllocationState, slot: OptionSlot) -> bool:
    """Add a replica if it fits and improves the state; return whether it did."""
    fits = state.get_option(slot).slices <= state.free_slices(slot.pool) and state.can_scale_up(slot)
    if not fits or not is_improvement(state.marginal_change(slot, 1)):
        return False
    state.change_count(slot, 1)
    return True


def _take_counts(options: int, counts: Iterator[float]) -> tuple[int, ...]:
    return tuple(max(floor(next(counts) + _WHOLE), 0) for _ in range(options))
