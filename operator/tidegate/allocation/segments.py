"""Piecewise linear value of an Inference in one pool, as segments of replicas of equal value.

The value is concave, so the segments fill in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from tidegate.allocation.curves import find_bends
from tidegate.allocation.utility import ModelUtility, PoolOption, RulePriority


@dataclass(slots=True)
class ReplicaSegment:
    """Replicas from `start` to `end`, away from the current ones: above them (`up`) or below.

    `gain` is the value per second of moving one of the replicas, less the cost of the move; for an Inference in several pools
    it is the cost alone. `rate` and `served` are requests per second that a replica adds, `served` only up to the demand.
    `forced` and `barred` segments move as a whole, or not at all, in the normal problem.
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
        """Return the number of replicas."""
        return self.end - self.start if self.up else self.start - self.end


_Breakpoint = tuple[int, float, float, float]
"""Breakpoint: a number of replicas, the rate they serve, the part of it that is demanded, and its value."""


def split_segments(utility: ModelUtility, option: PoolOption) -> list[ReplicaSegment]:
    """Split an option into segments: those above the current replicas, outwards, then those below."""
    above: list[ReplicaSegment] = []
    below: list[ReplicaSegment] = []
    single = len(utility.options) == 1
    required, ceiling = (utility.required_replicas, utility.ceiling) if single else (-1, float("inf"))
    for (low, rate_low, served_low, value_low), (high, rate_high, served_high, value_high) in pairwise(
        _find_breakpoints(utility, option, single=single)
    ):
        length = high - low
        gain, rate = (value_high - value_low) / length, (rate_high - rate_low) / length
        served = (served_high - served_low) / length
        needed, excess = high <= required, low >= ceiling
        if low >= option.current:
            gain, barred = gain - option.up_cost, excess or option.frozen_up
            above.append(ReplicaSegment(low, high, True, gain, rate, served, needed, barred))
        else:
            gain, barred = -gain - option.down_cost, needed or option.frozen_down
            below.append(ReplicaSegment(high, low, False, gain, rate, served, excess, barred))
    return above + below[::-1]


def violation_changes(
    utility: ModelUtility, option: PoolOption, segment: ReplicaSegment
) -> list[tuple[RulePriority, float]]:
    """Return by how much moving one replica of `segment` changes the violation of each priority."""
    changes: dict[RulePriority, float] = {}
    if len(utility.options) == 1:
        before, after = utility.violations_at((segment.start,)), utility.violations_at((segment.end,))
        for priority in RulePriority:
            change = (after[priority] - before[priority]) / segment.length
            if change:
                changes[priority] = change
    if option.frozen_up if segment.up else option.frozen_down:
        changes[RulePriority.BUDGET] = changes.get(RulePriority.BUDGET, 0.0) + option.slices
    return list(changes.items())


def _find_breakpoints(utility: ModelUtility, option: PoolOption, *, single: bool) -> Sequence[_Breakpoint]:
    """Return the numbers of replicas at which the value of one more replica changes."""
    top = max(option.current, option.cap_plus_one)
    curve = option.placement.curve
    numbers = {0, option.current, top, *find_bends(curve, top)}
    if single:
        numbers.update((utility.floor, utility.slo_replicas, utility.reserve_replicas))
        if utility.loss_price is not None:
            numbers.update(number for number, _ in utility.loss_price.points)
        if utility.ceiling < top:
            numbers.add(int(utility.ceiling))
    for demand_step in utility.demand:
        # A share of one replica serves the rest: that replica is a segment of its own.
        enough = curve.replicas_for(demand_step.rate)
        if enough is not None:
            numbers.update((enough - 1, enough))
    highest_rate = max([demand_step.rate for demand_step in utility.demand], default=0.0)
    before = curve.rate_at(option.current)
    breakpoints: list[_Breakpoint] = []
    for number in sorted(numbers):
        if 0 <= number <= top:
            rate = curve.rate_at(number)
            value = (
                utility.value_of_rates(rate, min(rate, before)) - utility.loss_at(number) if single else 0.0
            )
            breakpoints.append((number, rate, min(rate, highest_rate), value))
    return breakpoints
