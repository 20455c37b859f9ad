"""Compute the demand of near-line work from a broker's counts: messages that arrive, and those that wait."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from tidegate.allocation.snapshot import (
    DEFAULT_LOAD_S,
    AllocationSnapshot,
    DeadlineInput,
    PlacementInput,
)
from tidegate.api.durations import parse_duration
from tidegate.api.meta import ObjectKey
from tidegate.api.nearline import NearlineSpec
from tidegate.planning.allocator.signals import MAX_RATE_PER_S, InferenceMetrics, Signal
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
    return InferenceMetrics(
        offered_per_s=counted.per_s + counted.unsettled / CATCH_UP_S, backlog=float(counted.unsettled)
    )


def find_deadline(
    nearline: NearlineSpec, signal: Signal | None, least_per_s: float, load_s: float | None
) -> DeadlineInput | None:
    """Return the rate that keeps messages within spec.nearline.maxDelay; None if that is absent.

    At a rate r, the message that arrives now waits as long as the backlog takes, so r is the backlog over the delay, and at least
    the rate of arrivals. Replicas that start now answer after `load_s`, where it is measured, so that time is left out, but for half of the delay.
    Without a fresh count it is `least_per_s`, which keeps a pod that counts.
    """
    if nearline.max_delay is None:
        return None
    max_delay_s = parse_duration(nearline.max_delay) / timedelta(seconds=1)
    if signal is None or not signal.fresh or signal.backlog is None:
        return DeadlineInput(least_per_s, max_delay_s)
    load_s = DEFAULT_LOAD_S if load_s is None else load_s
    arrivals_per_s = signal.demand_per_s - signal.backlog / CATCH_UP_S
    catch_up_per_s = signal.backlog / max(max_delay_s - load_s, max_delay_s / 2)
    return DeadlineInput(min(max(arrivals_per_s, catch_up_per_s, least_per_s), MAX_RATE_PER_S), max_delay_s)


def find_deadline_shortfalls(snapshot: AllocationSnapshot) -> Mapping[str, float]:
    """Return the messages per second that the ready replicas of each Inference with a deadline lack to keep it; 0 if none."""
    return {
        model.key: max(model.load.deadline.rate - sum(map(_rate_of_ready, model.placements)), 0.0)
        for model in snapshot.inferences
        if model.load is not None and model.load.deadline is not None
    }


def _rate_of_ready(placement: PlacementInput) -> float:
    return placement.curve.rate_at(placement.replicas.ready)
