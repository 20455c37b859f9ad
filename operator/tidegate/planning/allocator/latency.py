"""Predict the p99 of an Inference at another load, from one measured p99 and from its capacity."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidegate.api.durations import parse_duration
from tidegate.planning.allocator.observed_pool import AllocationObserved
from tidegate.planning.allocator.signals import Signal


@dataclass(frozen=True, slots=True)
class LatencyMeasurement:
    """What is known of an Inference's p99: its limit, and what gateways measured at which load.

    `utilization`: requests that were offered, over the capacity of the replicas that served them. It and `p99_s` are None
    while nothing reliable was measured.
    """

    slo_s: float
    p99_s: float | None = None
    utilization: float | None = None


@dataclass(frozen=True, slots=True)
class PredictedLatency:
    """The p99 at some load, in seconds: the estimate, and the bounds that hold if p99 never falls as load rises.

    None: no estimate, or no bound on that side.
    """

    estimate_s: float | None = None
    lowest_s: float | None = None
    highest_s: float | None = None


def measure_latencies(observed: AllocationObserved) -> Mapping[str, LatencyMeasurement]:
    """Return what is known of the Inferences that have an SLO and a capacity, by namespace/name."""
    measured: dict[str, LatencyMeasurement] = {}
    for member in observed.members:
        spec = member.inference.spec
        if not spec.tier.traits.has_slo or spec.slo is None or (curve := member.usable_curve) is None:
            continue
        correction = observed.corrections.get(member.key)
        capacity = (curve if correction is None else correction.apply_to(curve)).rate_at(member.serving_pods)
        limit = LatencyMeasurement(parse_duration(spec.slo.latency_p99).total_seconds())
        signal = observed.signals.by_key.get(member.key)
        # What gateways measure of an Inference in several pools is their mixture.
        if signal is None or member.has_several_pools or capacity <= 0:
            measured[str(member.key)] = limit
        else:
            measured[str(member.key)] = _add_signal(limit, signal, capacity)
    return measured


def _add_signal(limit: LatencyMeasurement, signal: Signal, capacity: float) -> LatencyMeasurement:
    is_reliable = signal.fresh and not signal.held_reason and signal.offered_per_s > 0
    if not is_reliable or signal.latency_p99_s is None:
        return limit
    return LatencyMeasurement(limit.slo_s, signal.latency_p99_s, signal.offered_per_s / capacity)


def predict_latency(measured: LatencyMeasurement, utilization: float) -> PredictedLatency:
    """Predict the p99 at `utilization`, the demand over the capacity of the replicas.

    Capacity is the load at which p99 reaches the SLO. So two points of the curve of p99 over load are known: the measured
    one, and the SLO at utilization 1. The bounds follow from them alone. The estimate joins them as the time in an M/M/1
    queue grows, by 1 / (1 - load / limit) (Kleinrock, Queueing Systems I, 3.2): nothing else is assumed of the service time.
    Beyond the capacity a queue grows without limit, so there is no estimate.
    """
    slo_s, p99_s, measured_at = measured.slo_s, measured.p99_s, measured.utilization
    if utilization > 1:
        return PredictedLatency(lowest_s=slo_s)
    if p99_s is None or measured_at is None:
        return PredictedLatency(highest_s=slo_s)
    if p99_s >= slo_s or measured_at >= 1:
        # Production is slower or faster than the measured capacity says: the two points are on no curve.
        return PredictedLatency(highest_s=max(slo_s, p99_s) if utilization > measured_at else p99_s)
    # p99 = idle / (1 - utilization / limit) through both points; limit is more than 1, since measured_at is less.
    per_limit = (slo_s - p99_s) / (slo_s - p99_s * measured_at)
    estimate = slo_s * (1 - per_limit) / (1 - utilization * per_limit)
    if utilization >= measured_at:
        return PredictedLatency(estimate, lowest_s=p99_s, highest_s=slo_s)
    return PredictedLatency(estimate, highest_s=p99_s)
