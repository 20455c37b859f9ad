"""What gateways counted of each Inference's requests, and how two looks at counters that begin anew become rates."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from math import inf
from typing import Final

from tidegate.api.meta import ObjectKey
from tidegate.api.model_access import ModelAccess
from tidegate.planning.sample import NOT_AT_ONCE, Tally
from tidegate.planning.signals import Look, Reading

SOURCE: Final = "gateways"
_PERCENTILE: Final = 0.99
_UNSURE_S: Final = 2.0
"""Envoy counts its own age in whole seconds, and a page takes a while to come."""

Shares = Mapping[str, Mapping[ObjectKey, float]]
"""By route (`access/<namespace>/<name>/<route>`), what part of its requests each Inference is to answer."""


@dataclass(frozen=True, slots=True)
class Page:
    """What one gateway counted since it started `uptime_s` ago, read at `at_s` of our own clock.

    `tallies`: by Inference; a failure is a request that no model answered. `unserved`: by route, those for which no pod was left.
    """

    uptime_s: float
    at_s: float
    tallies: Mapping[ObjectKey, Tally]
    unserved: Mapping[str, int] = field(default_factory=dict[str, int])


Pages = Mapping[str, Page]
"""The last page of each gateway that was heard of, by its name."""


def look_between(before: Pages, asked: Collection[str], pages: Pages, shares: Shares) -> tuple[Look, Pages]:
    """The rates between the last pages and new ones, and the pages to compare with the next time.

    Silent are those gateways of `asked` that have no page, or none to compare it with; those that began anew, since what they
    counted last is lost; and those that are gone since, for the same reason.
    """
    silent = set(asked) - pages.keys() | before.keys() - set(asked)
    totals: defaultdict[ObjectKey, Reading] = defaultdict(lambda: Reading(0.0, 0.0))
    late: defaultdict[ObjectKey, Tally] = defaultdict(Tally)
    newest = max((page.at_s for page in before.values()), default=None)
    for name, page in sorted(pages.items()):
        base, whole = _base(before.get(name), page, newest)
        if not whole:
            silent.add(name)
        if base is None:
            continue
        seconds = page.at_s - base.at_s
        for key, tally in page.tallies.items():
            counted = tally.since(base.tallies.get(key, Tally()))
            late[key] += counted
            _add(totals, key, counted.requests / seconds, (counted.requests - counted.failures) / seconds)
        for route, count in page.unserved.items():
            refused = max(count - base.unserved.get(route, 0), 0)
            for key, share in shares.get(route, {}).items():
                _add(totals, key, share * refused / seconds, 0.0)
    readings = {
        key: Reading(one.offered_per_s, one.served_per_s, p99_s(late[key])) for key, one in totals.items()
    }
    kept = {name: page for name, page in before.items() if name in asked and name not in pages}
    failure = ""
    if not asked:
        failure = "none takes traffic"
    elif not before:
        failure = "a rate needs two looks, and this was the first"
    elif not pages:
        failure = f"none of {len(asked)} answers"
    # A look begins where the last one ended: no two share time.
    return Look(SOURCE, readings, timedelta(), timedelta(), tuple(sorted(silent)), failure), {**kept, **pages}


def shares_of(accesses: Iterable[ModelAccess]) -> Shares:
    """What part of each route's requests each of its targets is to answer, by the weights that the user gave."""
    shares: dict[str, dict[ObjectKey, float]] = {}
    for access in accesses:
        for route in access.spec.routes:
            total = sum(target.weight for target in route.targets)
            shares[f"access/{access.key}/{route.name}"] = {
                ObjectKey(access.key.namespace, target.inference): target.weight / total
                for target in route.targets
            }
    return shares


def p99_s(counted: Tally) -> float | None:
    """The time within which 99 of 100 requests were answered, in seconds; None without requests, inf when too many had no answer."""
    left = counted.timed * (1 - _PERCENTILE)
    if not counted.timed:
        return None
    if counted.unanswered > left:
        return inf
    slower = counted.unanswered
    for at in sorted(counted.times, reverse=True):
        slower += counted.times[at]
        if slower > left:
            return at / 1_000
    return None


def _base(before: Page | None, page: Page, newest: float | None) -> tuple[Page | None, bool]:
    """From where a gateway counted, and whether nothing of it is missing."""
    if newest is None or page.at_s <= newest:
        return None, False
    began_s = page.at_s - page.uptime_s
    if before is None:
        # One that started after the last look counted from nothing, and all of it since.
        return (Page(0.0, newest, {}), True) if began_s >= newest - _UNSURE_S else (None, False)
    younger = page.uptime_s + _UNSURE_S < before.uptime_s + (page.at_s - before.at_s)
    return (Page(0.0, before.at_s, {}), False) if younger or _fell(before, page) else (before, True)


def _fell(before: Page, page: Page) -> bool:
    """Whether a counter is lower than it was, by more than what a page that is written for a while explains."""
    both = before.tallies.keys() & page.tallies.keys()
    return any(page.tallies[key].requests + NOT_AT_ONCE < before.tallies[key].requests for key in both)


def _add(totals: defaultdict[ObjectKey, Reading], key: ObjectKey, offered: float, served: float) -> None:
    before = totals[key]
    totals[key] = Reading(
        (before.offered_per_s or 0.0) + offered,
        (before.served_per_s or 0.0) + served,
    )
