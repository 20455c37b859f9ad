"""Ask Prometheus for the rates of a time, and put them into the steps of that time."""

from __future__ import annotations

from collections.abc import Mapping, MutableSequence, Sequence
from datetime import datetime, timedelta
from math import isfinite

from tidegate.api.meta import ObjectKey
from tidegate.planning.allocator.signals import MAX_RATE_PER_S
from tidegate.telemetry import expressions
from tidegate.telemetry.prometheus_api import PrometheusApi, RangeSeries
from tidegate.telemetry.recording_rules import SIGNAL_DEMAND, SIGNAL_OFFERED


def fill_steps(
    rates: Mapping[ObjectKey, MutableSequence[float]],
    begin: datetime,
    step: timedelta,
    series: Sequence[RangeSeries],
) -> None:
    """Set the rate of each step from `begin` on; the value at a time is that of the step before. Raises ValueError."""
    begin_s, step_s = begin.timestamp(), step.total_seconds()
    for item in series:
        metric = item["metric"]
        steps = rates.get(ObjectKey(metric.get("namespace", ""), metric.get("inference", "")))
        if steps is None:
            continue
        for at_s, text in item["values"]:
            position, rate = (at_s - begin_s) / step_s, float(text)
            if 0.5 < position < len(steps) + 0.5 and isfinite(rate) and 0 <= rate <= MAX_RATE_PER_S:
                steps[round(position) - 1] = rate


def list_demand_queries(aggregation: str, window: str) -> Sequence[str]:
    """Return the queries for demand over windows, like `max_over_time` of `5m`, the cheapest first.

    The recorded rates cost Prometheus least; before an upgrade, the chart's rules recorded what was offered alone. Where it
    lacks the rules, it evaluates their expression.
    """
    return (
        f"{aggregation}({SIGNAL_DEMAND}[{window}]) or {aggregation}({SIGNAL_OFFERED}[{window}])",
        f"{aggregation}(({expressions.DEMAND})[{window}:1m])",
    )


async def query_first(
    api: PrometheusApi,
    queries: Sequence[str],
    begin: datetime,
    end: datetime,
    step: timedelta,
    *,
    max_bytes: int,
) -> Sequence[RangeSeries]:
    """Return the series of the first query that has any. Raises PrometheusError."""
    for query in queries:
        series = await api.query_range(query, begin, end, step, max_bytes=max_bytes)
        if series:
            return series
    return ()
