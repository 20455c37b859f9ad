"""The p99 that a plan predicts: against queues that are simulated request by request, and from what was measured."""

from __future__ import annotations

import heapq
import random
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from builders.allocator import NOW, a_member, observed
from tidegate.allocation.curves import CapacityCorrection
from tidegate.api.inference import Tier
from tidegate.planning.allocator.latency import (
    LatencyMeasurement,
    PredictedLatency,
    measure_latencies,
    predict_latency,
)
from tidegate.planning.allocator.observed_pool import PoolMember
from tidegate.planning.allocator.signals import Signal, Signals

SLO_S = 5.0
"""Of a mean service time of 1."""
LOADS = (0.2, 0.4, 0.6, 0.8, 0.95)


class Queue:
    """First come, first served, by several replicas, with the same random numbers at every rate."""

    def __init__(self, replicas: int, *, constant: bool, requests: int = 12_000) -> None:
        source = random.Random(7)
        self.replicas = replicas
        self.gaps = [source.expovariate(1.0) for _ in range(requests)]
        self.services = [1.0 if constant else source.expovariate(1.0) for _ in range(requests)]

    def p99_at(self, rate: float) -> float:
        """Time within which 99 of 100 requests are answered."""
        free, now, times = [0.0] * self.replicas, 0.0, list[float]()
        for gap, service in zip(self.gaps, self.services, strict=True):
            now += gap / rate
            end = max(now, free[0]) + service
            heapq.heapreplace(free, end)
            times.append(end - now)
        return sorted(times)[len(times) * 99 // 100]

    def capacity(self) -> float:
        """The highest rate within the SLO, as `tidegate calibrate` looks for it."""
        low, high = 0.0, float(self.replicas)
        for _ in range(12):
            middle = (low + high) / 2
            low, high = (middle, high) if self.p99_at(middle) <= SLO_S else (low, middle)
        return low


@pytest.mark.parametrize(
    ("replicas", "constant", "most_off"),
    [(1, False, 0.05), (4, False, 0.1), (1, True, 0.1), (4, True, 0.2)],
)
def test_a_prediction_bounds_the_p99_of_a_queue(replicas: int, constant: bool, most_off: float) -> None:
    """`most_off` is what docs/how-to/plan-compute.md states."""
    queue = Queue(replicas, constant=constant)
    capacity = queue.capacity()
    p99s = {load: queue.p99_at(load * capacity) for load in LOADS}

    off = list[float]()
    for seen in (0.2, 0.4, 0.6):
        for asked in LOADS:
            predicted = predict_latency(LatencyMeasurement(SLO_S, p99s[seen], seen), asked)
            assert (predicted.lowest_s or 0.0) <= p99s[asked] <= (predicted.highest_s or 0.0)
            assert predicted.estimate_s is not None
            assert (predicted.lowest_s or 0.0) <= predicted.estimate_s * (1 + 1e-9)
            assert predicted.estimate_s <= (predicted.highest_s or 0.0) * (1 + 1e-9)
            off.append(abs(predicted.estimate_s / p99s[asked] - 1))
    assert max(off) <= most_off


def test_beyond_the_capacity_only_the_slo_is_a_bound() -> None:
    measured = LatencyMeasurement(0.05, 0.02, 0.5)
    assert predict_latency(measured, 1.001) == PredictedLatency(lowest_s=0.05)
    at_capacity = predict_latency(measured, 1.0)
    assert at_capacity.estimate_s == pytest.approx(0.05)
    assert (at_capacity.lowest_s, at_capacity.highest_s) == (0.02, 0.05)


def test_what_was_measured_is_predicted_for_its_own_load() -> None:
    predicted = predict_latency(LatencyMeasurement(0.05, 0.02, 0.5), 0.5)
    assert predicted.estimate_s == pytest.approx(0.02)


def test_without_a_measurement_the_slo_alone_is_known() -> None:
    assert predict_latency(LatencyMeasurement(0.05), 0.9) == PredictedLatency(highest_s=0.05)


@pytest.mark.parametrize(("p99_s", "seen"), [(0.08, 0.5), (0.02, 1.2)])
def test_what_contradicts_the_capacity_gives_no_estimate(p99_s: float, seen: float) -> None:
    measured = LatencyMeasurement(0.05, p99_s, seen)
    assert predict_latency(measured, seen / 2) == PredictedLatency(highest_s=p99_s)
    assert predict_latency(measured, 0.9).estimate_s is None


CAPACITY: dict[str, Any] = {"requestsPerSecond": "100"}
SIGNAL = Signal(150.0, NOW, latency_p99_s=0.02)


def ctr(**more: Any) -> PoolMember:
    spec: dict[str, Any] = {"capacity": CAPACITY, "slo": {"latencyP99": "50ms"}, **more}
    return a_member("ctr", 2, **spec)


def measured(member: PoolMember, signal: Signal | None = SIGNAL, **more: Any) -> LatencyMeasurement | None:
    signals = Signals({} if signal is None else {member.key: signal}, "", timedelta())
    return measure_latencies(observed(member, signals=signals, **more)).get(str(member.key))


def test_the_load_is_that_of_the_replicas_that_serve_with_their_corrected_capacity() -> None:
    assert measured(ctr()) == LatencyMeasurement(0.05, 0.02, 0.75)
    corrected = measured(ctr(), corrections={ctr().key: CapacityCorrection(0.9375)})
    assert corrected == LatencyMeasurement(0.05, 0.02, 0.8)


@pytest.mark.parametrize(
    "signal",
    [
        None,
        replace(SIGNAL, latency_p99_s=None),
        replace(SIGNAL, fresh=False),
        replace(SIGNAL, held_reason="a gateway is silent"),
        replace(SIGNAL, offered_per_s=0.0),
    ],
)
def test_an_unreliable_signal_leaves_the_slo(signal: Signal | None) -> None:
    assert measured(ctr(), signal) == LatencyMeasurement(0.05)


@pytest.mark.parametrize("member", [ctr(slo=None), ctr(capacity=None), ctr(tier=Tier.NEARLINE)])
def test_nothing_is_known_without_an_slo_or_a_capacity(member: PoolMember) -> None:
    assert measured(member) is None
