"""Metrics of the work queues."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from prometheus_client import CollectorRegistry

from tidegate_dataplane.contract.metrics import MetricCatalog

# The buckets range from a reconcile without changes to one that waits for agents.
_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)

QUEUES: Final = MetricCatalog("tidegate_")
_DEPTH = QUEUES.add_gauge(
    "queue_depth",
    "Keys that wait for a worker; of a process that does not lead, what it would have to look at.",
    "queue",
)
_OLDEST = QUEUES.add_gauge(
    "queue_oldest_seconds",
    "Age of the key that has waited longest; of a process that does not lead it grows, as it should.",
    "queue",
)
_WAIT = QUEUES.add_histogram("queue_wait_seconds", "From add to start.", "queue", buckets=_SECONDS)
_RETRIES = QUEUES.add_counter("queue_retries_total", "Keys put back after a failure.", "queue")
_IN_PROGRESS = QUEUES.add_gauge("reconciles_in_progress", "Keys that a worker is busy with.", "queue")
_RECONCILE = QUEUES.add_histogram("reconcile_seconds", "One reconcile.", "queue", buckets=_SECONDS)
_RESULTS = QUEUES.add_counter(
    "reconciles_total",
    "Reconciles by how they ended: done, requeued, retried, permanent, crashed.",
    "queue",
    "result",
)


class ReconcileResult(StrEnum):
    """Way in which one reconcile ended."""

    DONE = "done"
    REQUEUED = "requeued"
    RETRIED = "retried"
    PERMANENT = "permanent"
    CRASHED = "crashed"


class QueueMetrics:
    """Metrics of all queues of a process, labelled by queue."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.depth = _DEPTH.register(registry)
        self.oldest_seconds = _OLDEST.register(registry)
        self.in_progress = _IN_PROGRESS.register(registry)
        self.wait_seconds = _WAIT.register(registry)
        self.reconcile_seconds = _RECONCILE.register(registry)
        self.results = _RESULTS.register(registry)
        self.retries = _RETRIES.register(registry)
