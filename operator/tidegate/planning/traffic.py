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
from tidegate.planning.sample import Tally
from tidegate.planning.signals import Look, Reading

SOURCE: Final = "gateways"
_PERCENTILE: Final = 0.99
_UNSURE_S: Final = 7.0
"""Envoy looks at its own age every five seconds, counts it in whole ones, and a page takes a while to come."""

Shares = Mapping[str, Mapping[ObjectKey, float]]
"""By route (`access/<namespace>/<name>/<route>`), what part of its requests each Inference is to answer."""


@dataclass(frozen=True, slots=True)
class Counters:
    """What was counted for one Inference in one place: each figure only rises, until the place and all its figures go.

    `attempts`: tries, retries among them. `answered`: by headers of success, `failed_later` of which ended with a failure.
    `timed_out`: had no answer in time. `times`: how many took how many milliseconds.
    What is in flight is an attempt and nothing else yet, so that failures are no counter.
    """

    inference: ObjectKey
    attempts: int = 0
    retries: int = 0
    answered: int = 0
    failed_later: int = 0
    timed_out: int = 0
    times: Mapping[int, int] = field(default_factory=dict[int, int])

    def since(self, base: Counters | None) -> Counters:
        """What came after `base`; all of it when there is none, or a figure is lower than it was."""
        if base is None or self._began_after(base):
            return self
        return Counters(
            self.inference,
            self.attempts - base.attempts,
            self.retries - base.retries,
            self.answered - base.answered,
            self.failed_later - base.failed_later,
            self.timed_out - base.timed_out,
            {at: more for at, count in self.times.items() if (more := count - base.times.get(at, 0))},
        )

    @property
    def offered(self) -> int:
        """Requests that clients sent. A page is not written at one instant: a retry may be on it and its try not."""
        return max(self.attempts - self.retries, 0)

    @property
    def served(self) -> int:
        """Requests that a model answered, some of which may have been sent before."""
        return max(self.answered - self.failed_later, 0)

    def _began_after(self, base: Counters) -> bool:
        return (
            self.attempts < base.attempts
            or self.retries < base.retries
            or self.answered < base.answered
            or self.failed_later < base.failed_later
            or self.timed_out < base.timed_out
            or any(self.times.get(at, 0) < count for at, count in base.times.items())
        )


@dataclass(frozen=True, slots=True)
class Page:
    """What one gateway counted since it started `uptime_s` ago, read at `at_s` of our own clock.

    `counters`: by the name of the Envoy cluster or of the counter of refusals, each of which comes and goes by itself.
    `unserved`: by route, requests for which no pod was left.
    """

    uptime_s: float
    at_s: float
    counters: Mapping[str, Counters]
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
        for place, counters in page.counters.items():
            counted, key = counters.since(base.counters.get(place)), counters.inference
            late[key] += Tally(times=counted.times, unanswered=counted.timed_out)
            _add(totals, key, counted.offered / seconds, counted.served / seconds)
        for route, count in page.unserved.items():
            known = base.unserved.get(route, 0)
            refused = count - known if count >= known else count
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
    # By its age alone: counters also go with the Envoy cluster that they are of, as when a release ends.
    younger = page.uptime_s + _UNSURE_S < before.uptime_s + (page.at_s - before.at_s)
    return (Page(0.0, before.at_s, {}), False) if younger else (before, True)


def _add(totals: defaultdict[ObjectKey, Reading], key: ObjectKey, offered: float, served: float) -> None:
    before = totals[key]
    totals[key] = Reading(
        (before.offered_per_s or 0.0) + offered,
        (before.served_per_s or 0.0) + served,
    )
