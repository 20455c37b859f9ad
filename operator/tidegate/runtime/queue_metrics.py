"""What a work queue tells Prometheus."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

# From a reconcile that finds nothing to do to one that waits for agents.
_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Result(StrEnum):
    """How one reconcile ended."""

    DONE = "done"
    REQUEUED = "requeued"
    RETRIED = "retried"
    PERMANENT = "permanent"
    CRASHED = "crashed"


class QueueMetrics:
    """The metrics of all queues of a process; each labels its own by name."""

    def __init__(self, registry: CollectorRegistry) -> None:
        labels = ("queue",)
        self.depth = Gauge("tidegate_queue_depth", "Keys that wait for a worker.", labels, registry=registry)
        self.oldest_seconds = Gauge(
            "tidegate_queue_oldest_seconds",
            "Age of the key that has waited longest.",
            labels,
            registry=registry,
        )
        self.in_progress = Gauge(
            "tidegate_reconciles_in_progress", "Keys that a worker is busy with.", labels, registry=registry
        )
        self.wait_seconds = Histogram(
            "tidegate_queue_wait_seconds", "From add to start.", labels, registry=registry, buckets=_SECONDS
        )
        self.reconcile_seconds = Histogram(
            "tidegate_reconcile_seconds", "One reconcile.", labels, registry=registry, buckets=_SECONDS
        )
        self.results = Counter(
            "tidegate_reconciles_total",
            "Reconciles by how they ended.",
            (*labels, "result"),
            registry=registry,
        )
        self.retries = Counter(
            "tidegate_queue_retries_total", "Keys put back after a failure.", labels, registry=registry
        )
