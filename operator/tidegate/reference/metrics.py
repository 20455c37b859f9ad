"""docs/reference/metrics.md: every metric of every process, from its definition."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tidegate.exporters.allocator import ALLOCATOR
from tidegate.exporters.objects import OBJECTS
from tidegate.exporters.pools import POOLS
from tidegate.exporters.route_demand import ROUTES
from tidegate.exporters.sharing import SHARING
from tidegate.reference.markdown import format_code, render_notice, render_table
from tidegate.runtime.event_loop import EVENT_LOOP
from tidegate.runtime.process_metrics import CACHES, LEADING, PROCESS, WRITES
from tidegate.runtime.queue_metrics import QUEUES
from tidegate.telemetry.recording_rules import GROUPS
from tidegate.telemetry.span_metrics import SPANS
from tidegate.web.metrics import WEB
from tidegate.xds.issuer_keys import ISSUERS
from tidegate.xds.metrics import XDS
from tidegate_dataplane.contract import exported
from tidegate_dataplane.contract.metrics import CounterMetric, Metric, MetricCatalog


@dataclass(frozen=True, slots=True)
class MetricSection:
    """A section of the page: metrics of a process, below its heading, with text before and after the table."""

    process: str
    catalogs: tuple[Iterable[Metric], ...]
    before: str = ""
    after: str = ""
    part: str = ""

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Return the metrics in the order of their definition."""
        return tuple(metric for catalog in self.catalogs for metric in catalog)


REJECTED_REQUESTS: Final = CounterMetric(
    "envoy_tidegate_refused",
    "Requests that got 401 or 403 (gRPC: UNAUTHENTICATED, PERMISSION_DENIED), that admission control rejected, or "
    "for which no target had a ready pod.",
    ("route", "reason", "envoy_cluster_name"),
)
_OPERATOR_CATALOGS: Final[tuple[MetricCatalog, ...]] = (PROCESS, WRITES, CACHES, EVENT_LOOP, SPANS)

METRIC_SECTIONS: Final = (
    MetricSection("Controllers", (*_OPERATOR_CATALOGS, LEADING), part="Process"),
    MetricSection(
        "Controllers",
        (OBJECTS,),
        part="Objects",
        before="State of every object. Only the leader exports these, so that nothing counts twice.",
        after="`tidegate_inference_slo_bucket_share` lets one rule serve every objective: the sum of the gateways' cumulative "
        "buckets, each multiplied by its share, is the number of requests within the objective.",
    ),
    MetricSection(
        "Controllers",
        (POOLS,),
        part="Pools",
        before="Only the leader exports these; the dashboard draws its charts from these and from the slices above.",
    ),
    MetricSection(
        "Controllers",
        (ROUTES,),
        part="Routes",
        before="Only the leader exports these. With them the recording rules below count requests of priced routes as demand of "
        "the Inferences that did not get them; a pipeline's request counts for each Inference that it needs.",
    ),
    MetricSection("Controllers", (QUEUES,), part="Reconciles"),
    MetricSection(
        "Controllers",
        (ALLOCATOR,),
        part="Allocator",
        after="Only the leader exports the gauges of the allocator.",
    ),
    MetricSection(
        "Controllers",
        (SHARING,),
        part="GPU sharing",
        before="Nodes that share GPUs under MPS; `kind` is a [fault](../explanation/mps-health.md).",
    ),
    MetricSection(
        "xDS servers",
        (*_OPERATOR_CATALOGS, XDS, ISSUERS),
        after="`type` is `cluster`, `endpoint`, `listener`, `route` or `secret`. "
        "Issuers are [fetched for their keys](../how-to/secure-a-model.md).",
    ),
    MetricSection("Web", (*_OPERATOR_CATALOGS, WEB)),
    MetricSection(
        "Gateways",
        ((REJECTED_REQUESTS,),),
        before="Envoy exports it with its own metrics, on port 9902 under `/stats/prometheus`.",
        after="The route begins with `access/<namespace>/<name>/`. `why` is `via_upstream` if the model itself rejected the "
        "request, `denied_by_admission_control` if admission control did, and `direct_response` if no target had a ready "
        "pod, or, if the last part of the route begins with `refused-`, if the request exceeded the "
        "[admitted share](../how-to/protect-a-model.md#refuse-no-more-than-needed) of its route; the Envoy cluster is the one that would have answered.",
    ),
    MetricSection("Node agents", (exported.NODE,)),
    MetricSection("Agents", (exported.AGENT,), part="Model"),
    MetricSection(
        "Agents",
        (exported.SAMPLE_LOG,),
        part="Sample log",
        after="Why samples are [not in the log](samples.md#what-can-be-missing).",
    ),
    MetricSection(
        "Agents",
        (exported.NEARLINE,),
        part="Near-line stream",
        after="Why messages go to the [dead letters](../how-to/serve-a-stream.md#dead-letters).",
    ),
    MetricSection(
        "Agents",
        (exported.EVENTS,),
        part="Event streams",
        before="Of the pods of a FeatureCompute that reads streams, for each source.",
        after="Why events are [refused](../how-to/live-features.md#refused-events), and how they become "
        "[dead letters](../how-to/live-features.md#dead-letters); only streams that have some have these two series.",
    ),
    MetricSection(
        "Agents",
        (exported.TABLE,),
        part="Tables",
        before="Of the pods of a FeatureCompute that [refreshes tables](../how-to/refresh-tables.md), for each source.",
    ),
    MetricSection(
        "Batch",
        (exported.BATCH,),
        before="On port 8083 of a Job's pods, while the shard runs.",
    ),
    MetricSection(
        "ONNX runner",
        (exported.RUNNER,),
        before="On the metrics port of Tritons that run ONNX models by Tidegate's runner, with the first answer after a second.",
        after="What is joined and why: [batch requests](../how-to/batch-requests.md).",
    ),
    MetricSection(
        "Feature stores",
        (exported.FEATURE_STORE,),
        before="On the metrics port of the Tritons of a FeatureCompute with [a Redis](../how-to/live-features.md#share-one-store).",
        after="Keys of `last-known` and `default` are in answers whose output `tidegate_not_current` names the stream.",
    ),
    MetricSection(
        "Pipelines",
        (exported.PIPELINE,),
        before="On the metrics port of a pipeline's Tritons.",
        after="A part has the name of its output (`as`); the lookup of features is `features`.",
    ),
)

