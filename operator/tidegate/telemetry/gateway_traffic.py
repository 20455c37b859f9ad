"""Signals from the gateways' own pages of statistics, for clusters without a Prometheus."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from tidegate.api.meta import ObjectKey
from tidegate.planning.signals import Look
from tidegate.planning.traffic import Counters, Page, Pages, Shares, look_between
from tidegate.routing.envoy import refused
from tidegate.routing.envoy.clusters import parse_cluster_name
from tidegate.routing.fleet import BackendKey, BackendKind
from tidegate.routing.ir import AccessPoolKey, PoolRole
from tidegate.telemetry.gateways import TIMES, Gateway, Statistics, read_pages

ATTEMPTS: Final = (
    "upstream_rq_total",
    "upstream_rq_active_overflow",
    "upstream_rq_pending_overflow",
    "upstream_rq_pending_failure_eject",
    "upstream_rq_cancelled",
    "upstream_cx_none_healthy",
)
"""Each try to have a request answered ends in one of these: sent to a pod, over a limit, no connection, given up by the client
before there was one, or no pod."""
RETRIES: Final = "upstream_rq_retry"
"""All tries but the first."""

_ANSWERED: Final = ("upstream_rq_2xx", "upstream_rq_3xx")
_FAILED_LATER: Final = "grpc.failure"
_TIMED_OUT: Final = ("upstream_rq_timeout", "upstream_rq_max_duration_reached")
_COUNTERS: Final = (*ATTEMPTS, RETRIES, *_ANSWERED, _FAILED_LATER, *_TIMED_OUT, TIMES)
_CLUSTERS: Final = ("inference", PoolRole.RELEASE)
_QUERY: Final = rf"^cluster\.({'|'.join(_CLUSTERS)})/[^.]*\.({'|'.join(_COUNTERS)})$|{refused.NAME_PATTERN}|^server\.uptime$"


class GatewayTraffic:
    """Looks at all gateways that take traffic, and compares with what they counted at the last look; a SignalSource."""

    def __init__(
        self,
        gateways: Callable[[], Sequence[Gateway]],
        shares: Callable[[], Shares],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`shares` tells whose requests a route turns away when no target has a pod."""
        self._gateways = gateways
        self._shares = shares
        self._monotonic = monotonic
        self._pages: Pages = {}

    async def look(self) -> Look:
        """The rates since the last look; a failure the first time."""
        pages = await read_pages(self._gateways(), _QUERY, traffic_of, self._monotonic)
        said = {name: page for name, page in pages.items() if page is not None}
        # Some hundred thousand counters take longer than the event loop has to spare.
        look, self._pages = await asyncio.to_thread(
            look_between, self._pages, tuple(pages), said, self._shares()
        )
        return look


def traffic_of(statistics: Statistics) -> Page:
    """Return what one gateway counted of requests. Raises ValueError for a page that is not whole."""
    counted, times, values = statistics.counters, statistics.times, statistics.others
    shed = {name: parsed for name in values if (parsed := refused.parse_counter(name)) is not None}
    counters: dict[str, Counters] = {}
    for cluster in counted.keys() | times:
        if (key := inference_of(cluster)) is not None:
            counters[cluster] = _counters(key, counted[cluster], times.get(cluster, {}))
    unserved: defaultdict[str, int] = defaultdict(int)
    for name, (route, why, cluster) in shed.items():
        if why == refused.NO_POD:
            unserved[route.rpartition("/")[0]] += values[name]
        elif why == refused.OVERLOAD and (key := inference_of(cluster)) is not None:
            # It outlives the Envoy cluster that it names.
            counters[name] = Counters(key, attempts=values[name])
    return Page(statistics.uptime_s, statistics.at_s, counters, dict(unserved))


def inference_of(cluster: str) -> ObjectKey | None:
    """The Inference that the requests of an Envoy cluster are for; None for copies, which nobody waits for, and all else."""
    pool, _ = parse_cluster_name(cluster) or (None, None)
    if isinstance(pool, AccessPoolKey) and pool.role is not PoolRole.SHADOW:
        return ObjectKey(pool.access.namespace, pool.inference)
    if isinstance(pool, BackendKey) and pool.kind is BackendKind.INFERENCE:
        return ObjectKey(pool.namespace, pool.name)
    return None


def _counters(inference: ObjectKey, counted: Mapping[str, int], times: Mapping[int, int]) -> Counters:
    """What one Envoy cluster counted."""

    def total(names: Sequence[str]) -> int:
        return sum(counted.get(name, 0) for name in names)

    return Counters(
        inference,
        attempts=total(ATTEMPTS),
        retries=counted.get(RETRIES, 0),
        answered=total(_ANSWERED),
        failed_later=counted.get(_FAILED_LATER, 0),
        timed_out=total(_TIMED_OUT),
        times=times,
    )
