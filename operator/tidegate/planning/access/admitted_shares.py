"""The share of each route's requests that gateways admit: lowest value first, and no more refused than needed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from math import isfinite
from types import MappingProxyType
from typing import Final

from tidegate.api.meta import ObjectKey

_HELD_CHANGE: Final = 0.02
"""A share that changes by less stays as it is, so that chance in what clients send changes nothing."""


@dataclass(frozen=True, slots=True)
class RouteLoad:
    """The requests of one route (`access/<namespace>/<name>/<route>`).

    `offered_per_s`: what clients send, refused requests included; it may be no number, if it could not be measured.
    `by_inference`: the share of each Inference in what is admitted. `value`: what an answered request is worth.
    `priced`: gateways admit a share of them; else all.
    """

    route: str
    offered_per_s: float
    by_inference: Mapping[ObjectKey, float]
    value: float
    priced: bool


Shares = Mapping[str, float]
"""By route, the admitted share, from 0 to 1; a route that is not in it admits everything."""


NO_SHARES: Final[Shares] = MappingProxyType({})


def plan_shares(
    loads: Iterable[RouteLoad], capacities: Mapping[ObjectKey, float], before: Shares = NO_SHARES
) -> Shares:
    """Return the shares of the priced routes that do not admit everything.

    `capacities`: requests per second that the ready pods of an Inference answer; where that is unknown, nothing is refused.
    Routes are served by value, the highest first, after those that are not priced; those of equal value get equal shares.
    A route of several Inferences gets the smallest share that any of them allows.
    """
    remaining = {key: capacity for key, capacity in capacities.items() if isfinite(capacity) and capacity > 0}
    usable = [load for load in loads if isfinite(load.offered_per_s) and load.offered_per_s > 0]
    for key, rate in _sum_loads((load, 1.0) for load in usable if not load.priced).items():
        if key in remaining:
            remaining[key] = max(remaining[key] - rate, 0.0)
    priced = sorted((load for load in usable if load.priced), key=lambda load: (-load.value, load.route))
    shares: dict[str, float] = {}
    for _, group in groupby(priced, key=lambda load: load.value):
        equals = tuple(group)
        allowed = {
            key: min(remaining[key] / rate, 1.0)
            for key, rate in _sum_loads((load, 1.0) for load in equals).items()
            if key in remaining
        }
        admitted = {
            load.route: min((allowed[key] for key in load.by_inference if key in allowed), default=1.0)
            for load in equals
        }
        for key, rate in _sum_loads((load, admitted[load.route]) for load in equals).items():
            if key in remaining:
                remaining[key] = max(remaining[key] - rate, 0.0)
        shares |= {route: share for route, share in admitted.items() if share < 1}
    return {route: _hold_share(before.get(route), share) for route, share in shares.items()}


def _sum_loads(loads: Iterable[tuple[RouteLoad, float]]) -> Mapping[ObjectKey, float]:
    """Return the requests per second of each Inference, of loads with their admitted shares."""
    sums: defaultdict[ObjectKey, float] = defaultdict(float)
    for load, share in loads:
        for key, weight in load.by_inference.items():
            if weight > 0:
                sums[key] += load.offered_per_s * weight * share
    return sums


def _hold_share(before: float | None, share: float) -> float:
    return before if before is not None and abs(share - before) < _HELD_CHANGE else share
