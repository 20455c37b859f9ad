"""docs/reference/metrics.md names every metric that our processes export, and no other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import cast

from prometheus_client import CollectorRegistry

from tidegate.kube.kinds import ALLOCATION_DECISION, COMPUTE_POOL, INFERENCE
from tidegate.kube.store import ObjectStore
from tidegate.runtime.queue_metrics import QueueMetrics
from tidegate.xds.issuers import IssuerMetrics
from tidegate.xds.metrics import XdsMetrics
from tidegate_controllers.allocator_metrics import AllocatorMetrics
from tidegate_controllers.object_metrics import ObjectMetrics
from tidegate_controllers.pool_metrics import PoolMetrics
from tidegate_controllers.questions import Questions
from tidegate_controllers.sharing import SharingMetrics
from tidegate_dataplane.agent.metrics import Metrics
from tidegate_dataplane.batch.metrics import BatchMetrics
from tidegate_dataplane.contract.sharing import DaemonState, NodeReport
from tidegate_dataplane.node_agent.metrics import NodeMetrics
from tidegate_dataplane.node_agent.watcher import Watcher
from tidegate_dataplane.pipeline.counters import FAMILIES as PIPELINE_FAMILIES

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"


class Looked:
    """A node agent that has looked."""

    report = NodeReport(node="gpu-0", daemon=DaemonState.ANSWERS)


def exported() -> set[str]:
    registry = CollectorRegistry()
    QueueMetrics(registry)
    XdsMetrics(registry)
    IssuerMetrics(registry)
    AllocatorMetrics(registry)
    SharingMetrics(registry)
    NodeMetrics(cast(Watcher, Looked()), registry)
    registry.register(ObjectMetrics([ObjectStore(INFERENCE)], lambda: True))
    pools = PoolMetrics(
        ObjectStore(COMPUTE_POOL), ObjectStore(ALLOCATION_DECISION), Questions(), lambda: True
    )
    registry.register(pools)
    families = [
        *registry.collect(),
        *Metrics().registry.collect(),
        *BatchMetrics().registry.collect(),
    ]
    of_processes = {
        f"{family.name}_total" if family.type == "counter" else family.name
        for family in families
        if family.name.startswith("tidegate_")
    }
    return of_processes | PIPELINE_FAMILIES.keys()


def test_the_page_lists_what_is_exported() -> None:
    listed = set(re.findall(r"^\| `(tidegate_\w+)`", PAGE.read_text(), re.MULTILINE))

    assert listed == exported()
