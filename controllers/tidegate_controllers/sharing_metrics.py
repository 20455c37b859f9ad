"""What the repairs of nodes' GPU sharing tell Prometheus."""

from collections.abc import Sequence
from typing import Final

from prometheus_client import CollectorRegistry

from tidegate.planning.sharing_health import Turn, TurnKind
from tidegate_dataplane.contract.metrics import Catalog

_RECOVERY_S: Final = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600)

SHARING: Final = Catalog("tidegate_pool_")
_FAULTS = SHARING.counter(
    "node_faults_total", "Faults of nodes' GPU sharing whose repair has begun.", "pool", "kind"
)
_RECOVERY = SHARING.histogram(
    "node_recovery_seconds",
    "From the first sight of a fault until the node was well.",
    "pool",
    "kind",
    buckets=_RECOVERY_S,
)
_FAILED_STEPS = SHARING.counter(
    "repair_steps_failed_total",
    "Steps of repairs that could not be taken (TaintNode, OrderNode, RemovePod); they are tried again.",
    "pool",
    "step",
)
_QUARANTINED = SHARING.counter(
    "nodes_quarantined_total",
    "Nodes kept out of use after all attempts, counted when that begins: a person has to look.",
    "pool",
    "kind",
)


class SharingMetrics:
    """What failed on nodes, and how long it took to mend it."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.faults = _FAULTS.on(registry)
        self.recovery_seconds = _RECOVERY.on(registry)
        self.failed_steps = _FAILED_STEPS.on(registry)
        self.quarantined = _QUARANTINED.on(registry)

    def count(self, pool: str, turns: Sequence[Turn]) -> None:
        """Counts what repairs have come to."""
        for turn in turns:
            kind = turn.fault.value
            if turn.kind is TurnKind.BEGUN:
                self.faults.labels(pool, kind).inc()
            elif turn.kind is TurnKind.RECOVERED:
                self.recovery_seconds.labels(pool, kind).observe(turn.after.total_seconds())
            elif turn.kind is TurnKind.QUARANTINED:
                self.quarantined.labels(pool, kind).inc()
