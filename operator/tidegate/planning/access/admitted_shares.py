"""Shares of each route's requests that gateways answer in full, or at less cost: they refuse no more requests than needed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from math import isfinite
from types import MappingProxyType
from typing import Final

from tidegate.api.meta import ObjectKey
from tidegate.routing.ir import REDUCED

_HELD_CHANGE: Final = 0.02
"""Shares stay unchanged while a change would move at most this part of an Inference's capacity, because rates vary by chance."""


@dataclass(frozen=True, slots=True)
class ReducedAnswer:
    """How a request beyond the admitted share is answered: its cost in capacity of each Inference, and its value."""

    costs: Mapping[ObjectKey, float]
    value: float


@dataclass(frozen=True, slots=True)
class RouteLoad:
    """The requests of one route (`access/<namespace>/<name>/<route>`).

    `offered_per_s`: requests that clients send, refused ones included; not finite if it was not measured.
    `costs`: the cost of a request in capacity of each Inference, in requests; for targets, their shares of the admitted requests.
    `value`: value of an answered request. `priced`: gateways admit a share of the requests; otherwise all of them.
    """

    route: str
    offered_per_s: float
    costs: Mapping[ObjectKey, float]
    value: float
    priced: bool
    reduced: ReducedAnswer | None = None

    @property
    def limiting_inferences(self) -> frozenset[ObjectKey]:
        """Return the Inferences whose capacity matters to the requests."""
        return frozenset(self.costs) | frozenset(self.reduced.costs if self.reduced is not None else ())


Shares = Mapping[str, float]
"""By route, the admitted share, from 0 to 1; by route with REDUCED, the share that is admitted or gets a reduced answer.

Without an entry the share is 1.
"""


NO_SHARES: Final[Shares] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class _Offer:
    """A way to answer requests of a route: `gain` is the value per unit of capacity, `costs` the capacity that a request takes.

    `is_reduced`: with the reduced answer. `is_upgrade`: in full instead of reduced, for at most as many requests as get a reduced answer.
    """

    load: RouteLoad
    gain: float
    costs: Mapping[ObjectKey, float]
    is_reduced: bool = False
    is_upgrade: bool = False


@dataclass(slots=True)
class _Admission:
    """The capacity that remains of each Inference, and the shares so far; an Inference without an entry has no limit."""

    remaining: dict[ObjectKey, float]
    admitted: dict[str, float] = field(default_factory=dict[str, float])
    answered: dict[str, float] = field(default_factory=dict[str, float])

    def take_requests(self, amounts: Sequence[tuple[float, Mapping[ObjectKey, float]]]) -> list[float]:
        """Take the capacity for (requests per second, costs), and return the share of each for which there is capacity.

        All offers get the same share of an Inference, and each offer the smallest share that any of its Inferences allows.
        """
        allowed = {
            key: min(self.remaining[key] / rate, 1.0)
            for key, rate in _sum_costs(amounts).items()
            if key in self.remaining
        }
        shares = [
            min((allowed[key] for key, cost in costs.items() if cost > 0 and key in allowed), default=1.0)
            for _, costs in amounts
        ]
        taken = [(rate * share, costs) for (rate, costs), share in zip(amounts, shares, strict=True)]
        for key, rate in _sum_costs(taken).items():
            if key in self.remaining:
                self.remaining[key] = max(self.remaining[key] - rate, 0.0)
        return shares


def plan_shares(
    loads: Iterable[RouteLoad], capacities: Mapping[ObjectKey, float], before: Shares = NO_SHARES
) -> Shares:
    """Return the shares of the priced routes that do not admit all requests.

    `capacities`: requests per second that the ready pods of an Inference answer; without an entry, no request is refused.
    Routes that are not priced are served first. Then capacity goes to the offers with the most value per capacity (the fractional
    multiple-choice knapsack): a reduced answer by the same Inferences, if it keeps more value than it takes capacity; the rest
    of the full answer; or the full answer at once. What then remains of a fallback's capacity answers requests that were not
    admitted, those of the highest value first. Routes of equal gain get equal shares.
    """
    usable = [load for load in loads if isfinite(load.offered_per_s) and load.offered_per_s > 0]
    priced = [load for load in usable if load.priced]
    admission = _Admission(
        {key: capacity for key, capacity in capacities.items() if isfinite(capacity) and capacity > 0}
    )
    movable = {key: _HELD_CHANGE * capacity for key, capacity in admission.remaining.items()}
    for load in usable:
        if not load.priced:
            for key, rate in _sum_costs([(load.offered_per_s, load.costs)]).items():
                if key in admission.remaining:
                    admission.remaining[key] = max(admission.remaining[key] - rate, 0.0)
    _accept_offers(admission, [offer for load in priced for offer in _list_offers(load)])
    _use_fallbacks(admission, [load for load in priced if _has_fallback(load)])
    shares = {route: share for route, share in admission.admitted.items() if share < 1}
    shares |= {
        f"{load.route}{REDUCED}": admission.answered[load.route]
        for load in priced
        if load.reduced is not None and admission.answered[load.route] < 1
    }
    for load in priced:
        _hold_shares(load, shares, before, movable)
    return dict(sorted(shares.items()))


