"""Price of losing a node: the requests per second that one more replica would save on average.

Let n replicas be on N nodes, with k_j replicas on node j (`NodeSpread`), and let each node be lost at the rate h, once in
`expected_every_s`. Until replacements serve, after T seconds, the remaining replicas serve min(d, c(n - k_j)) of the
demand d instead of min(d, c(n)). So the mean loss, in requests per second, is

    h T sum_j [min(d, c(n)) - min(d, c(n - k_j))],    T = time to notice + time to reclaim slices + time to load.

It is convex, up to rounding, from the number of replicas that the demand needs to the number that serves it without the fullest node; the
convex hull removes that.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from typing import Final

from tidegate.allocation.curves import CapacityCurve

_MAX_POINTS: Final = 64
"""Most numbers of replicas for which the loss is computed; between them it is linear."""
_STRICT_LIMIT: Final = 2
"""Replicas that count on a node where one is needed: two that share a node are lost together, whatever a price says of the second."""


@dataclass(frozen=True, slots=True)
class NodeSpread:
    """Number of replicas on each of `nodes`, for any number of replicas.

    `placed` has the replicas that nodes have now, the most first; nodes that are not in it have none. More replicas start on the
    emptiest nodes, as the pods' topology constraint prefers; fewer leave the fullest.
    Empty is an even spread.
    """

    nodes: int
    placed: tuple[int, ...] = ()

    def count_by_node(self, replicas: int) -> Counter[int]:
        """Return how many nodes have each number of replicas."""
        counts = [*self.placed, *[0] * (self.nodes - len(self.placed))]
        if replicas < sum(counts):
            level = self._find_level(replicas)
            counts = [min(count, level) for count in counts]
            by_node, excess = Counter(counts), sum(counts) - replicas
            by_node[level] -= excess
            by_node[level - 1] += excess
            return by_node
        # The highest level to which this many replicas fill all nodes.
        level = bisect_left(
            range(1, replicas + 1),
            True,
            key=lambda height: sum(max(count, height) for count in counts) > replicas,
        )
        by_node = Counter(max(count, level) for count in counts)
        rest = replicas - sum(max(count, level) for count in counts)
        by_node[level] -= rest
        by_node[level + 1] += rest
        return by_node

    def count_nodes(self, replicas: int) -> int:
        """Return how many nodes have any of the replicas."""
        return min(replicas, self.nodes) if not self.placed else self.nodes - self.count_by_node(replicas)[0]

    def count_covering(self, needed: int) -> int:
        """Return the smallest number of replicas that leaves `needed` when the fullest node is lost; `nodes` is at least 2."""
        covering = ceil(needed * self.nodes / (self.nodes - 1))
        while covering - ceil(covering / self.nodes) < needed:
            covering += 1
        if not self.placed:
            return covering
        # With more replicas than now, the fullest node keeps its number, or has an even share.
        fullest, total = self.placed[0], sum(self.placed)
        upper = max(total, needed + fullest, covering)
        level = 1 + bisect_left(
            range(1, fullest + 1), needed, key=lambda height: self._sum_below(height) - height
        )
        if level > fullest:
            return upper
        return min(upper, max(needed + level, self._sum_below(level - 1) + 1))

    def _find_level(self, replicas: int) -> int:
        """Return how many replicas the fullest node keeps if `replicas` of the placed ones remain."""
        return bisect_left(range(self.placed[0] + 1), replicas, key=self._sum_below)

    def _sum_below(self, level: int) -> int:
        """Return the placed replicas if no node keeps more than `level`."""
        return sum(min(count, level) for count in self.placed)


def make_spread(nodes: int, placed: Sequence[int], needed: int, *, is_strict: bool = False) -> NodeSpread:
    """Return the spread of the replicas that are placed now on `nodes`; `needed` replicas serve the demand.

    A node counts with at most `needed` replicas: no reserve is then larger than in a pool of two nodes, and replicas that start on
    the fullest node in spite of the topology constraint do not require further replicas. With `is_strict`, two count where one is
    needed, so that a third starts.
    """
    limit = _STRICT_LIMIT if is_strict and needed == 1 else needed
    counts = sorted((min(count, limit) for count in placed if count), reverse=True)[:nodes]
    emptiest = counts[-1] if len(counts) == nodes else 0
    is_even = not counts or counts[0] - emptiest <= 1
    return NodeSpread(nodes, () if is_even else tuple(counts))


def sum_losses(curve: CapacityCurve, rate: float, replicas: int, spread: NodeSpread) -> float:
    """Return the sum over the nodes of the requests per second that the loss of each costs."""
    served = min(rate, curve.rate_at(replicas))
    by_node = spread.count_by_node(replicas) if spread.placed else _divide_evenly(replicas, spread.nodes)
    return sum(
        nodes * (served - min(rate, curve.rate_at(replicas - lost)))
        for lost, nodes in by_node.items()
        if nodes
    )


def _divide_evenly(replicas: int, nodes: int) -> Mapping[int, int]:
    share, fuller = divmod(replicas, nodes)
    return {share: nodes - fuller, share + 1: fuller}


@dataclass(frozen=True, slots=True)
class LossPrice:
    """Mean value per second that the loss of nodes costs an Inference, at points (replicas, value): convex, falling.

    Fewer replicas than the first point miss demand even with all nodes, and cost the same here; more than the last save nothing.
    `outage_s` is the time from the loss of a node until replacements serve; the loss of each node with replicas costs `lost_requests`
    in that time, with as many replicas as at the first point.
    """

    points: tuple[tuple[int, float], ...]
    outage_s: float
    lost_requests: float

    def value_at(self, replicas: int) -> float:
        """Return the value per second that is lost on average with this many replicas."""
        if replicas <= self.points[0][0]:
            return self.points[0][1]
        for (low, value_low), (high, value_high) in pairwise(self.points):
            if replicas <= high:
                return value_low + (value_high - value_low) * (replicas - low) / (high - low)
        return self.points[-1][1]


def price_losses(
    curve: CapacityCurve, rate: float, needed: int, covering: int, spread: NodeSpread, factor: float
) -> tuple[tuple[int, float], ...]:
    """Return the convex hull of the mean loss from `needed` to `covering` replicas; `factor` is value times h T."""
    step = max((covering - needed) // _MAX_POINTS, 1)
    hull: list[tuple[int, float]] = []
    for replicas in sorted({*range(needed, covering, step), covering}):
        point = (replicas, factor * sum_losses(curve, rate, replicas, spread))
        while len(hull) > 1 and _slope_between(hull[-1], point) <= _slope_between(hull[-2], hull[-1]):
            hull.pop()
        hull.append(point)
    return tuple(hull)


def _slope_between(start: Sequence[float], end: Sequence[float]) -> float:
    return (end[1] - start[1]) / (end[0] - start[0])
