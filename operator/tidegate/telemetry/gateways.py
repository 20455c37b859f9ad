"""Asks the gateways what they counted for releases: their own pages of statistics, without a Prometheus in between."""

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
from tidegate.planning.sample import GatewayReading, Tally
from tidegate.routing.bootstrap import STATS_PATH
from tidegate.routing.envoy.clusters import parse_cluster_name
from tidegate.routing.ir import AccessPoolKey, PoolRole
from tidegate_dataplane.contract.answers import bounded_session, read_lines

_FRESH_S: Final = 0.5
"""Releases that look within so long of each other share what was read."""
_AT_ONCE: Final = 8
"""Gateways that are asked together: reading a page takes time of our own, in which the others' must not run out."""
# Of the whole, as much as the gateway itself gives a page (routing.bootstrap).
_TIMEOUT: Final = aiohttp.ClientTimeout(total=10, sock_connect=1.5, sock_read=3)
_MOST_BYTES: Final = 128 << 20
"""Four times the page of 10,000 Inferences."""

_PREFIX: Final = "cluster."
_FAILED: Final = frozenset({"grpc.failure", "upstream_rq_4xx", "upstream_rq_5xx"})
_ANSWERED: Final = frozenset({"grpc.success", "upstream_rq_2xx", "upstream_rq_3xx"})
# Requests that the gateway broke off: a reset stream in HTTP/2, a closed connection in HTTP/1.
_BROKEN_OFF: Final = frozenset({"upstream_rq_tx_reset", "upstream_cx_destroy_local_with_active_rq"})
# Why it does so by itself; such a request is answered, and counted as a failure already. The rest was given up by clients.
_TIMED_OUT: Final = frozenset({"upstream_rq_timeout", "upstream_rq_max_duration_reached"})
_GIVEN_UP_EARLY: Final = frozenset({"upstream_rq_cancelled"})
_RESET_BY_TARGET: Final = frozenset({"upstream_rq_rx_reset"})
_COUNTERS: Final = _FAILED | _ANSWERED | _BROKEN_OFF | _TIMED_OUT | _GIVEN_UP_EARLY | _RESET_BY_TARGET
_OF_HTTP: Final = frozenset(
    {*(f"upstream_rq_{status}xx" for status in range(2, 6)), "upstream_cx_destroy_local_with_active_rq"}
)
TIMES: Final = "upstream_rq_time"
"""The histogram of how long requests took."""
_UPTIME: Final = "server.uptime"
_TOTALS: Final = b"  totals="
_NO_TIMES: Final = "No recorded values"
"""What Envoy writes for a whole histogram that has had no value yet."""
_QUERY: Final = (
    rf"^cluster\.{PoolRole.RELEASE}/[^.]*\.({'|'.join(sorted(_COUNTERS | {TIMES}))})$|^server\.uptime$"
)

T = TypeVar("T")

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Gateway:
    """One gateway: its pod's name, and `host:port` of its metrics."""

    name: str
    address: str


@dataclass(frozen=True, slots=True)
class GatewayPage:
    """What one gateway said: how long it runs, and what each access's released route sent to each Inference."""

    age: timedelta
    tallies: Mapping[tuple[ObjectKey, str], Tally]


@dataclass(frozen=True, slots=True)
class Readings:
    """What all gateways said about one access; `silent` did not answer."""

    gateways: tuple[GatewayReading, ...]
    silent: tuple[str, ...]


@dataclass(slots=True)
class Statistics:
    """Envoy's page of statistics as text (`/stats?histogram_buckets=detailed`), taken line by line; `at_s` is when it began."""

    at_s: float
    counters: defaultdict[str, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))
    """By Envoy cluster and name."""
    others: dict[str, int] = field(default_factory=dict[str, int])
    """What is of no Envoy cluster, by its whole name."""
    times: dict[str, Mapping[int, int]] = field(default_factory=dict[str, Mapping[int, int]])
    """By Envoy cluster, how many requests took how many milliseconds: the lower edges of Envoy's own bins."""
    _histogram: str = ""

    def add(self, lines: Iterable[bytes]) -> None:
        """Take the next lines. Raises ValueError for what is none of such a page."""
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
        """For how long the gateway runs. Raises ValueError when the page does not say."""
        try:
            return self.others[_UPTIME]
        except KeyError as error:
            message = "the page does not say how long the gateway runs"
            raise ValueError(message) from error

    def _add_value(self, name: str, value: int) -> None:
        if name.startswith(_PREFIX):
            cluster, _, what = name[len(_PREFIX) :].partition(".")
            self.counters[cluster][sys.intern(what)] = value
        else:
            self.others[name] = value

    def _add_times(self, totals: str) -> None:
        cluster, _, what = self._histogram.removeprefix(_PREFIX).partition(".")
        if what == TIMES and totals:
            times: defaultdict[int, int] = defaultdict(int)
            for one in totals.split(", "):
                bucket, _, count = one.partition(":")
                times[int(float(bucket.partition(",")[0]))] += int(count)
            self.times[cluster] = dict(times)


