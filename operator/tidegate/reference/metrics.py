"""docs/reference/metrics.md: every metric of every process, from where it is defined, and what else is to be said of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tidegate.reference.markdown import code, notice, table
from tidegate.runtime.event_loop import EVENT_LOOP
from tidegate.runtime.process_metrics import CACHES, LEADING, PROCESS, WRITES
from tidegate.runtime.queue_metrics import QUEUES
from tidegate.telemetry.recorded import GROUPS
from tidegate.telemetry.span_metrics import SPANS
from tidegate.web.metrics import WEB
from tidegate.xds.issuers import ISSUERS
from tidegate.xds.metrics import XDS
from tidegate_controllers.allocator_metrics import ALLOCATOR
from tidegate_controllers.object_metrics import OBJECTS
from tidegate_controllers.pool_metrics import POOLS
from tidegate_controllers.sharing_metrics import SHARING
from tidegate_dataplane.contract import exported
from tidegate_dataplane.contract.metrics import Catalog, CounterMetric, Metric


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page: what shows these metrics, and what to know of them. `process` is the heading that it stands below."""

    process: str
    catalogs: tuple[Iterable[Metric], ...]
    before: str = ""
    after: str = ""
    part: str = ""

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """In the order in which they are defined."""
        return tuple(metric for catalog in self.catalogs for metric in catalog)


REFUSED: Final = CounterMetric(
    "envoy_tidegate_refused",
    "Calls that were answered 401 or 403 (gRPC: UNAUTHENTICATED, PERMISSION_DENIED), that admission control refused, or "
    "for which no target had a pod.",
    ("route", "why", "envoy_cluster_name"),
)
_OF_OPERATOR: Final[tuple[Catalog, ...]] = (PROCESS, WRITES, CACHES, EVENT_LOOP, SPANS)

SECTIONS: Final = (
    Section("Controllers", (*_OF_OPERATOR, LEADING), part="Process"),
    Section(
        "Controllers",
        (OBJECTS,),
        part="Objects",
        before="What every object says of itself; from the leader alone, so that nothing counts twice.",
        after="`tidegate_inference_slo_bucket_share` lets one rule serve every objective: the sum of the gateways' cumulative "
        "buckets, each times its share, is the number of requests that were answered within it.",
    ),
    Section(
        "Controllers",
        (POOLS,),
        part="Pools",
        before="From the leader alone; the dashboard draws its charts from these and from the slices above.",
    ),
    Section("Controllers", (QUEUES,), part="Reconciles"),
    Section(
        "Controllers",
        (ALLOCATOR,),
        part="Allocator",
        after="Gauges of the allocator are of the leader alone.",
    ),
    Section(
        "Controllers",
        (SHARING,),
        part="GPU sharing",
        before="Of nodes that share GPUs under MPS; `kind` is a [fault](../explanation/mps-health.md).",
    ),
    Section(
        "xDS servers",
        (*_OF_OPERATOR, XDS, ISSUERS),
        after="`type` is `cluster`, `endpoint`, `listener`, `route` or `secret`. "
        "Of issuers, [what they are asked for](../how-to/secure-a-model.md).",
    ),
    Section("Web", (*_OF_OPERATOR, WEB)),
    Section(
        "Gateways",
        ((REFUSED,),),
        before="Envoy shows it among its own, on port 9902 below `/stats/prometheus`.",
        after="The route begins with `access/<namespace>/<name>/`. `why` is `via_upstream` where the model itself refused, "
        "`denied_by_admission_control` where admission control did, and `direct_response` where no target had a pod; the "
        "Envoy cluster is the one that would have answered.",
    ),
    Section("Node agents", (exported.NODE,)),
    Section("Agents", (exported.AGENT,), part="Model"),
    Section(
        "Agents",
        (exported.SAMPLE_LOG,),
        part="Sample log",
        after="Why samples are [not in the log](samples.md#what-can-be-missing).",
    ),
    Section(
        "Agents",
        (exported.NEARLINE,),
        part="Near-line stream",
        after="Why messages go to the [dead letters](../how-to/serve-a-stream.md#dead-letters).",
    ),
    Section(
        "Batch",
        (exported.BATCH,),
        before="On port 8083 of a Job's pods, while the process of the shard runs.",
    ),
    Section(
        "Pipelines",
        (exported.PIPELINE,),
        before="On the metrics port of a pipeline's Tritons.",
        after="A part is named as its answer is (`as`), and the lookup of features is `features`.",
    ),
)

_HEAD: Final = """# Metrics

Every process answers `GET /metrics` on its probe port, 8081.
Those of the operator image say of themselves what every process can (`process_…`), memory and CPU among it.
Names of objects are in the labels `namespace` and `name`: a Prometheus that gives its targets labels of that name has to be told `honor_labels: true`, or it renames ours.
What to be woken by is in the [runbooks](../runbooks/README.md), and how to have Prometheus record and alert in [the how-to](../how-to/alert-on-models-and-platform.md).
"""
_RECORDED: Final = """
## Recorded by Prometheus

Rules that the chart gives to Prometheus Operator with `metrics.rules.enabled`; [files/prometheus-rules.yaml](../../charts/tidegate/files/prometheus-rules.yaml) has them for any other Prometheus.
It has to scrape the gateways, and the models' pods with the labels `namespace` and `pod`.

"""
_TAIL: Final = """
The controllers ask for the same signals themselves ([ADR 29](../adr/0029-signals-are-held-and-never-guessed-to-be-zero.md)), so they need no rules.

## What is not ours

Requests, errors and latencies are Envoy's own (`envoy_cluster_…`) and Triton's (`nv_inference_…`).
Triton's duration counters are cumulative and start again when a model is loaded again: take percentiles from Envoy's histograms.
"""


def metrics_page() -> str:
    """The page; a process that has several parts has a heading for each."""
    text, process = notice("where each metric is defined") + _HEAD, ""
    for section in SECTIONS:
        if section.process != process:
            process = section.process
            text += f"\n## {process}\n"
        text += _section(section)
    rows = ((code(rule.name), _labels(rule.labels), rule.text) for group in GROUPS for rule in group.rules)
    return text + _RECORDED + table(("series", "labels", "what"), rows) + _TAIL


def _section(section: Section) -> str:
    heading = f"\n### {section.part}\n" if section.part else ""
    before = f"\n{section.before}\n" if section.before else ""
    after = f"\n{section.after}\n" if section.after else ""
    rows = ((code(each.name), each.TYPE, _labels(each.labels), each.text) for each in section.metrics)
    return f"{heading}{before}\n{table(('metric', 'type', 'labels', 'what'), rows)}{after}"


def _labels(labels: Iterable[str]) -> str:
    return ", ".join(map(code, labels))
