"""Put the rates that Prometheus returns for a time into the steps of that time."""

from __future__ import annotations

from collections.abc import Mapping, MutableSequence, Sequence
from datetime import datetime, timedelta
from math import isfinite

from tidegate.api.meta import ObjectKey
from tidegate.planning.allocator.signals import MAX_RATE_PER_S
from tidegate.telemetry.prometheus_api import RangeSeries


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