class GatewayStats:
    """The pages of all ready gateways, read when somebody asks, and seldom twice in a row."""

    def __init__(
        self, gateways: Callable[[], Sequence[Gateway]], monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """`gateways` gives those that take traffic at this moment."""
        self._gateways = gateways
        self._monotonic = monotonic
        self._lock = asyncio.Lock()
        self._read_at = float("-inf")
        self._pages: Mapping[str, GatewayPage | None] = {}

    async def read(self, access: ObjectKey, target: str, stable: Sequence[str]) -> Readings:
        """What the gateways counted for `access`: of the released target, and of the others together."""
        pages = await self._fresh()
        return Readings(
            gateways=tuple(
                GatewayReading(
                    gateway=name,
                    age=page.age,
                    target=page.tallies.get((access, target), Tally()),
                    stable=sum((page.tallies.get((access, one), Tally()) for one in stable), Tally()),
                )
                for name, page in sorted(pages.items())
                if page is not None
            ),
            silent=tuple(sorted(name for name, page in pages.items() if page is None)),
        )

    async def _fresh(self) -> Mapping[str, GatewayPage | None]:
        async with self._lock:
            if self._monotonic() - self._read_at >= _FRESH_S:
                self._pages = await read_pages(self._gateways(), _QUERY, page_of, self._monotonic)
                self._read_at = self._monotonic()
            return self._pages


async def read_pages(
    gateways: Sequence[Gateway],
    pattern: str,
    page_of: Callable[[Statistics], T],
    monotonic: Callable[[], float],
) -> Mapping[str, T | None]:
    """Return what `page_of` makes of each gateway's statistics that match `pattern`, by the gateway's name.

    None for one that does not answer, or with anything else. `page_of` runs in a thread, and may raise ValueError.
    """
    slots = asyncio.Semaphore(_AT_ONCE)

    async def read(session: aiohttp.ClientSession, gateway: Gateway) -> T | None:
        try:
            async with slots:
                statistics = await _read(session, gateway, pattern, monotonic)
                return await asyncio.to_thread(page_of, statistics)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            log.warning("gateway_silent", gateway=gateway.name, error=str(error) or type(error).__name__)
            return None

    async with bounded_session(_TIMEOUT) as session:
        pages = await asyncio.gather(*(read(session, gateway) for gateway in gateways))
    return {gateway.name: page for gateway, page in zip(gateways, pages, strict=True)}


async def _read(
    session: aiohttp.ClientSession, gateway: Gateway, pattern: str, monotonic: Callable[[], float]
) -> Statistics:
    query = {"histogram_buckets": "detailed", "filter": pattern}
    url = f"http://{gateway.address}{STATS_PATH}"
    async with session.get(url, params=query, allow_redirects=False) as response:
        if response.status != HTTPStatus.OK:
            message = f"it answers HTTP {response.status}"
            raise ValueError(message)
        statistics = Statistics(monotonic())
        # A thousand lines at a time, and the event loop has its turn before the next.
        async for lines in read_lines(response, _MOST_BYTES):
            statistics.add(lines)
    return statistics


def page_of(statistics: Statistics) -> GatewayPage:
    """Return what one gateway counted for releases. Raises ValueError for a page that is not whole."""
    counted, times = statistics.counters, statistics.times
    tallies: defaultdict[tuple[ObjectKey, str], Tally] = defaultdict(Tally)
    for cluster in counted.keys() | times:
        whose = _whose(cluster)
        if whose is not None:
            tallies[whose] += _tally(cluster, counted[cluster], times.get(cluster, {}))
    return GatewayPage(timedelta(seconds=statistics.uptime_s), dict(tallies))


def _tally(cluster: str, counters: Mapping[str, int], times: Mapping[int, int]) -> Tally:
    """What one Envoy cluster counted; one speaks gRPC or REST."""
    if cluster.endswith("/grpc"):
        # HTTP statuses say nothing of gRPC, and its connections carry many requests.
        counters = {what: value for what, value in counters.items() if what not in _OF_HTTP}

    def total(names: frozenset[str]) -> int:
        return sum(counters.get(name, 0) for name in names)

    given_up = max(total(_BROKEN_OFF) - total(_TIMED_OUT), 0) + total(_GIVEN_UP_EARLY)
    failures = total(_FAILED) + given_up
    unanswered = given_up + total(_TIMED_OUT) + total(_RESET_BY_TARGET)
    return Tally(total(_ANSWERED) + failures, failures, times, unanswered)


def _whose(cluster: str) -> tuple[ObjectKey, str] | None:
    """The access and the Inference that a cluster of a release is about."""
    parsed = parse_cluster_name(cluster)
    if parsed is None or not isinstance(parsed[0], AccessPoolKey) or parsed[0].role is not PoolRole.RELEASE:
        return None
    return parsed[0].access, parsed[0].inference
