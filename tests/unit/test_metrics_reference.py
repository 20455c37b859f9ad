"""docs/reference/metrics.md names every metric that our processes export, and no other; and all are named as Prometheus wants."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import pytest
from prometheus_client import CollectorRegistry

from tidegate.kube.kinds import ALLOCATION_DECISION, COMPUTE_POOL, INFERENCE
from tidegate.kube.store import ObjectStore
from tidegate.metrics_page import SECTIONS, metrics_page
from tidegate.runtime.process_metrics import ProcessMetrics, show_leader
from tidegate.runtime.queue_metrics import QueueMetrics
from tidegate.web.metrics import WebMetrics
from tidegate.xds.issuers import IssuerMetrics
from tidegate.xds.metrics import XdsMetrics
from tidegate_controllers.allocator_metrics import AllocatorMetrics
from tidegate_controllers.object_metrics import ObjectMetrics
from tidegate_controllers.pool_metrics import PoolMetrics
from tidegate_controllers.questions import Questions
from tidegate_controllers.sharing_metrics import SharingMetrics
from tidegate_dataplane.agent.metrics import Metrics
from tidegate_dataplane.batch.metrics import BatchMetrics
from tidegate_dataplane.contract.metrics import Metric
from tidegate_dataplane.contract.sharing import DaemonState, NodeReport
from tidegate_dataplane.node_agent.metrics import NodeMetrics
from tidegate_dataplane.node_agent.watcher import Watcher
from tidegate_dataplane.pipeline.counters import FAMILIES as PIPELINE_FAMILIES

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
METRICS = [metric for section in SECTIONS for metric in section.metrics]
FOREIGN_UNITS = re.compile(
    r"_(ms|us|ns|millis\w*|micros\w*|minutes?|hours?|days?|kb|mb|gb|kib|mib|gib|percent\w*|pct)(_|$)"
)


class Looked:
    """A node agent that has looked."""

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
    show_leader(registry, lambda: True)
    QueueMetrics(registry)
    AllocatorMetrics(registry)
    SharingMetrics(registry)
    registry.register(ObjectMetrics([ObjectStore(INFERENCE)], lambda: True))
    pools, decisions = ObjectStore(COMPUTE_POOL), ObjectStore(ALLOCATION_DECISION)
    registry.register(PoolMetrics(pools, decisions, Questions(), lambda: True))
    return registry


def xds() -> CollectorRegistry:
    registry = CollectorRegistry()
    ProcessMetrics(registry, "xds")
    XdsMetrics(registry)
    IssuerMetrics(registry)
    return registry


def web() -> CollectorRegistry:
    registry = CollectorRegistry()
    ProcessMetrics(registry, "web")
    WebMetrics(registry)
    return registry


def node_agent() -> CollectorRegistry:
    registry = CollectorRegistry()
    NodeMetrics(cast(Watcher, Looked()), registry)
    return registry


SHOWN: Mapping[str, Mapping[str, str]] = {
    "Controllers": families(controllers()),
    "xDS servers": families(xds()),
    "Web": families(web()),
    "Node agents": families(node_agent()),
    "Agents": families(Metrics().registry),
    "Batch": families(BatchMetrics().registry),
    "Pipelines": dict.fromkeys(PIPELINE_FAMILIES, "counter"),
}


def listed(process: str) -> dict[str, str]:
    """Name and type of all that the committed page lists below a process's heading."""
    [below] = re.findall(rf"^## {process}\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return dict(re.findall(r"^\| `(tidegate_\w+)` \| (\w+) \|", below, re.MULTILINE))


@pytest.mark.parametrize("process", SHOWN)
def test_the_page_lists_what_a_process_shows_and_nothing_else(process: str) -> None:
    assert listed(process) == SHOWN[process]


def test_no_process_is_left_out_of_the_page_or_of_this_test() -> None:
    assert {section.process for section in SECTIONS} == {*SHOWN, "Gateways"}


def test_the_page_is_what_make_generate_writes() -> None:
    assert PAGE.read_text() == metrics_page()


@pytest.mark.parametrize(
    "metric", METRICS, ids=[f"{metric.name}-{place}" for place, metric in enumerate(METRICS)]
)
def test_names_and_helps_are_as_prometheus_wants_them(metric: Metric) -> None:
    assert wrong_with(metric) == []


def wrong_with(metric: Metric) -> list[str]:
    """What a reader of Prometheus' conventions would object to."""
    found = []
    if not re.fullmatch(r"(tidegate|envoy_tidegate)(_[a-z0-9]+)+", metric.name):
        found.append("not in snake case with our prefix")
    if metric.name.startswith("tidegate_") and (metric.TYPE == "counter") != metric.name.endswith("_total"):
        found.append("_total is for counters, and for each of them")
    if FOREIGN_UNITS.search(metric.name):
        found.append("a unit that is no base unit")
    if metric.TYPE == "histogram" and not metric.name.endswith(("_seconds", "_bytes")):
        found.append("a histogram without its unit")
    if "timestamp" in metric.name and not metric.name.endswith("_timestamp_seconds"):
        found.append("a time that is not in seconds since 1970")
    if not metric.text.endswith("."):
        found.append("a help that is no sentence")
    if {"le", "quantile", "job", "instance"} & {
        *metric.labels
    } and metric.name != "tidegate_inference_slo_bucket_share":
        found.append("a label that Prometheus gives a meaning to")
    return found


def test_the_conventions_are_looked_at() -> None:
    bad = Metric("tidegate_Queue_ms", "no sentence", ("instance",))
    assert len(wrong_with(bad)) == 4
