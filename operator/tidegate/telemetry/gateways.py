"""Read the gateways' statistics pages, and from them the request counts of releases."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from http import HTTPStatus
from typing import Final, TypeVar

import aiohttp
import structlog

from tidegate.api.meta import ObjectKey
from tidegate.planning.access.release_sample import GatewayReading, RequestTally
from tidegate.routing.bootstrap import STATS_PATH
from tidegate.routing.envoy_names import parse_cluster_name
from tidegate.routing.ir import AccessPoolKey, PoolRole
from tidegate_dataplane.contract.answers import make_bounded_session, read_lines

_FRESH_S: Final = 0.5
"""Releases that read within this time of each other share one scrape."""
_AT_ONCE: Final = 2
"""Gateways that are scraped at a time: one sends while another one's page is parsed. With more, timeouts expire meanwhile."""
# The total equals the timeout of the gateway's own statistics route (routing.bootstrap).
_TIMEOUT: Final = aiohttp.ClientTimeout(total=10, sock_connect=1.5, sock_read=3)
_MOST_BYTES: Final = 128 << 20
"""Four times the page of 10,000 Inferences."""

_PREFIX: Final = "cluster."
_FAILED: Final = frozenset({"grpc.failure", "upstream_rq_4xx", "upstream_rq_5xx"})
_ANSWERED: Final = frozenset({"grpc.success", "upstream_rq_2xx", "upstream_rq_3xx"})
# Requests that the gateway aborted: a reset stream in HTTP/2, a closed connection in HTTP/1.
_ABORTED: Final = frozenset({"upstream_rq_tx_reset", "upstream_cx_destroy_local_with_active_rq"})
# Aborted requests that timed out are answered, and already counted as failures; clients cancelled the others.
_TIMED_OUT: Final = frozenset({"upstream_rq_timeout", "upstream_rq_max_duration_reached"})
_CANCELLED_EARLY: Final = frozenset({"upstream_rq_cancelled"})
_RESET_BY_TARGET: Final = frozenset({"upstream_rq_rx_reset"})
_COUNTERS: Final = _FAILED | _ANSWERED | _ABORTED | _TIMED_OUT | _CANCELLED_EARLY | _RESET_BY_TARGET
_HTTP_COUNTERS: Final = frozenset(
    {*(f"upstream_rq_{status}xx" for status in range(2, 6)), "upstream_cx_destroy_local_with_active_rq"}
)
TIMES: Final = "upstream_rq_time"
"""The histogram of response times in milliseconds."""
_UPTIME: Final = "server.uptime"
_TOTALS: Final = b"  totals="
_NO_TIMES: Final = "No recorded values"
"""What Envoy writes for a histogram without values."""
_QUERY: Final = (
    rf"^cluster\.{PoolRole.RELEASE}/[^.]*\.({'|'.join(sorted(_COUNTERS | {TIMES}))})$|^server\.uptime$"
)

T = TypeVar("T")

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ScrapeTarget:
    """One gateway: the name of its pod, and `host:port` of its metrics."""

    name: str
    address: str


@dataclass(frozen=True, slots=True)
class GatewayReleaseCounts:
    """The statistics of one gateway: its uptime, and the requests of released routes by ModelAccess and Inference."""

    age: timedelta
    tallies: Mapping[tuple[ObjectKey, str], RequestTally]


@dataclass(frozen=True, slots=True)
class ReleaseReadings:
    """The readings of all gateways about one ModelAccess; `silent` are the gateways that did not answer."""

    gateways: tuple[GatewayReading, ...]
    silent: tuple[str, ...]


@dataclass(slots=True)
class EnvoyStatistics:
    """Envoy's statistics page as text (`/stats?histogram_buckets=detailed`), parsed line by line.

    `at_s` is the monotonic time at which the response began.
    """

    at_s: float
    counters: defaultdict[str, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))
    """Values by Envoy cluster and counter name."""
    server_values: dict[str, int] = field(default_factory=dict[str, int])
    """Values outside Envoy clusters, by full name."""
    times: dict[str, Mapping[int, int]] = field(default_factory=dict[str, Mapping[int, int]])
    """Counts of requests by Envoy cluster and milliseconds, which are the lower edges of Envoy's own bins."""
    _histogram: str = ""

    def add_lines(self, lines: Iterable[bytes]) -> None:
        """Parse the next lines. Raises ValueError for text that is not a statistics page."""
        for line in lines:
            if line.startswith(b"  "):
                if line.startswith(_TOTALS):
                    self._add_times(line[len(_TOTALS) :].decode())
                continue
            name, colon, value = line.decode().rpartition(": ")
            if colon and value != _NO_TIMES:
                self._add_value(name, int(value))
            else:
                self._histogram = value.removesuffix(":")

    @property
    def uptime_s(self) -> int:
        """Return the uptime of the gateway. Raises ValueError if the page does not contain it."""
        try:
            return self.server_values[_UPTIME]
        except KeyError as error:
            message = f"the page does not contain {_UPTIME}"
            raise ValueError(message) from error

    def _add_value(self, name: str, value: int) -> None:
        if name.startswith(_PREFIX):
            cluster, _, counter = name[len(_PREFIX) :].partition(".")
            self.counters[cluster][sys.intern(counter)] = value
        else:
            self.server_values[name] = value

    def _add_times(self, totals: str) -> None:
        cluster, _, histogram = self._histogram.removeprefix(_PREFIX).partition(".")
        if histogram == TIMES and totals:
            times: defaultdict[int, int] = defaultdict(int)
            for total in totals.split(", "):
                bucket, _, count = total.partition(":")
                times[int(float(bucket.partition(",")[0]))] += int(count)
            self.times[cluster] = dict(times)


