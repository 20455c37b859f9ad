"""An Inference in one pool as segments of replicas on which every replica is worth the same; concave, so they fill in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from tidegate.allocation.curves import bends
from tidegate.allocation.worth import Level, Spot, Worth


@dataclass(slots=True)
class Segment:
    """Replicas `start` to `end`, away from what is held: above it (`up`) or below.

    `gain`: value per second of moving one replica of it, the move's cost included; for an Inference in several pools the
    cost alone. `rate` and `served`: requests per second that a replica adds, `served` only as far as somebody asks.
    `forced`, `barred`: the normal case, in which nothing is relaxed, moves all of it, or none.
    """

    start: int
    end: int
    up: bool
    gain: float
    rate: float
    served: float
    forced: bool
    barred: bool

    @property
    def length(self) -> int:
        """Replicas in it."""
        return self.end - self.start if self.up else self.start - self.end


_Mark = tuple[int, float, float, float]
"""A number of replicas, what it serves, how much of that somebody asks for, and what that is worth."""


def segments(worth: Worth, spot: Spot) -> list[Segment]:
    """From what is held outwards: first those above, then those below."""
    above: list[Segment] = []
    below: list[Segment] = []
    single = len(worth.spots) == 1
    must, most = (worth.must, worth.most) if single else (-1, float("inf"))
    for (low, rate_low, served_low, value_low), (high, rate_high, served_high, value_high) in pairwise(
        _marks(worth, spot, single=single)
    ):
        length = high - low
        gain, rate = (value_high - value_low) / length, (rate_high - rate_low) / length
        served = (served_high - served_low) / length
        needed, excess = high <= must, low >= most
        if low >= spot.held:
            gain, barred = gain - spot.up_cost, excess or spot.frozen_up
            above.append(Segment(low, high, True, gain, rate, served, needed, barred))
        else:
            gain, barred = -gain - spot.down_cost, needed or spot.frozen_down
            below.append(Segment(high, low, False, gain, rate, served, excess, barred))
    return above + below[::-1]


def level_gains(worth: Worth, spot: Spot, segment: Segment) -> list[tuple[Level, float]]:
    """By how much moving one replica of `segment` changes what each level misses."""
    changes: dict[Level, float] = {}
    if len(worth.spots) == 1:
        before, after = worth.levels((segment.start,)), worth.levels((segment.end,))
        for level in Level:
            change = (after[level] - before[level]) / segment.length
            if change:
                changes[level] = change
    if spot.frozen_up if segment.up else spot.frozen_down:
        changes[Level.BUDGET] = changes.get(Level.BUDGET, 0.0) + spot.slices
    return list(changes.items())


def _marks(worth: Worth, spot: Spot, *, single: bool) -> Sequence[_Mark]:
    """Where a replica begins to be worth something else than the one before it."""
    top = max(spot.held, spot.beyond)
    curve = spot.placement.curve
    numbers = {0, spot.held, top, *bends(curve, top)}
    if single:
        numbers.update((worth.floor, worth.needed, worth.spare_node))
        if worth.most < top:
            numbers.add(int(worth.most))
    for asked in worth.asked:
        # A share of one replica serves the rest: that replica is a segment of its own.
        last = curve.needed(asked.rate)
        if last is not None:
            numbers.update((last - 1, last))
    most_asked = max([asked.rate for asked in worth.asked], default=0.0)
    before = curve.at(spot.held)
    found: list[_Mark] = []
    for number in sorted(numbers):
        if 0 <= number <= top:
            rate = curve.at(number)
            value = worth.earned(rate, min(rate, before)) if single else 0.0
            found.append((number, rate, min(rate, most_asked), value))
    return found
