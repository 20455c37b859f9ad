"""Read a pool's charts from Prometheus, the one store of time series: its slices by tier, and the demand for them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import isfinite
from typing import Final, Literal, TypeAlias

from tidegate.api.durations import parse_duration
from tidegate.api.inference import Tier
from tidegate.api.meta import ApiModel
from tidegate.errors import PermanentError
from tidegate.telemetry.prometheus_api import PrometheusError, RangeSeries
from tidegate.web.access.expiring_cache import ExpiringCache

GAUGE_PREFIX: Final = "tidegate_pool_"
GAUGES: Final = (
    "slices",
    "tier_slices",
    "slice_price",
    "needed_slices",
    "allocatable_slices",
    "demand_requests_per_second",
    "servable_requests_per_second",
    "demand_unknown",
)
"""What charts are drawn from: gauges of the controllers, with PREFIX."""
STEPS: Final = 240
"""Steps of a window: the bound of a chart, and of each series in an answer."""
PROMETHEUS_SETTING: Final = "web.prometheusUrl in the chart's values (tidegate dashboard: --prometheus)"
NOT_CONFIGURED: Final = f"No Prometheus is configured, so there are no charts over time: set {PROMETHEUS_SETTING} to one that scrapes the controllers."
_REMEMBERED_S: Final = 10.0
_REMEMBERED: Final = 64

Window: TypeAlias = Literal["15m", "1h", "4h"]
RangeQuery: TypeAlias = Callable[[str, datetime, datetime, timedelta], Awaitable[Sequence[RangeSeries]]]
"""PrometheusApi.query_range."""
_Values: TypeAlias = Mapping[tuple[str, str], float]
"""By gauge, and by its tier or state; empty where it has neither."""


class SliceSample(ApiModel):
    """How a pool's slices were assigned at one time."""

    time: datetime
    healthy: int
    """Slices on nodes that take pods."""
    free: int
    tiers: Mapping[Tier, int]
    """Slices of the pods of each tier."""
    price: float
    """What one more slice would have earned at the last decision, in value per second."""


class DemandSample(ApiModel):
    """The demand for a pool at one time, as its allocator knew it."""

    time: datetime
    allocatable: int
    """Slices that the allocator could assign."""
    tiers: Mapping[Tier, int]
    """Slices that would have served the whole demand of each tier."""
    demand: float
    """Requests per second for real-time and near-line Inferences."""
    served: float
    """Those of them that the ready replicas served within the SLO."""
    unknown: int
    """Inferences whose demand was unknown: they are in none of the sums."""


@dataclass(frozen=True, slots=True)
class PoolCharts:
    """The samples of one window, the oldest first; none where Prometheus has nothing."""

    slices: tuple[SliceSample, ...]
    demand: tuple[DemandSample, ...]


class ChartReader:
    """Reader of charts: sends one query at a time and keeps its answer for ten seconds, however many pages are open."""

    def __init__(
        self, query: RangeQuery | None, now: Callable[[], datetime], monotonic: Callable[[], float]
    ) -> None:
        """`query` is None where no Prometheus is configured."""
        self._query = query
        self._now = now
        self._charts: ExpiringCache[tuple[str, Window], PoolCharts | str] = ExpiringCache(
            _REMEMBERED, monotonic
        )
        self._lock = asyncio.Lock()

    @property
    def is_configured(self) -> bool:
        """Return whether a Prometheus is configured."""
        return self._query is not None

    async def read(self, pool: str, window: Window) -> PoolCharts:
        """Return the charts of a pool; raises PermanentError or PrometheusError, which name the setting to change."""
        if self._query is None:
            raise PermanentError(NOT_CONFIGURED)
        async with self._lock:
            answer = self._charts.get((pool, window))
            if answer is None:
                answer = await self._query_charts(self._query, pool, window)
                self._charts.put((pool, window), answer, _REMEMBERED_S)
        if isinstance(answer, str):
            raise PrometheusError(answer)
        return answer

    async def _query_charts(self, query: RangeQuery, pool: str, window: Window) -> PoolCharts | str:
        """Return the charts, or why there are none, which is remembered as well."""
        length = parse_duration(window)
        step_s = length.total_seconds() / STEPS
        # Whole steps, so that the lines of a chart do not shift.
        end = datetime.fromtimestamp(self._now().timestamp() // step_s * step_s, UTC)
        begin, step = end - length, length / STEPS
        try:
            values = _values_by_step(await query(pool_query(pool), begin, end, step), begin, step)
        except (PrometheusError, ValueError) as error:
            return f"Prometheus cannot be read: {error}. Check {PROMETHEUS_SETTING}, and that the dashboard reaches it."
        samples = [(begin + number * step, values[number]) for number in sorted(values)]
        return PoolCharts(
            tuple(_slice_sample(time, gauges) for time, gauges in samples if ("slices", "healthy") in gauges),
            tuple(
                _demand_sample(time, gauges)
                for time, gauges in samples
                if ("allocatable_slices", "") in gauges
            ),
        )


def pool_query(pool: str) -> str:
    """Return the query for all gauges of a pool; where two controllers led within one scrape, one of them counts."""
    names = "|".join(f"{GAUGE_PREFIX}{gauge}" for gauge in GAUGES)
    return f'max by (__name__, tier, state) ({{__name__=~"{names}",pool="{pool}"}})'


def _values_by_step(answer: Sequence[RangeSeries], begin: datetime, step: timedelta) -> Mapping[int, _Values]:
    """Return the values of each step by its number; raises ValueError for what is no number."""
    values: dict[int, dict[tuple[str, str], float]] = {}
    for series in answer:
        labels = series["metric"]
        gauge = (
            labels.get("__name__", "").removeprefix(GAUGE_PREFIX),
            labels.get("tier") or labels.get("state", ""),
        )
        for timestamp, text in series["values"]:
            number, value = (timestamp - begin.timestamp()) / step.total_seconds(), float(text)
            if 0 <= number <= STEPS and isfinite(value):
                values.setdefault(round(number), {})[gauge] = value
    return values


def _slice_sample(time: datetime, values: _Values) -> SliceSample:
    return SliceSample(
        time=time,
        healthy=int(values["slices", "healthy"]),
        free=int(values.get(("slices", "free"), 0)),
        tiers=_values_by_tier("tier_slices", values),
        price=values.get(("slice_price", ""), 0.0),
    )


def _demand_sample(time: datetime, values: _Values) -> DemandSample:
    demand, served = (
        sum(
            values.get((f"{gauge}_requests_per_second", tier), 0.0)
            for tier in Tier
            if tier.traits.counts_requests
        )
        for gauge in ("demand", "servable")
    )
    return DemandSample(
        time=time,
        allocatable=int(values["allocatable_slices", ""]),
        tiers=_values_by_tier("needed_slices", values),
        demand=demand,
        served=served,
        unknown=sum(_values_by_tier("demand_unknown", values).values()),
    )


def _values_by_tier(gauge: str, values: _Values) -> Mapping[Tier, int]:
    return {tier: int(values.get((gauge, tier), 0)) for tier in Tier}
