"""Shares of each route's requests that gateways answer in full, or at less cost: they refuse no more requests than needed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from math import isfinite
from types import MappingProxyType
from typing import Final

from tidegate.api.meta import ObjectKey
from tidegate.routing.ir import REDUCED

_HELD_CHANGE: Final = 0.02
"""Shares stay unchanged while a change would move at most this part of an Inference's capacity, because rates vary by chance."""


_MOST_RELIEVED: Final = 4
"""How many Inferences are relieved one after the other before all are at once: each is a plan of its own."""


@dataclass(frozen=True, slots=True)
class ReducedAnswer:
    """How a request beyond the admitted share is answered: its cost in capacity of each Inference, and its value.

    `suffix`, after the name of the route, names its share.
    """

    costs: Mapping[ObjectKey, float]
    value: float
    suffix: str = REDUCED


@dataclass(frozen=True, slots=True)
class RouteLoad:
    """The requests of one route (`access/<namespace>/<name>/<route>`).

    `offered_per_s`: requests that clients send, refused ones included; not finite if it was not measured.
    `costs`: the cost of a request in capacity of each Inference, in requests; for targets, their shares of the admitted requests.
    `value`: value of an answered request. `priced`: gateways admit a share of the requests; otherwise all of them.
    `reduced`: the other ways to answer, in the order in which gateways compare their shares; the first saves the most.
    """

    route: str
    offered_per_s: float
    costs: Mapping[ObjectKey, float]
    value: float
    priced: bool
    reduced: Sequence[ReducedAnswer] = ()

    @property
    def limiting_inferences(self) -> frozenset[ObjectKey]:
        """Return the Inferences whose capacity matters to the requests."""
        return frozenset(self.costs).union(*(answer.costs for answer in self.reduced))

    def list_saved(self, answer: ReducedAnswer) -> Mapping[ObjectKey, float]:
        """Return how much less capacity a reduced answer takes than the full one, by Inference."""
        return {key: max(cost - answer.costs.get(key, 0.0), 0.0) for key, cost in self.costs.items()}


Shares = Mapping[str, float]
"""By route, the admitted share, from 0 to 1; by route with the suffix of a reduced answer, the share that is admitted, or gets this
answer or one before it.

Without an entry the share is 1.
"""


