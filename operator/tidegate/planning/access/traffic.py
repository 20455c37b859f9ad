"""Compute request rates of each Inference from the counters of gateways, which may be reset between two pages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from math import inf
from typing import Final

from tidegate.api.meta import ObjectKey
from tidegate.api.model_access import ModelAccess
from tidegate.planning.access.release_sample import RequestTally
from tidegate.planning.allocator.signals import InferenceMetrics, MetricsScrape

SOURCE: Final = "gateways"
_PERCENTILE: Final = 0.99
_UPTIME_ERROR_S: Final = 7.0
"""Envoy updates its uptime every five seconds, in whole ones, and a page takes a while to arrive."""

Shares = Mapping[str, Mapping[ObjectKey, float]]
"""By route (`access/<namespace>/<name>/<route>`), the share of its requests for each Inference."""


@dataclass(frozen=True, slots=True)
class RequestCounters:
    """Counters of one Inference in one Envoy cluster: each only rises, until the cluster is removed with them.

    `attempts`: tries, retries included. `answered`: by headers of success, `failed_later` of which ended with a failure.
    `timed_out`: had no answer in time. `times`: number of requests by milliseconds.
    A request in flight is an attempt and nothing else yet, so failures are no counter.
    """

    inference: ObjectKey
    attempts: int = 0
    retries: int = 0
    answered: int = 0
    failed_later: int = 0
    timed_out: int = 0
    times: Mapping[int, int] = field(default_factory=dict[int, int])

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
            or any(self.times.get(time_ms, 0) < count for time_ms, count in base.times.items())
        )


@dataclass(frozen=True, slots=True)
class CounterPage:
    """Counters of one gateway since it started `uptime_s` ago, read at `at_s` of our own clock.

    `counters`: by the name of the Envoy cluster or of the counter of refusals; each can be removed by itself.
    `unserved`: by route, requests without an available pod.
    """

    uptime_s: float
    at_s: float
    counters: Mapping[str, RequestCounters]
    unserved: Mapping[str, int] = field(default_factory=dict[str, int])


CounterPages = Mapping[str, CounterPage]
"""The last page of each gateway by name."""


def compute_rates(
    previous: CounterPages, gateways: Collection[str], pages: CounterPages, shares: Shares
) -> tuple[MetricsScrape, CounterPages]:
    """Return the rates between the last pages and new ones, and the pages to compare with the next time.

    Silent are the `gateways` without a page or without one to compare with; those that restarted, because their last counts are
    lost; and those that have disappeared since, for the same reason.
    """
    silent = set(gateways) - pages.keys() | previous.keys() - set(gateways)
    totals: defaultdict[ObjectKey, InferenceMetrics] = defaultdict(lambda: InferenceMetrics(0.0, 0.0))
    late: defaultdict[ObjectKey, RequestTally] = defaultdict(RequestTally)
    newest = max((page.at_s for page in previous.values()), default=None)
    for name, page in sorted(pages.items()):
        base, complete = _find_base(previous.get(name), page, newest)
        if not complete:
            silent.add(name)
        if base is None:
            continue
        seconds = page.at_s - base.at_s
        for place, counters in page.counters.items():
            delta, key = counters.count_since(base.counters.get(place)), counters.inference
            late[key] += RequestTally(times=delta.times, unanswered=delta.timed_out)
            _add_rates(totals, key, delta.offered_requests / seconds, delta.served_requests / seconds)
        for route, count in page.unserved.items():
            counted = base.unserved.get(route, 0)
            refused = count - counted if count >= counted else count
            for key, share in shares.get(route, {}).items():
                _add_rates(totals, key, share * refused / seconds, 0.0)
    readings = {
        key: InferenceMetrics(reading.offered_per_s, reading.served_per_s, compute_p99_s(late[key]))
        for key, reading in totals.items()
    }
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


def compute_shares(accesses: Iterable[ModelAccess]) -> Shares:
    """Return the share of each target in the requests of its route, by the weights in the spec."""
    shares: dict[str, dict[ObjectKey, float]] = {}
    for access in accesses:
        for route in access.spec.routes:
            total = sum(target.weight for target in route.targets)
            shares[f"access/{access.key}/{route.name}"] = {
                ObjectKey(access.key.namespace, target.inference): target.weight / total
                for target in route.targets
            }
    return shares


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


def _add_rates(
    totals: defaultdict[ObjectKey, InferenceMetrics], key: ObjectKey, offered: float, served: float
) -> None:
    before = totals[key]
    totals[key] = InferenceMetrics(
        (before.offered_per_s or 0.0) + offered,
        (before.served_per_s or 0.0) + served,
    )