class GatewayStats:
    """Reader of the statistics of all ready gateways; calls that follow each other closely share one scrape."""

    def __init__(
        self, gateways: Callable[[], Sequence[ScrapeTarget]], monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """`gateways` returns the gateways that serve requests now."""
        self._gateways = gateways
        self._monotonic = monotonic
        self._lock = asyncio.Lock()
        self._read_at = float("-inf")
        self._pages: Mapping[str, GatewayReleaseCounts | None] = {}

    async def read_release(self, access: ObjectKey, target: str, stable: Sequence[str]) -> ReleaseReadings:
        """Return the counts of the gateways for `access`: of the released target, and of the stable targets together."""
        pages = await self._read_fresh_pages()
        return ReleaseReadings(
            gateways=tuple(
                GatewayReading(
                    gateway=gateway,
                    age=page.age,
                    target=page.tallies.get((access, target), RequestTally()),
                    stable=sum(
                        (page.tallies.get((access, name), RequestTally()) for name in stable), RequestTally()
                    ),
                )
                for gateway, page in sorted(pages.items())
                if page is not None
            ),
            silent=tuple(sorted(gateway for gateway, page in pages.items() if page is None)),
        )

    async def _read_fresh_pages(self) -> Mapping[str, GatewayReleaseCounts | None]:
        async with self._lock:
            if self._monotonic() - self._read_at >= _FRESH_S:
                self._pages = await read_pages(
                    self._gateways(), _QUERY, parse_release_counts, self._monotonic
                )
                self._read_at = self._monotonic()
            return self._pages


async def read_pages(
    gateways: Sequence[ScrapeTarget],
    pattern: str,
    parse: Callable[[EnvoyStatistics], T],
    monotonic: Callable[[], float],
    limits: aiohttp.ClientTimeout = _TIMEOUT,
    at_once: int = _AT_ONCE,
) -> Mapping[str, T | None]:
    """Return the parsed statistics that match `pattern`, by the name of the gateway; None if it sent no valid page in time.

    `limits` are for each gateway, of which `at_once` are read at a time. `parse` runs in a thread, and may raise ValueError.
    """
    slots = asyncio.Semaphore(at_once)

    async def read_page(session: aiohttp.ClientSession, gateway: ScrapeTarget) -> T | None:
        try:
            async with slots:
                statistics = await _read_statistics(session, gateway, pattern, monotonic)
                return await asyncio.to_thread(parse, statistics)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            log.warning("gateway_silent", gateway=gateway.name, error=str(error) or type(error).__name__)
            return None

    async with make_bounded_session(limits) as session:
        pages = await asyncio.gather(*(read_page(session, gateway) for gateway in gateways))
    return {gateway.name: page for gateway, page in zip(gateways, pages, strict=True)}


async def _read_statistics(
    session: aiohttp.ClientSession, gateway: ScrapeTarget, pattern: str, monotonic: Callable[[], float]
) -> EnvoyStatistics:
    query = {"histogram_buckets": "detailed", "filter": pattern}
    url = f"http://{gateway.address}{STATS_PATH}"
    async with session.get(url, params=query, allow_redirects=False) as response:
        if response.status != HTTPStatus.OK:
            message = f"the gateway answered HTTP {response.status}"
            raise ValueError(message)
        statistics = EnvoyStatistics(monotonic())
        # In batches of a thousand lines, between which the event loop runs other tasks.
        async for lines in read_lines(response, _MOST_BYTES):
            statistics.add_lines(lines)
    return statistics


def parse_release_counts(statistics: EnvoyStatistics) -> GatewayReleaseCounts:
    """Return the counts of one gateway for releases. Raises ValueError if the page is incomplete."""
    cluster_counters, times = statistics.counters, statistics.times
    tallies: defaultdict[tuple[ObjectKey, str], RequestTally] = defaultdict(RequestTally)
    for cluster in cluster_counters.keys() | times:
        release_target = _parse_release_cluster(cluster)
        if release_target is not None:
            tallies[release_target] += _count_requests(
                cluster, cluster_counters[cluster], times.get(cluster, {})
            )
    return GatewayReleaseCounts(timedelta(seconds=statistics.uptime_s), dict(tallies))


def _count_requests(cluster: str, counters: Mapping[str, int], times: Mapping[int, int]) -> RequestTally:
    """Return the counts of one Envoy cluster, which serves either gRPC or REST."""
    if cluster.endswith("/grpc"):
        # gRPC errors come with HTTP status 200, and one connection carries many requests.
        counters = {name: value for name, value in counters.items() if name not in _HTTP_COUNTERS}

    def total(names: frozenset[str]) -> int:
        return sum(counters.get(name, 0) for name in names)

    cancelled = max(total(_ABORTED) - total(_TIMED_OUT), 0) + total(_CANCELLED_EARLY)
    failures = total(_FAILED) + cancelled
    unanswered = cancelled + total(_TIMED_OUT) + total(_RESET_BY_TARGET)
    return RequestTally(total(_ANSWERED) + failures, failures, times, unanswered)


def _parse_release_cluster(cluster: str) -> tuple[ObjectKey, str] | None:
    """Return the ModelAccess and the Inference of an Envoy cluster of a release; None for other clusters."""
    parsed = parse_cluster_name(cluster)
    if parsed is None or not isinstance(parsed[0], AccessPoolKey) or parsed[0].role is not PoolRole.RELEASE:
        return None
    return parsed[0].access, parsed[0].inference
