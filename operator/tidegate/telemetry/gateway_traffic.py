"""Read signals from the statistics pages of the gateways, for clusters without Prometheus."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from tidegate.api.meta import ObjectKey
from tidegate.planning.access.traffic import (
    CounterPage,
    CounterPages,
    RequestCounters,
    RouteCounters,
    compute_rates,
)
from tidegate.planning.access.value_classes import RouteDemands
from tidegate.planning.allocator.signals import MetricsScrape
from tidegate.routing.envoy_names import (
    NO_POD_DETAILS,
    OVERLOAD_DETAILS,
    PRICED_OUT,
    REJECTIONS_PATTERN,
    ROUTES_PATTERN,
    parse_cluster_name,
    parse_rejections_counter,
    parse_route_counter,
)
from tidegate.routing.fleet import BackendKey, BackendKind
from tidegate.routing.ir import AccessPoolKey, PoolRole
from tidegate.telemetry.gateways import TIMES, EnvoyStatistics, ScrapeTarget, read_pages

ATTEMPTS: Final = (
    "upstream_rq_total",
    "upstream_rq_active_overflow",
    "upstream_rq_pending_overflow",
    "upstream_rq_pending_failure_eject",
    "upstream_rq_cancelled",
    "upstream_cx_none_healthy",
)
"""Counters of attempts; each attempt ends in exactly one of them.

It is sent to a pod, exceeds a limit, gets no connection, is cancelled by the client before it has one, or finds no pod.
"""
RETRIES: Final = "upstream_rq_retry"
"""Counter of all attempts except the first."""

LIMITED: Final = ("upstream_rq_active_overflow", "upstream_rq_pending_overflow")
"""Counters of the attempts that exceed a limit."""

_ANSWERED: Final = ("upstream_rq_2xx", "upstream_rq_3xx")
_FAILED_LATER: Final = "grpc.failure"
_TIMED_OUT: Final = ("upstream_rq_timeout", "upstream_rq_max_duration_reached")
_COUNTERS: Final = (*ATTEMPTS, RETRIES, *_ANSWERED, _FAILED_LATER, *_TIMED_OUT, TIMES)
_CLUSTERS: Final = ("inference", PoolRole.RELEASE)
_QUERY: Final = rf"^cluster\.({'|'.join(_CLUSTERS)})/[^.]*\.({'|'.join(_COUNTERS)})$|{REJECTIONS_PATTERN}|{ROUTES_PATTERN}|^server\.uptime$"


class GatewayTraffic:
    """SignalSource that compares the counters of all serving gateways with those of the previous scrape."""

    def __init__(
        self,
        gateways: Callable[[], Sequence[ScrapeTarget]],
        routes: Callable[[], RouteDemands],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`routes` returns how the requests of each route are attributed to Inferences."""
        self._gateways = gateways
        self._routes = routes
        self._monotonic = monotonic
        self._pages: CounterPages = {}

    async def scrape_signals(self) -> MetricsScrape:
        """Return the rates since the previous scrape; the first call returns a failure."""
        pages = await read_pages(self._gateways(), _QUERY, parse_traffic, self._monotonic)
        readable_pages = {name: page for name, page in pages.items() if page is not None}
        # In a thread: some hundred thousand counters would block the event loop for too long.
        rates, self._pages = await asyncio.to_thread(
            compute_rates, self._pages, tuple(pages), readable_pages, self._routes()
        )
        return rates


def parse_traffic(statistics: EnvoyStatistics) -> CounterPage:
    """Return the request counters of one gateway. Raises ValueError if the page is incomplete."""
    cluster_counters, times, values = statistics.counters, statistics.times, statistics.server_values
    shed = {name: parsed for name in values if (parsed := parse_rejections_counter(name)) is not None}
    counters: dict[str, RequestCounters] = {}
    for cluster in cluster_counters.keys() | times:
        if (key := find_inference(cluster)) is not None:
            counters[cluster] = _make_counters(key, cluster_counters[cluster], times.get(cluster, {}))
    unserved: defaultdict[str, int] = defaultdict(int)
    priced_out: defaultdict[str, int] = defaultdict(int)
    for name, (route, reason, cluster) in shed.items():
        if reason == NO_POD_DETAILS:
            route_name, _, protocol = route.rpartition("/")
            counted = priced_out if protocol.startswith(PRICED_OUT) else unserved
            counted[route_name] += values[name]
        elif reason == OVERLOAD_DETAILS and (key := find_inference(cluster)) is not None:
            # Under its own name, because this counter outlives the Envoy cluster that it names.
            count = values[name]
            counters[name] = RequestCounters(
                key, attempts=count, refused=count, shed_route=route.rpartition("/")[0]
            )
    return CounterPage(
        statistics.uptime_s,
        statistics.at_s,
        counters,
        dict(unserved),
        _parse_routes(values),
        dict(priced_out),
    )


def _parse_routes(values: Mapping[str, int]) -> Mapping[str, RouteCounters]:
    counted: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for name, value in values.items():
        if (parsed := parse_route_counter(name)) is not None:
            route, counter = parsed
            counted[route][counter] = value
    return {
        route: RouteCounters(counts.get("completed", 0), counts.get("2xx", 0) + counts.get("3xx", 0))
        for route, counts in counted.items()
    }


def find_inference(cluster: str) -> ObjectKey | None:
    """Return the Inference that serves the requests of an Envoy cluster; None for shadow copies and other clusters."""
    pool, _ = parse_cluster_name(cluster) or (None, None)
    if isinstance(pool, AccessPoolKey) and pool.role is not PoolRole.SHADOW:
        return pool.inference_key
    if isinstance(pool, BackendKey) and pool.kind is BackendKind.INFERENCE:
        return ObjectKey(pool.namespace, pool.name)
    return None


def _make_counters(
    inference: ObjectKey, counted: Mapping[str, int], times: Mapping[int, int]
) -> RequestCounters:
    """Return the request counters of one Envoy cluster."""

    def total(names: Sequence[str]) -> int:
        return sum(counted.get(name, 0) for name in names)

    return RequestCounters(
        inference,
        attempts=total(ATTEMPTS),
        retries=counted.get(RETRIES, 0),
        answered=total(_ANSWERED),
        failed_later=counted.get(_FAILED_LATER, 0),
        timed_out=total(_TIMED_OUT),
        times=times,
        refused=total(LIMITED),
    )
