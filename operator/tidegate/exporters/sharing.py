"""Metrics of faults of nodes' GPU sharing."""

from collections.abc import Sequence
from typing import Final

from prometheus_client import CollectorRegistry

from tidegate.api.faulty_nodes import FaultState
from tidegate.planning.gpu_sharing.health import FaultChange
from tidegate_dataplane.contract.metrics import MetricCatalog

_RECOVERY_S: Final = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600)

SHARING: Final = MetricCatalog("tidegate_pool_")
_FAULTS = SHARING.add_counter("node_faults_total", "Faults of nodes' GPU sharing.", "pool", "kind")
_RECOVERY = SHARING.add_histogram(
    "node_recovery_seconds",
    "Time from the detection of a fault until it was gone.",
    "pool",
    "kind",
    buckets=_RECOVERY_S,
)
_QUARANTINED = SHARING.add_counter("nodes_quarantined_total", "Nodes that were quarantined.", "pool", "kind")
_FAILED_ACTIONS = SHARING.add_counter(
    "sharing_actions_failed_total",
    "Changes of a node's taint (TaintNode) and restarts of an MPS daemon (RestartDaemon) that failed.",
    "pool",
    "action",
)


class SharingMetrics:
    """Counts faults, quarantines and recoveries."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.faults = _FAULTS.register(registry)
        self.recovery_seconds = _RECOVERY.register(registry)
        self.quarantined = _QUARANTINED.register(registry)
        self.failed_actions = _FAILED_ACTIONS.register(registry)

    def count_changes(self, pool: str, changes: Sequence[FaultChange]) -> None:
        """Count what has changed."""
        for change in changes:
            labels = (pool, change.after.fault.value)
            if change.after.state is FaultState.RECOVERED:
                self.recovery_seconds.labels(*labels).observe(change.fault_duration.total_seconds())
            elif change.is_new:
                self.faults.labels(*labels).inc()
            if change.after.state is FaultState.QUARANTINED:
                self.quarantined.labels(*labels).inc()
