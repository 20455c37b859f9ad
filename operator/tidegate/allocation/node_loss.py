"""Price of losing a node: the requests per second that a replica more would save on average.

Let n replicas be spread over N nodes, so that node j has k_j of them, and let each node be lost with the rate h, once in
`expected_every_s`. Until replacements serve, after T seconds, the replicas that are left serve min(d, c(n - k_j)) of the
demand d instead of min(d, c(n)). So the mean loss, in requests per second, is

    h T sum_j [min(d, c(n)) - min(d, c(n - k_j))],    T = time to notice + time to reclaim slices + time to load.

It is convex between the replicas that the demand needs and those that serve it without the fullest node, up to rounding; the
convex hull removes that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from typing import Final

from tidegate.allocation.curves import CapacityCurve

_MAX_POINTS: Final = 64
"""Most numbers of replicas for which the loss is computed; between them it is linear."""


def count_with_spare_node(needed: int, nodes: int) -> int:
    """Return the fewest replicas, spread over `nodes`, of which `needed` remain when the fullest node is lost."""
    count = ceil(needed * nodes / (nodes - 1))
    while count - ceil(count / nodes) < needed:
        count += 1
    return count


def sum_losses(curve: CapacityCurve, rate: float, replicas: int, nodes: int) -> float:
    """Return the requests per second that are lost with each of the nodes, summed over the nodes."""
    share, fuller = divmod(replicas, nodes)
    served = min(rate, curve.rate_at(replicas))
    lost = (nodes - fuller) * (served - min(rate, curve.rate_at(replicas - share)))
    if fuller:
        lost += fuller * (served - min(rate, curve.rate_at(replicas - share - 1)))
    return lost


@dataclass(frozen=True, slots=True)
class LossPrice:
    """Mean value per second that the loss of nodes costs an Inference, at points (replicas, value): convex, falling.

    Fewer replicas than the first point miss demand even with all nodes, and cost the same here; more than the last save nothing.
    `outage_s` is the time from the loss of a node until replacements serve, in which `lost_requests` are lost with each node that
    has replicas, if there are as many as at the first point.
    """

    points: tuple[tuple[int, float], ...]
    outage_s: float
    lost_requests: float

    def value_at(self, replicas: int) -> float:
        """Return the value per second that is lost on average with so many replicas."""
        if replicas <= self.points[0][0]:
            return self.points[0][1]
        for (low, value_low), (high, value_high) in pairwise(self.points):
            if replicas <= high:
                return value_low + (value_high - value_low) * (replicas - low) / (high - low)
        return self.points[-1][1]


def price_losses(
    curve: CapacityCurve, rate: float, needed: int, covering: int, nodes: int, factor: float
) -> tuple[tuple[int, float], ...]:
    """Return the convex hull of the mean loss from `needed` to `covering` replicas; `factor` is value times h T."""
    step = max((covering - needed) // _MAX_POINTS, 1)
    hull: list[tuple[int, float]] = []
    for replicas in sorted({*range(needed, covering, step), covering}):
        point = (replicas, factor * sum_losses(curve, rate, replicas, nodes))
        while len(hull) > 1 and _slope_between(hull[-1], point) <= _slope_between(hull[-2], hull[-1]):
            hull.pop()
        hull.append(point)
    return tuple(hull)


def _slope_between(start: Sequence[float], end: Sequence[float]) -> float:
    return (end[1] - start[1]) / (end[0] - start[0])