NO_SHARES: Final[Shares] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class _PricedLoad:
    """A priced route, and the reduced answer of this round, if there is one."""

    load: RouteLoad
    reduced: ReducedAnswer | None

    @property
    def has_fallback(self) -> bool:
        """Return whether other Inferences give the reduced answers."""
        return self.reduced is not None and self.load.costs.keys().isdisjoint(self.reduced.costs)


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

    def find_value(self, route: _PricedLoad) -> float:
        """Return the value per second of what the route answers."""
        load, reduced = route.load, route.reduced
        full = self.admitted[load.route]
        rest = 0.0 if reduced is None else (self.answered[load.route] - full) * reduced.value
        return load.offered_per_s * (full * load.value + rest)

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
    admitted, those of the highest value first. Routes of equal gain get equal shares. Of several reduced answers, a route offers
    the most valuable one that relieves the fullest Inferences; as many of them are relieved as gives the most value.
    """
    usable = [load for load in loads if isfinite(load.offered_per_s) and load.offered_per_s > 0]
    capacities = {
        key: capacity for key, capacity in capacities.items() if isfinite(capacity) and capacity > 0
    }
    plans = [_admit_requests(usable, capacities, relieved) for relieved in _list_relieved(usable, capacities)]
    priced, admission = max(plans, key=lambda plan: sum(plan[1].find_value(route) for route in plan[0]))
    shares = {name: share for route in priced for name, share in _list_shares(route, admission) if share < 1}
    movable = {key: _HELD_CHANGE * capacity for key, capacity in capacities.items()}
    for route in priced:
        _hold_shares(route.load, shares, before, movable)
    return dict(sorted(shares.items()))


def _admit_requests(
    loads: Sequence[RouteLoad], capacities: Mapping[ObjectKey, float], relieved: Set[ObjectKey]
) -> tuple[Sequence[_PricedLoad], _Admission]:
    """Return the priced routes, and which of their requests are admitted or get a reduced answer that relieves these Inferences."""
    admission = _Admission(dict(capacities))
    for load in loads:
        if not load.priced:
            for key, rate in _sum_costs([(load.offered_per_s, load.costs)]).items():
                if key in admission.remaining:
                    admission.remaining[key] = max(admission.remaining[key] - rate, 0.0)
    priced = [_PricedLoad(load, _choose_reduced(load, relieved)) for load in loads if load.priced]
    _accept_offers(admission, [offer for route in priced for offer in _list_offers(route)])
    _use_fallbacks(admission, [route for route in priced if route.has_fallback])
    return priced, admission


def _list_relieved(
    loads: Sequence[RouteLoad], capacities: Mapping[ObjectKey, float]
) -> Iterable[frozenset[ObjectKey]]:
    """Yield which Inferences reduced answers could relieve: none, the fullest, the two fullest, and so on.

    Only Inferences count that lack capacity for full answers, and that one of several reduced answers saves.
    """
    needed = _sum_costs((load.offered_per_s, load.costs) for load in loads)
    fullness = {key: rate / capacities[key] for key, rate in needed.items() if key in capacities}
    separable = {
        key for load in loads if len(load.reduced) > 1 for keys in _list_relievable(load) for key in keys
    }
    scarce = sorted(
        (key for key in separable if fullness.get(key, 0.0) > 1), key=lambda key: (-fullness[key], str(key))
    )
    for count in range(min(len(scarce), _MOST_RELIEVED) + 1):
        yield frozenset(scarce[:count])
    if len(scarce) > _MOST_RELIEVED:
        yield frozenset(scarce)


def _choose_reduced(load: RouteLoad, relieved: Set[ObjectKey]) -> ReducedAnswer | None:
    """Return the most valuable reduced answer that saves of each of these Inferences of which any saves; of equals, the last one."""
    if len(load.reduced) < 2:
        return next(iter(load.reduced), None)
    saved = _list_relievable(load)
    relevant = relieved & set().union(*saved)
    suitable = [answer for answer, keys in zip(load.reduced, saved, strict=True) if relevant <= keys]
    return max(reversed(suitable), key=lambda answer: answer.value, default=load.reduced[0])


def _list_relievable(load: RouteLoad) -> Sequence[Set[ObjectKey]]:
    """Return the Inferences of which each reduced answer saves."""
    return [{key for key, part in load.list_saved(answer).items() if part > 0} for answer in load.reduced]


def _list_shares(route: _PricedLoad, admission: _Admission) -> Iterator[tuple[str, float]]:
    """Yield the share of the route, and those of its reduced answers: with the chosen one, gateways answer more requests."""
    name = route.load.route
    share = admission.admitted[name]
    yield name, share
    for answer in route.load.reduced:
        if answer is route.reduced:
            share = admission.answered[name]
        yield f"{name}{answer.suffix}", share


def _list_offers(route: _PricedLoad) -> Iterable[_Offer]:
    """Yield how the Inferences of a route may answer its requests."""
    load, reduced = route.load, route.reduced
    # The cost at the Inference where it is highest; targets share a request, which is still one request.
    size = max((1.0, *load.costs.values()))
    full = _Offer(load, load.value / size, load.costs)
    if reduced is None or route.has_fallback:
        yield full
        return
    saved = load.list_saved(reduced)
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


def _use_fallbacks(admission: _Admission, routes: Iterable[_PricedLoad]) -> None:
    ordered = sorted(routes, key=lambda route: (-route.load.value, route.load.route))
    for _, group in groupby(ordered, key=lambda route: route.load.value):
        equals = tuple(group)
        refused = [1 - admission.admitted[route.load.route] for route in equals]
        shares = admission.take_requests(
            [
                (route.load.offered_per_s * part, route.reduced.costs if route.reduced is not None else {})
                for route, part in zip(equals, refused, strict=True)
            ]
        )
        for route, part, share in zip(equals, refused, shares, strict=True):
            admission.answered[route.load.route] = 1 - part * (1 - share)


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

    All of its shares stay or none, because the reduced answers are their differences. What all routes together move
    counts, so that an Inference gets little more than its capacity, and little of that stays idle.
    """
    names = [load.route, *(f"{load.route}{answer.suffix}" for answer in load.reduced)]
    limited = [name for name in names if name in shares]
    if limited != [name for name in names if name in before]:
        return
    now, then = ([planned.get(name, 1.0) for name in names] for planned in (shares, before))
    parts_now, parts_then = ([share - last for last, share in pairwise([0.0, *sums])] for sums in (now, then))
    costs = [load.costs, *(answer.costs for answer in load.reduced)]
    amounts = [
        (load.offered_per_s * abs(part - part_then), cost)
        for part, part_then, cost in zip(parts_now, parts_then, costs, strict=True)
    ]
    moved = {key: rate for key, rate in _sum_costs(amounts).items() if key in movable}
    if any(rate > movable[key] for key, rate in moved.items()):
        return
    for key, rate in moved.items():
        movable[key] -= rate
    shares.update((name, before[name]) for name in limited)
