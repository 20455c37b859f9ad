"""What is known of a pool's future demand, and of its past."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from tidegate.allocation.snapshot import DemandInput
from tidegate.api.compute_pool import ForecastPolicy
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
    """The forecasts of one tick: the highest rate within the horizon, by Inference, in requests per second.

    `short`: Inferences with less than a day of history. `is_pending`: whether earlier rates are still being read.
    `history_problem`: why they could not be read, or empty.
    """

    peaks: Mapping[ObjectKey, float] = field(default_factory=dict[ObjectKey, float])
    short: frozenset[ObjectKey] = frozenset()
    is_pending: bool = False
    history_problem: str = ""


def raise_to_expected(
    load: DemandInput, policy: ForecastPolicy | None, peak: float | None, event: EventDemand | None
) -> DemandInput:
    """Return the present demand, or the forecast `peak` or the demand of an event where one of them exceeds it."""
    present = max(load.rates)
    forecast = peak if policy is not None and peak is not None else 0.0
    if event is not None and event.rate_per_s > max(present, forecast):
        return DemandInput((event.rate_per_s,) * len(load.rates), expectation=event.expectation_text)
    if policy is not None and forecast > present:
        return DemandInput((forecast,) * len(load.rates), expectation=f"expected within {policy.horizon}")
    return load
