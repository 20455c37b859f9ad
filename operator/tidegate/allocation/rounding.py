"""Rounding of a linear program's fractions to whole replicas, and the repair of what that loses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import floor

from tidegate.allocation.component import Component, Counts
from tidegate.allocation.standing import Place, Standing, better, per_slice

_WHOLE = 1e-6


def cut(component: Component, replicas: Sequence[float]) -> Counts:
    """Return the whole part of `replicas`, by option; a number just below a whole one counts as it."""
    counts = iter(replicas)
    return tuple(_whole(len(utility.spots), counts) for utility in component.worths)


def mended(component: Component, replicas: Sequence[float]) -> Counts:
    """Round down, then add one replica to those that had a fraction where it fits and gains, the best first.

    At most one option for each rule of a pool has a fraction, except for those in several pools, so that little is lost.
    """
    state = Standing(component, cut(component, replicas))
    fractions = [
        slot
        for slot, count in zip(state.places, replicas, strict=True)
        if count - floor(count + _WHOLE) > _WHOLE
    ]
    order = sorted(
        (per_slice(state.brings(slot, 1), state.spot(slot).slices), slot.number) for slot in fractions
    )
    for _, number in order:
        _add_if_better(state, state.places[number])
    _undo(state)
    return state.counts


def _undo(state: Standing) -> None:
    """Revert moves that were made for a fraction that rounding removed, replica by replica, while that is better."""
    for slot in state.places:
        while state.count(slot) > state.spot(slot).held and better(state.brings(slot, -1)):
            state.change(slot, -1)
    for slot in state.places:
        while state.count(slot) < state.spot(slot).held and _add_if_better(state, slot):
            pass


def _add_if_better(state: Standing, slot: Place) -> bool:
    """Add a replica if it fits and improves the state; return whether it did."""
    fits = state.spot(slot).slices <= state.free(slot.pool) and state.may_grow(slot)
    if not fits or not better(state.brings(slot, 1)):
        return False
    state.change(slot, 1)
    return True


def _whole(options: int, counts: Iterator[float]) -> tuple[int, ...]:
    return tuple(max(floor(next(counts) + _WHOLE), 0) for _ in range(options))
