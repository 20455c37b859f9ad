"""The registries of our processes, filled as the processes do it, and what they show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from prometheus_client import CollectorRegistry

from tidegate.exporters.allocator import AllocatorMetrics
from tidegate.exporters.objects import ObjectMetrics
from tidegate.exporters.pools import PoolMetrics
from tidegate.exporters.route_demand import RouteDemandMetrics
from tidegate.exporters.sharing import SharingMetrics
from tidegate.exporters.solver_inputs import SolverInputs
from tidegate.kube.kinds import ALLOCATION_DECISION, COMPUTE_POOL, INFERENCE
from tidegate.kube.store import ObjectStore
from tidegate.runtime import event_loop
from tidegate.runtime.process_metrics import ProcessMetrics, show_leader, show_left_out
from tidegate.runtime.queue_metrics import QueueMetrics
from tidegate.telemetry.span_metrics import SpanMetrics
from tidegate.web.metrics import WebMetrics
from tidegate.xds.issuer_keys import IssuerMetrics
from tidegate.xds.metrics import XdsMetrics
from tidegate_dataplane.agent.metrics import AgentMetrics
from tidegate_dataplane.batch.metrics import BatchMetrics
from tidegate_dataplane.contract.exported import FEATURE_STORE, PIPELINE, RUNNER
from tidegate_dataplane.contract.sharing import DaemonState, NodeReport
from tidegate_dataplane.node_agent.process import NodeMetrics
from tidegate_dataplane.node_agent.watcher import MpsWatcher


class Reported:
    """A node agent that has a report."""

    report = NodeReport(node="gpu-0", daemon=DaemonState.ANSWERS)


def families(registry: CollectorRegistry) -> dict[str, str]:
    """Name and type of all that a registry shows of ours."""
    return {
        f"{family.name}_total" if family.type == "counter" else family.name: family.type
        for family in registry.collect()
        if family.name.startswith("tidegate_")
    }


def controllers() -> CollectorRegistry:
    registry = CollectorRegistry()
    ProcessMetrics(registry, "controllers")
    show_left_out(registry, [ObjectStore(INFERENCE)])
    SpanMetrics(registry)
    event_loop.BLOCKED.register(registry)
    show_leader(registry, lambda: True)
    QueueMetrics(registry)
    AllocatorMetrics(registry)
    SharingMetrics(registry)
    registry.register(ObjectMetrics([ObjectStore(INFERENCE)], lambda: True))
    registry.register(RouteDemandMetrics(dict, lambda: True))
    pools, decisions = ObjectStore(COMPUTE_POOL), ObjectStore(ALLOCATION_DECISION)
    registry.register(PoolMetrics(pools, decisions, SolverInputs(), lambda: True))
    return registry


def xds() -> CollectorRegistry:
    registry = CollectorRegistry()
    ProcessMetrics(registry, "xds")
    show_left_out(registry, [ObjectStore(INFERENCE)])
    SpanMetrics(registry)
    event_loop.BLOCKED.register(registry)
    XdsMetrics(registry)
    IssuerMetrics(registry)
    return registry


def web() -> CollectorRegistry:
    registry = CollectorRegistry()
    ProcessMetrics(registry, "web")
    show_left_out(registry, [ObjectStore(INFERENCE)])
    SpanMetrics(registry)
    event_loop.BLOCKED.register(registry)
    WebMetrics(registry)
    return registry


def node_agent() -> CollectorRegistry:
    registry = CollectorRegistry()
    NodeMetrics(cast(MpsWatcher, Reported()), registry)
    return registry


REGISTRIES: Mapping[str, CollectorRegistry] = {
    "Controllers": controllers(),
    "xDS servers": xds(),
    "Web": web(),
    "Node agents": node_agent(),
    "Agents": AgentMetrics().registry,
    "Batch": BatchMetrics().registry,
}
"""By the heading that each process has on the page of metrics."""
SHOWN: Mapping[str, Mapping[str, str]] = {
    **{process: families(registry) for process, registry in REGISTRIES.items()},
    "Feature stores": dict.fromkeys((metric.name for metric in FEATURE_STORE), "counter"),
    "ONNX runner": dict.fromkeys((metric.name for metric in RUNNER), "counter"),
    "Pipelines": dict.fromkeys((metric.name for metric in PIPELINE), "counter"),
}
