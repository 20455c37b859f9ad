"""From the fractions of a linear program to whole replicas: cut off, mended where it was cut, and filled by the greedy order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import floor

from tidegate.allocation.component import Component, Counts
from tidegate.allocation.standing import Place, Standing, better, per_slice

_WHOLE = 1e-6


def cut(component: Component, replicas: Sequence[float]) -> Counts:
    """The whole part of `replicas`, by spot; a rounding error below a whole number is one."""
    each = iter(replicas)
    return tuple(_whole(len(worth.spots), each) for worth in component.worths)


def mended(component: Component, replicas: Sequence[float]) -> Counts:
    """The whole part, and one more of those that were cut, where it fits and gains: first those that gain most.

    At most one spot for each rule of a pool has a fraction, those in several pools aside: little is lost, and found fast.
    """
    standing = Standing(component, cut(component, replicas))
    fractions = [
        place
        for place, count in zip(standing.places, replicas, strict=True)
        if count - floor(count + _WHOLE) > _WHOLE
    ]
    order = sorted(
        (per_slice(standing.brings(place, 1), standing.spot(place).slices), place.number)
        for place in fractions
    )
    for _, number in order:
        _add_if_better(standing, standing.places[number])
    _undo(standing)
    return standing.counts


def _undo(standing: Standing) -> None:
    """Takes back what was moved for a fraction that is gone now, replica by replica, as long as that is better."""
    for place in standing.places:
        while standing.count(place) > standing.spot(place).held and better(standing.brings(place, -1)):
            standing.change(place, -1)
    for place in standing.places:
        while standing.count(place) < standing.spot(place).held and _add_if_better(standing, place):
            pass


def _add_if_better(standing: Standing, place: Place) -> bool:
    fits = standing.spot(place).slices <= standing.free(place.pool) and standing.may_grow(place)
    if not fits or not better(standing.brings(place, 1)):
        return False
    standing.change(place, 1)
    return True


def _whole(spots: int, each: Iterator[float]) -> tuple[int, ...]:
    return tuple(max(floor(next(each) + _WHOLE), 0) for _ in range(spots))
