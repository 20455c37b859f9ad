"""Builds a pool whose demand Prometheus has recorded, for simulations of the dashboard."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from builders.compute_pool import a_compute_pool
from builders.inference import an_inference
from builders.shown_fleet import SHOWN_AT
from tidegate.api.meta import CustomResource
from tidegate.telemetry.prometheus_api import RangeSeries

RECORDED_POOL = "gpu-a"


def a_recorded_fleet() -> Sequence[CustomResource]:
    """A pool of eight slices on four nodes, with a real-time Inference that has a capacity, and offline work."""
    placed: dict[str, Any] = {"placement": {"pool": RECORDED_POOL}, "replicas": None}
    slices = {"total": 8, "healthy": 8, "free": 0}
    return (
        a_compute_pool(RECORDED_POOL, status={"observedGeneration": 1, "nodes": 4, "slices": slices}),
        an_inference(
            "ctr",
            tier="realtime",
            scaling={"minReplicas": 1, "maxReplicas": 6},
            capacity={"requestsPerSecond": "100"},
            slo={"latencyP99": "30ms"},
            **placed,
        ),
        an_inference("embed", tier="offline", scaling={"minReplicas": 0, "maxReplicas": 8}, **placed),
    )


def recorded_series(begin: datetime, end: datetime, step: timedelta) -> Sequence[RangeSeries]:
    """120/s, and in the last half hour three times that."""
    times = [begin + number * step for number in range((end - begin) // step + 1)]
    peak = SHOWN_AT - timedelta(minutes=30)
    values = [(at.timestamp(), "360" if at > peak else "120") for at in times]
    return [{"metric": {"namespace": "ads", "inference": "ctr"}, "values": values}]
