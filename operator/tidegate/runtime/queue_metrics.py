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
    "Keys that wait for a worker; in a process that is not the leader, keys that it would reconcile as the leader.",
    "queue",
)
_OLDEST = QUEUES.add_gauge(
    "queue_oldest_seconds",
    "Age of the oldest waiting key; in a process that is not the leader, its growth is normal.",
    "queue",
)
_WAIT = QUEUES.add_histogram(
    "queue_wait_seconds", "Time from adding a key to the start of its reconcile.", "queue", buckets=_SECONDS
)
_RETRIES = QUEUES.add_counter("queue_retries_total", "Keys requeued after a failure.", "queue")
_IN_PROGRESS = QUEUES.add_gauge("reconciles_in_progress", "Keys that workers are reconciling.", "queue")
_RECONCILE = QUEUES.add_histogram(
    "reconcile_seconds", "Duration of one reconcile.", "queue", buckets=_SECONDS
)
_RESULTS = QUEUES.add_counter(
    "reconciles_total",
    "Reconciles by result: done, requeued, retried, permanent, crashed.",
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
