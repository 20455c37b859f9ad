"""Compute the demand of near-line work from a broker's counts: messages that arrive, and those that wait."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from tidegate.api.meta import ObjectKey
from tidegate.planning.allocator.signals import InferenceMetrics
from tidegate_dataplane.contract import AgentReport, StreamCount

CATCH_UP_S: Final = 60.0
"""The time in which waiting messages are to be answered, beside those that arrive meanwhile."""
STALE_AFTER_S: Final = 30.0
"""A pod asks its broker every two seconds; with an older count it has lost its broker."""
_LEAST_S: Final = 0.5
"""Two counts closer than this give no rate."""


@dataclass(frozen=True, slots=True)
class BrokerCount:
    """A broker's counts at `counted_at_s`, by a monotonic clock; `per_s` is the rate of arrivals since the previous count."""

    counted_at_s: float
    unsettled: int
    arrived: int
    per_s: float | None = None


BrokerCounts = Mapping[ObjectKey, BrokerCount]


def find_newest_count(reports: Iterable[AgentReport]) -> StreamCount | None:
    """Return the newest count of the pods of one Inference, which share one stream; None if none is recent."""
    counts = (report.stream.count for report in reports if report.stream is not None)
    recent = (count for count in counts if count is not None and count.age_s <= STALE_AFTER_S)
    return min(recent, key=lambda count: count.age_s, default=None)


def update_count(before: BrokerCount | None, count: StreamCount, now_s: float) -> BrokerCount:
    """Update a count; the rate is unknown after the first count and after a consumer was created again."""
    at_s = now_s - count.age_s
    if before is not None and at_s - before.counted_at_s < _LEAST_S:
        return before
    per_s = None
    if before is not None and count.arrived >= before.arrived:
        per_s = (count.arrived - before.arrived) / (at_s - before.counted_at_s)
    return BrokerCount(at_s, count.unsettled, count.arrived, per_s)


def to_metrics(counted: BrokerCount) -> InferenceMetrics | None:
    """Return the rate to answer so that no message waits longer than CATCH_UP_S; None while no rate is known."""
    if counted.per_s is None:
        return None
    return InferenceMetrics(offered_per_s=counted.per_s + counted.unsettled / CATCH_UP_S)