_HEAD: Final = """# Metrics

Every process answers `GET /metrics` on its probe port, 8081.
Processes of the operator image also export the standard `process_…` metrics, such as memory and CPU.
Names of objects are in the labels `namespace` and `name`: a Prometheus that adds labels with these names to its targets needs `honor_labels: true`, or it renames ours.
The alerts are in the [runbooks](../runbooks/README.md), and [the how-to](../how-to/alert-on-models-and-platform.md) shows how Prometheus records and alerts.
"""
_RECORDED: Final = """
## Recorded by Prometheus

With `metrics.rules.enabled` the chart creates these rules for Prometheus Operator; [files/prometheus-rules.yaml](../../charts/tidegate/files/prometheus-rules.yaml) has them for any other Prometheus.
Prometheus must scrape the gateways, the controllers, and the models' pods with the labels `namespace` and `pod`.

"""
_TAIL: Final = """
The controllers query the same signals themselves ([ADR 29](../adr/0029-signals-are-held-and-never-guessed-to-be-zero.md)), so they need no rules.

## Metrics of Envoy and Triton

Requests, errors and latencies are metrics of Envoy (`envoy_cluster_…`) and of Triton (`nv_inference_…`).
Triton's duration counters are cumulative and restart when a model is loaded again: take percentiles from Envoy's histograms.
"""


def render_metrics_page() -> str:
    """Render docs/reference/metrics.md, with a heading per process and per part of it."""
    text, process = render_notice("where each metric is defined") + _HEAD, ""
    for section in METRIC_SECTIONS:
        if section.process != process:
            process = section.process
            text += f"\n## {process}\n"
        text += _render_section(section)
    rows = (
        (format_code(rule.name), _format_labels(rule.labels), rule.description)
        for group in GROUPS
        for rule in group.rules
    )
    return text + _RECORDED + render_table(("series", "labels", "what"), rows) + _TAIL


def _render_section(section: MetricSection) -> str:
    heading = f"\n### {section.part}\n" if section.part else ""
    before = f"\n{section.before}\n" if section.before else ""
    after = f"\n{section.after}\n" if section.after else ""
    rows = (
        (format_code(metric.name), metric.TYPE, _format_labels(metric.labels), metric.help_text)
        for metric in section.metrics
    )
    return f"{heading}{before}\n{render_table(('metric', 'type', 'labels', 'what'), rows)}{after}"


def _format_labels(labels: Iterable[str]) -> str:
    return ", ".join(map(format_code, labels))
