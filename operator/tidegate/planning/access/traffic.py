"""Compute request rates of each Inference from the counters of gateways, which may be reset between two pages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from math import inf
from typing import Final

from tidegate.api.meta import ObjectKey
from tidegate.planning.access.release_sample import RequestTally
from tidegate.planning.access.value_classes import ClassTotals, RouteDemands, list_refused, list_unserved
from tidegate.planning.allocator.signals import InferenceMetrics, MetricsScrape

SOURCE: Final = "gateways"
_PERCENTILE: Final = 0.99
_UPTIME_ERROR_S: Final = 7.0
"""Envoy updates its uptime every five seconds, in whole ones, and a page takes a while to arrive."""


@dataclass(frozen=True, slots=True)
class RequestCounters:
    """Counters of one Inference in one Envoy cluster: each only rises, until the cluster is removed with them.

    `attempts`: tries, retries included. `answered`: by headers of success, `failed_later` of which ended with a failure.
    `timed_out`: had no answer in time. `times`: number of requests by milliseconds.
    `refused`: attempts that a limit or admission control refused; `shed_route`: the route of those that admission control did.
    A request in flight is an attempt and nothing else yet, so failures are no counter.
    """

    inference: ObjectKey
    attempts: int = 0
    retries: int = 0
    answered: int = 0
    failed_later: int = 0
    timed_out: int = 0
    times: Mapping[int, int] = field(default_factory=dict[int, int])
    refused: int = 0
    shed_route: str = ""

    def count_since(self, base: RequestCounters | None) -> RequestCounters:
        """Return what came after `base`; all of it if there is none, or if the counters were reset."""
        if base is None or self._was_reset_since(base):
            return self
        return RequestCounters(
            self.inference,
            self.attempts - base.attempts,
            self.retries - base.retries,
            self.answered - base.answered,
            self.failed_later - base.failed_later,
            self.timed_out - base.timed_out,
            {
                time_ms: difference
                for time_ms, count in self.times.items()
                if (difference := count - base.times.get(time_ms, 0))
            },
            self.refused - base.refused,
            self.shed_route,
        )

    @property
    def offered_requests(self) -> int:
        """Return the requests that clients sent.

        A page is not written at one instant: it may count a retry and not its attempt, so the result is bounded by 0.
        """
        return max(self.attempts - self.retries, 0)

    @property
    def served_requests(self) -> int:
        """Return the requests that a model answered; some may have been sent before the base."""
        return max(self.answered - self.failed_later, 0)

    def _was_reset_since(self, base: RequestCounters) -> bool:
        return (
            self.attempts < base.attempts
            or self.retries < base.retries
            or self.answered < base.answered
            or self.failed_later < base.failed_later
            or self.timed_out < base.timed_out
            or self.refused < base.refused
            or any(self.times.get(time_ms, 0) < count for time_ms, count in base.times.items())
        )


@dataclass(frozen=True, slots=True)
class RouteCounters:
    """Requests of one route that were answered, and those that were answered by headers of success."""

    answered: int = 0
    served: int = 0

    def count_since(self, base: RouteCounters | None) -> RouteCounters:
        """Return what came after `base`; all of it if there is none, or if the counters were reset."""
        if base is None or self.answered < base.answered or self.served < base.served:
            return self
        return RouteCounters(self.answered - base.answered, self.served - base.served)


@dataclass(frozen=True, slots=True)
class CounterPage:
    """Counters of one gateway since it started `uptime_s` ago, read at `at_s` of our own clock.

    `counters`: by the name of the Envoy cluster or of the counter of refusals; each can be removed by itself.
    `unserved`: by route, requests without an available pod. `routes`: the answers of each route.
    `priced_out`: by route, requests beyond its admitted share.
    """

    uptime_s: float
    at_s: float
    counters: Mapping[str, RequestCounters]
    unserved: Mapping[str, int] = field(default_factory=dict[str, int])
    routes: Mapping[str, RouteCounters] = field(default_factory=dict[str, RouteCounters])
    priced_out: Mapping[str, int] = field(default_factory=dict[str, int])


CounterPages = Mapping[str, CounterPage]
"""The last page of each gateway by name."""


def compute_rates(
    previous: CounterPages, gateways: Collection[str], pages: CounterPages, routes: RouteDemands
) -> tuple[MetricsScrape, CounterPages]:
    """Return the rates between the last pages and new ones, and the pages to compare with the next time.

    Silent are the `gateways` without a page or without one to compare with; those that restarted, because their last counts are
    lost; and those that have disappeared since, for the same reason.
    """
    silent = set(gateways) - pages.keys() | previous.keys() - set(gateways)
    sums = _RateSums(routes)
    newest = max((page.at_s for page in previous.values()), default=None)
    for name, page in sorted(pages.items()):
        base, complete = _find_base(previous.get(name), page, newest)
        if not complete:
            silent.add(name)
        if base is not None:
            sums.add_page(base, page)
    readings = sums.make_metrics()
    retained = {name: page for name, page in previous.items() if name in gateways and name not in pages}
    failure = ""
    if not gateways:
        failure = "none takes traffic"
    elif not previous:
        failure = "a rate needs two looks, and this was the first"
    elif not pages:
        failure = f"none of {len(gateways)} answers"
    # Each reading begins where the last one ended, so that none overlap.
    return MetricsScrape(SOURCE, readings, timedelta(), timedelta(), tuple(sorted(silent)), failure), {
        **retained,
        **pages,
    }


def compute_p99_s(tally: RequestTally) -> float | None:
    """Return the time within which 99 of 100 requests were answered, in seconds.

    None without requests, inf if too many had no answer.
    """
    allowed = tally.timed_requests * (1 - _PERCENTILE)
    if not tally.timed_requests:
        return None
    if tally.unanswered > allowed:
        return inf
    slower = tally.unanswered
    for time_ms in sorted(tally.times, reverse=True):
        slower += tally.times[time_ms]
        if slower > allowed:
            return time_ms / 1_000
    return None


def _find_base(
    previous: CounterPage | None, page: CounterPage, newest: float | None
) -> tuple[CounterPage | None, bool]:
    """Return the page that a gateway counts from, and whether no counts are missing."""
    if newest is None or page.at_s <= newest:
        return None, False
    began_s = page.at_s - page.uptime_s
    if previous is None:
        # A gateway that started after the last page counts from zero.
        return (CounterPage(0.0, newest, {}), True) if began_s >= newest - _UPTIME_ERROR_S else (None, False)
    # Detect a restart by the uptime alone: counters also disappear with their Envoy cluster, as when a release ends.
    younger = page.uptime_s + _UPTIME_ERROR_S < previous.uptime_s + (page.at_s - previous.at_s)
    return (CounterPage(0.0, previous.at_s, {}), False) if younger else (previous, True)


class _RateSums:
    """Sums the rates of gateways by Inference."""

    def __init__(self, routes: RouteDemands) -> None:
        self._routes = routes
        self._totals: defaultdict[ObjectKey, InferenceMetrics] = defaultdict(
            lambda: InferenceMetrics(0.0, 0.0, refused_per_s=0.0)
        )
        self._late: defaultdict[ObjectKey, RequestTally] = defaultdict(RequestTally)
        self._classes = ClassTotals(routes)

    def add_page(self, base: CounterPage, page: CounterPage) -> None:
        """Add what one gateway counted between two pages."""
        seconds = page.at_s - base.at_s
        for place, counters in page.counters.items():
            delta, key = counters.count_since(base.counters.get(place)), counters.inference
            self._late[key] += RequestTally(times=delta.times, unanswered=delta.timed_out)
            refused = delta.refused / seconds
            self._add_rates(key, delta.offered_requests / seconds, delta.served_requests / seconds, refused)
            if delta.shed_route:
                self._classes.add_shed(delta.shed_route, key, refused)
        for route, count in page.unserved.items():
            self._add_unserved(route, _count_since(base.unserved, route, count) / seconds)
        for route, count in page.priced_out.items():
            self._add_priced_out(route, _count_since(base.priced_out, route, count) / seconds)
        for route, answers in page.routes.items():
            since = answers.count_since(base.routes.get(route))
            self._classes.add_answered(route, since.answered / seconds, since.served / seconds)
            for key, rate in list_unserved(self._routes, route, since.answered / seconds):
                self._add_rates(key, rate, 0.0, rate)

    def make_metrics(self) -> Mapping[ObjectKey, InferenceMetrics]:
        """Return the sums."""
        return {
            key: replace(
                reading,
                latency_p99_s=compute_p99_s(self._late[key]),
                classes=self._classes.get_classes(key),
            )
            for key, reading in self._totals.items()
        }

    def _add_unserved(self, route: str, rate: float) -> None:
        self._classes.add_unserved(route, rate)
        for key, share in self._find_shares(route):
            self._add_rates(key, share * rate, 0.0, 0.0)

    def _add_priced_out(self, route: str, rate: float) -> None:
        for key, refused in list_refused(self._routes, route, rate):
            self._classes.add_shed(route, key, refused)
            self._add_rates(key, refused, 0.0, refused)

    def _find_shares(self, route: str) -> Iterable[tuple[ObjectKey, float]]:
        demand = self._routes.get(route)
        return demand.by_inference.items() if demand is not None else ()

    def _add_rates(self, key: ObjectKey, offered: float, served: float, refused: float) -> None:
        before = self._totals[key]
        self._totals[key] = InferenceMetrics(
            (before.offered_per_s or 0.0) + offered,
            (before.served_per_s or 0.0) + served,
            refused_per_s=(before.refused_per_s or 0.0) + refused,
        )


def _count_since(base: Mapping[str, int], route: str, count: int) -> int:
    """Return what came after `base`; all of it if the counter was reset."""
    counted = base.get(route, 0)
    return count - counted if count >= counted else count
