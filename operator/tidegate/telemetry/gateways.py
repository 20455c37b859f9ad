"""Asks the gateways what they counted for releases: their own pages of statistics, without a Prometheus in between."""

from __future__ import annotations

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, TypeVar

import aiohttp
import structlog

from tidegate.api.meta import ObjectKey
from tidegate.planning.sample import GatewayReading, Tally
from tidegate.routing.bootstrap import STATS_PATH
from tidegate.routing.envoy.clusters import parse_cluster_name
from tidegate.routing.ir import AccessPoolKey, PoolRole

_FRESH_S: Final = 0.5
"""Releases that look within so long of each other share what was read."""
TIMEOUT: Final = aiohttp.ClientTimeout(total=3)

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
_TIMES: Final = "upstream_rq_time"
_UPTIME: Final = "server.uptime"
_QUERY: Final[Mapping[str, str]] = {
    "format": "json",
    "histogram_buckets": "detailed",
    "filter": rf"^cluster\.{PoolRole.RELEASE}/[^.]*\.({'|'.join(sorted(_COUNTERS | {_TIMES}))})$|^server\.uptime$",
}

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
                gateways = self._gateways()
                async with aiohttp.ClientSession(timeout=TIMEOUT) as session:
                    pages = await asyncio.gather(
                        *(ask(session, gateway, _QUERY, parse_page) for gateway in gateways)
                    )
                names = (gateway.name for gateway in gateways)
                self._pages = dict(zip(names, pages, strict=True))
                self._read_at = self._monotonic()
            return self._pages


async def ask(
    session: aiohttp.ClientSession, gateway: Gateway, query: Mapping[str, str], parse: Callable[[str], T]
) -> T | None:
    """What `parse` makes of the gateway's page of statistics; None when it does not answer, or with anything else."""
    try:
        url = f"http://{gateway.address}{STATS_PATH}"
        async with session.get(url, params=query) as response:
            response.raise_for_status()
            return parse(await response.text())
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError, KeyError, TypeError) as error:
        log.warning("gateway_silent", gateway=gateway.name, error=str(error) or type(error).__name__)
        return None


def parse_page(text: str) -> GatewayPage:
    """Reads Envoy's `/stats?format=json&histogram_buckets=detailed`.

    Raises ValueError, KeyError or TypeError for anything else.
    """
    counted: defaultdict[str, dict[str, int]] = defaultdict(dict)
    times: dict[str, Mapping[int, int]] = {}
    age: timedelta | None = None
    for stat in json.loads(text)["stats"]:
        if "histograms" in stat:
            for histogram in stat["histograms"].get("details", ()):
                cluster, what = split(histogram["name"])
                if what == _TIMES:
                    times[cluster] = times_of(histogram)
        elif stat["name"] == _UPTIME:
            age = timedelta(seconds=int(stat["value"]))
        else:
            cluster, what = split(stat["name"])
            counted[cluster][what] = int(stat["value"])
    if age is None:
        message = "the page does not say how long the gateway runs"
        raise ValueError(message)
    tallies: defaultdict[tuple[ObjectKey, str], Tally] = defaultdict(Tally)
    for cluster in counted.keys() | times:
        whose = _whose(cluster)
        if whose is not None:
            tallies[whose] += _tally(cluster, counted[cluster], times.get(cluster, {}))
    return GatewayPage(age, dict(tallies))


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


def times_of(histogram: Mapping[str, Any]) -> Mapping[int, int]:
    """How many took how many milliseconds: the lower edges of Envoy's own bins."""
    times: defaultdict[int, int] = defaultdict(int)
    for bucket in histogram["totals"]:
        times[int(bucket["lower_bound"])] += int(bucket["count"])
    return dict(times)


def split(name: str) -> tuple[str, str]:
    """Whose counter it is, and which: `cluster.<name>.<counter>`."""
    cluster, _, what = name.removeprefix(_PREFIX).partition(".")
    return cluster, what


def _whose(cluster: str) -> tuple[ObjectKey, str] | None:
    """The access and the Inference that a cluster of a release is about."""
    parsed = parse_cluster_name(cluster)
    if parsed is None or not isinstance(parsed[0], AccessPoolKey) or parsed[0].role is not PoolRole.RELEASE:
        return None
    return parsed[0].access, parsed[0].inference
