"""What is known of a pool's future demand, and of its past."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from tidegate.allocation.snapshot import DemandInput
from tidegate.api.durations import format_duration
from tidegate.api.meta import ObjectKey
from tidegate.planning.allocator.event_calendar import EventDemand


@dataclass(frozen=True, slots=True)
class RateHistory:
    """The highest rates of each five minutes from `begin` on, in requests per second, NaN where unknown.

    `problem` is why some of them could not be read, or empty.
    """

    begin: datetime
    rates: Mapping[ObjectKey, Sequence[float]]
    problem: str = ""


@dataclass(frozen=True, slots=True)
class DemandForecasts:
    """The forecasts of one tick: the highest rate within the lead of each Inference, in requests per second.

    `short`: Inferences with less than a day of history. `is_pending`: whether earlier rates are still being read.
    `history_problem`: why they could not be read, or empty. `policy_problem`: why nothing is forecast, or empty.
    """

    peaks: Mapping[ObjectKey, float] = field(default_factory=dict[ObjectKey, float])
    short: frozenset[ObjectKey] = frozenset()
    is_pending: bool = False
    history_problem: str = ""
    policy_problem: str = ""


@dataclass(frozen=True, slots=True)
class ForecastPeak:
    """The highest rate that is expected within a time from now, in requests per second."""

    per_s: float
    within: timedelta


def raise_to_expected(
    load: DemandInput, forecast: ForecastPeak | None, event: EventDemand | None
) -> DemandInput:
    """Return the present demand, or that of a forecast or of an event where it exceeds it."""
    present = max(load.rates)
    expected = present if forecast is None else max(present, forecast.per_s)
    if event is not None and event.rate_per_s > expected:
        return DemandInput((event.rate_per_s,) * len(load.rates), expectation=event.expectation_text)
    if forecast is not None and expected > present:
        expectation = f"expected within {format_duration(forecast.within)}"
        return DemandInput((expected,) * len(load.rates), expectation=expectation)
    return load
