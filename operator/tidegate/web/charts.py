"""Read series from Prometheus, the one store of time series, and from them a pool's charts: its slices by tier, and the demand."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import isfinite
from typing import Final, Literal, TypeAlias, get_args

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
    "value_per_second",
)
"""What charts are drawn from: gauges of the controllers, with PREFIX."""
STEPS: Final = 240
"""Steps of a window: the bound of a chart, and of each series in an answer."""
PROMETHEUS_SETTING: Final = "web.prometheusUrl in the chart's values (tidegate dashboard: --prometheus)"
NOT_CONFIGURED: Final = f"No Prometheus is configured, so there are no charts over time: set {PROMETHEUS_SETTING} to one that scrapes the controllers."
_REMEMBERED_S: Final = 10.0
_REMEMBERED: Final = 64
_WAIT_S: Final = 8.0
"""The longest time that a page waits for its turn: a slow Prometheus must not collect pages."""

Window: TypeAlias = Literal["15m", "1h", "6h", "24h"]
WINDOWS: Final[tuple[Window, ...]] = get_args(Window)
RangeQuery: TypeAlias = Callable[[str, datetime, datetime, timedelta], Awaitable[Sequence[RangeSeries]]]
"""PrometheusApi.query_range."""
_Values: TypeAlias = Mapping[tuple[str, str], float]
"""By gauge, and by its tier, state or outcome; empty where it has none."""


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
    """Requests per second of that demand that the ready replicas served within the SLO."""
    unknown: int
    """Inferences whose demand was unknown: they are in none of the sums."""
    value: Mapping[str, float]
    """Value per second of what clients sent by outcome: served, refused or lost; none where nothing was measured."""


@dataclass(frozen=True, slots=True)
class PoolCharts:
    """The samples of one window, the oldest first; none where Prometheus has nothing."""

    slices: tuple[SliceSample, ...]
    demand: tuple[DemandSample, ...]


@dataclass(frozen=True, slots=True)
class SeriesAnswer:
    """The series of one window, with finite values by the number of their step, from 0 to STEPS."""

    begin: datetime
    step: timedelta
    series: tuple[tuple[Mapping[str, str], Mapping[int, float]], ...]
    """Labels and values of each series."""

    def time_of(self, number: int) -> datetime:
        """Return the time of a step."""
        return self.begin + number * self.step


class ChartReader:
    """Reader of charts: sends one query at a time and keeps its answer for ten seconds, however many pages are open."""

    def __init__(
        self, query: RangeQuery | None, now: Callable[[], datetime], monotonic: Callable[[], float]
    ) -> None:
        """`query` is None where no Prometheus is configured."""
        self._query = query
        self._now = now
        self._answers: ExpiringCache[tuple[str, Window], SeriesAnswer | str] = ExpiringCache(
            _REMEMBERED, monotonic
        )
        self._lock = asyncio.Lock()

    @property
    def is_configured(self) -> bool:
        """Return whether a Prometheus is configured."""
        return self._query is not None

    async def read(self, pool: str, window: Window) -> PoolCharts:
        """Return the charts of a pool; raises PermanentError or PrometheusError, which name the setting to change."""
        answer = await self.read_series(pool_query(pool), window)
        values = _values_by_step(answer)
        samples = [(answer.time_of(number), values[number]) for number in sorted(values)]
        return PoolCharts(
            tuple(_slice_sample(time, gauges) for time, gauges in samples if ("slices", "healthy") in gauges),
            tuple(
                _demand_sample(time, gauges)
                for time, gauges in samples
                if ("allocatable_slices", "") in gauges
            ),
        )

    async def read_series(self, expression: str, window: Window) -> SeriesAnswer:
        """Return the result of a query over a window. Raises PermanentError or PrometheusError, as `read`."""
        if self._query is None:
            raise PermanentError(NOT_CONFIGURED)
        try:
            async with asyncio.timeout(_WAIT_S):
                answer = await self._find_answer(self._query, expression, window)
        except TimeoutError as error:
            message = f"Prometheus is slow: other charts are read first, and this one waited {_WAIT_S:g} s. Try again."
            raise PrometheusError(message) from error
        if isinstance(answer, str):
            raise PrometheusError(answer)
        return answer

    async def _find_answer(self, query: RangeQuery, expression: str, window: Window) -> SeriesAnswer | str:
        # What another page has read needs no place in the line of queries.
        answer = self._answers.get((expression, window))
        if answer is not None:
            return answer
        async with self._lock:
            answer = self._answers.get((expression, window))
            if answer is None:
                answer = await self._send_query(query, expression, window)
                self._answers.put((expression, window), answer, _REMEMBERED_S)
        return answer

    async def _send_query(self, query: RangeQuery, expression: str, window: Window) -> SeriesAnswer | str:
        """Return the series, or why there are none, which is remembered as well."""
        length = parse_duration(window)
        step_s = length.total_seconds() / STEPS
        # Whole steps, so that the lines of a chart do not shift.
        end = datetime.fromtimestamp(self._now().timestamp() // step_s * step_s, UTC)
        begin, step = end - length, length / STEPS
        try:
            return _parse_answer(await query(expression, begin, end, step), begin, step)
        except (PrometheusError, ValueError) as error:
            return f"Prometheus cannot be read: {error}. Check {PROMETHEUS_SETTING}, and that the dashboard reaches it."


def pool_query(pool: str) -> str:
    """Return the query for all gauges of a pool; where two controllers led within one scrape, one of them counts."""
    names = "|".join(f"{GAUGE_PREFIX}{gauge}" for gauge in GAUGES)
    return f'max by (__name__, tier, state, outcome) ({{__name__=~"{names}",pool="{pool}"}})'


def _parse_answer(answer: Sequence[RangeSeries], begin: datetime, step: timedelta) -> SeriesAnswer:
    """Return the finite values of each series by step; raises ValueError for what is no number."""
    return SeriesAnswer(
        begin, step, tuple((series["metric"], _values_of(series, begin, step)) for series in answer)
    )


def _values_of(series: RangeSeries, begin: datetime, step: timedelta) -> Mapping[int, float]:
    values: dict[int, float] = {}
    for timestamp, text in series["values"]:
        number, value = (timestamp - begin.timestamp()) / step.total_seconds(), float(text)
        if 0 <= number <= STEPS and isfinite(value):
            values[round(number)] = value
    return values


def _values_by_step(answer: SeriesAnswer) -> Mapping[int, _Values]:
    """Return the gauges of each step by its number."""
    by_step: dict[int, dict[tuple[str, str], float]] = {}
    for labels, values in answer.series:
        gauge = labels.get("__name__", "").removeprefix(GAUGE_PREFIX)
        kind = labels.get("tier") or labels.get("state") or labels.get("outcome", "")
        for number, value in values.items():
            by_step.setdefault(number, {})[gauge, kind] = value
    return by_step


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
        value={kind: value for (gauge, kind), value in sorted(values.items()) if gauge == "value_per_second"},
    )


def _values_by_tier(gauge: str, values: _Values) -> Mapping[Tier, int]:
    return {tier: int(values.get((gauge, tier), 0)) for tier in Tier}