def _has_fallback(load: RouteLoad) -> bool:
    """Return whether other Inferences give the reduced answers."""
    return load.reduced is not None and load.costs.keys().isdisjoint(load.reduced.costs)


def _list_offers(load: RouteLoad) -> Iterable[_Offer]:
    """Yield how the Inferences of a route may answer its requests."""
    # The cost at the Inference where it is highest; targets share a request, which is still one request.
    size = max((1.0, *load.costs.values()))
    full, reduced = _Offer(load, load.value / size, load.costs), load.reduced
    if reduced is None or _has_fallback(load):
        yield full
        return
    saved = {key: max(cost - reduced.costs.get(key, 0.0), 0.0) for key, cost in load.costs.items()}
    # Of the Inference where most is saved: fewer candidates help only there.
    part_saved = max((saved[key] / cost for key, cost in load.costs.items() if cost > 0), default=0.0)
    if not 0 < part_saved < 1:
        yield full
        return
    gain = reduced.value / (size * (1 - part_saved))
    upgrade_gain = (load.value - reduced.value) / (size * part_saved)
    # An upgrade must come after the reduced answer; with equal gains, both together are the full answer.
    if gain <= upgrade_gain:
        yield full
        return
    yield _Offer(load, gain, reduced.costs, is_reduced=True)
    yield _Offer(load, upgrade_gain, saved, is_upgrade=True)


def _accept_offers(admission: _Admission, offers: Iterable[_Offer]) -> None:
    ordered = sorted(offers, key=lambda offer: (-offer.gain, offer.load.route))
    for _, group in groupby(ordered, key=lambda offer: offer.gain):
        equals = tuple(group)
        limits = [admission.answered[offer.load.route] if offer.is_upgrade else 1.0 for offer in equals]
        shares = admission.take_requests(
            [
                (offer.load.offered_per_s * limit, offer.costs)
                for offer, limit in zip(equals, limits, strict=True)
            ]
        )
        for offer, limit, share in zip(equals, limits, shares, strict=True):
            if not offer.is_upgrade:
                admission.answered[offer.load.route] = share
            admission.admitted[offer.load.route] = 0.0 if offer.is_reduced else limit * share


def _use_fallbacks(admission: _Admission, loads: Iterable[RouteLoad]) -> None:
    ordered = sorted(loads, key=lambda load: (-load.value, load.route))
    for _, group in groupby(ordered, key=lambda load: load.value):
        equals = tuple(group)
        refused = [1 - admission.admitted[load.route] for load in equals]
        shares = admission.take_requests(
            [
                (load.offered_per_s * part, load.reduced.costs if load.reduced is not None else {})
                for load, part in zip(equals, refused, strict=True)
            ]
        )
        for load, part, share in zip(equals, refused, shares, strict=True):
            admission.answered[load.route] = 1 - part * (1 - share)


def _sum_costs(amounts: Iterable[tuple[float, Mapping[ObjectKey, float]]]) -> Mapping[ObjectKey, float]:
    """Return the requests per second of each Inference, of (requests per second, costs)."""
    sums: defaultdict[ObjectKey, float] = defaultdict(float)
    for rate, costs in amounts:
        for key, cost in costs.items():
            if rate > 0 and cost > 0:
                sums[key] += rate * cost
    return sums


def _hold_shares(
    load: RouteLoad, shares: dict[str, float], before: Shares, movable: dict[ObjectKey, float]
) -> None:
    """Put the route's shares `before` into `shares`, unless their difference is more requests than are `movable`.

    Both of its shares stay or neither, because the reduced answers are their difference. What all routes together move
    counts, so that an Inference gets little more than its capacity, and little of that stays idle.
    """
    names = load.route, f"{load.route}{REDUCED}"
    limited = [name for name in names if name in shares]
    if limited != [name for name in names if name in before]:
        return
    now, then = ([planned.get(name, 1.0) for name in names] for planned in (shares, before))
    full = load.offered_per_s * abs(now[0] - then[0])
    reduced = load.offered_per_s * abs((now[1] - now[0]) - (then[1] - then[0]))
    reduced_costs = load.reduced.costs if load.reduced is not None else {}
    moved = {
        key: rate
        for key, rate in _sum_costs([(full, load.costs), (reduced, reduced_costs)]).items()
        if key in movable
    }
    if any(rate > movable[key] for key, rate in moved.items()):
        return
    for key, rate in moved.items():
        movable[key] -= rate
    shares.update((name, before[name]) for name in limited)
