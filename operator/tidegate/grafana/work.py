"""The dashboard of near-line streams, events and tables of features, batches and sample logs: their progress and their losses."""

from __future__ import annotations

from typing import Final

from tidegate.grafana.panels import Dashboard, Panel, PanelQuery, PanelRow, PanelUnit
from tidegate.grafana.promql import (
    INFERENCE,
    NAMESPACE,
    RATE,
    counter_rate,
    features_pod_series,
    or_zero,
    pod_series,
    shard_series,
)
from tidegate.telemetry.scope import INFERENCE_PODS

_POD_LEGEND: Final = "{{pod}}"
_FEATURES_POD_PATTERN: Final = "fc-(.+)-[^-]+-[^-]+"


def _aggregate_by_inference(aggregation: str, series: str) -> str:
    """Return the aggregation over the pods of each Inference's Deployment."""
    return f'{aggregation} by (namespace, inference) (label_replace({series}, "inference", "$1", "pod", "{INFERENCE_PODS}"))'


def _counter_rate(metric: str) -> str:
    return _aggregate_by_inference("sum", counter_rate(pod_series(metric)))


def _aggregate_by_features(aggregation: str, series: str, *labels: str) -> str:
    """Return the aggregation over the pods of each FeatureCompute's Deployment."""
    grouped = ", ".join(("namespace", "features", *labels))
    return f'{aggregation} by ({grouped}) (label_replace({series}, "features", "$1", "pod", "{_FEATURES_POD_PATTERN}"))'


def _aggregate_by_source(aggregation: str, series: str, *labels: str) -> str:
    """Return the aggregation over the pods of each FeatureCompute's Deployment, for each source."""
    return _aggregate_by_features(aggregation, series, "source", *labels)


_FEATURES_LEGEND: Final = "{{namespace}}/{{features}}"
_SOURCE_LEGEND: Final = "{{namespace}}/{{features}} {{source}}"
_INFERENCE_LEGEND: Final = "{{namespace}}/{{inference}}"

WORK: Final = Dashboard(
    uid="tidegate-work",
    title="Tidegate / Near-line and offline",
    description="Progress and rate of streams, events and batches, the age of tables, and what became a dead letter or was refused.",
    variables=(NAMESPACE, INFERENCE),
    rows=(
        PanelRow(
            "Streams",
            (
                Panel(
                    title="Backlog",
                    description="Messages that no pod has taken yet: the demand for which the allocator assigns slices to near-line Inferences.",
                    queries=(
                        PanelQuery(
                            _aggregate_by_inference("max", pod_series("tidegate_agent_nearline_backlog")),
                            _INFERENCE_LEGEND,
                        ),
                    ),
                ),
                Panel(
                    title="Results",
                    description="Results written per second.",
                    queries=(
                        PanelQuery(_counter_rate("tidegate_agent_nearline_results_total"), _INFERENCE_LEGEND),
                    ),
                    unit=PanelUnit.PER_SECOND,
                ),
                Panel(
                    title="Late, redelivered and returned",
                    description="Results after their deadline, messages that the broker delivered again, and messages that pods returned.",
                    queries=tuple(
                        PanelQuery(
                            _counter_rate(f"tidegate_agent_nearline_{counter}_total"),
                            f"{_INFERENCE_LEGEND} {counter}",
                        )
                        for counter in ("late", "redelivered", "returned")
                    ),
                    unit=PanelUnit.PER_SECOND,
                ),
                Panel(
                    title="In flight",
                    description="Messages that a pod is processing, at most maxInFlight per pod.",
                    queries=(
                        PanelQuery(
                            f"sum by (namespace, pod) ({pod_series('tidegate_agent_nearline_in_flight')})",
                            _POD_LEGEND,
                        ),
                    ),
                ),
                Panel(
                    title="Busy time by pod",
                    description="Share of the time in which a pod waits for its model. If it is near 1 and there is a backlog, add replicas.",
                    queries=(
                        PanelQuery(
                            f"sum by (namespace, pod) ({counter_rate(pod_series('tidegate_agent_nearline_busy_seconds_total'))})",
                            _POD_LEGEND,
                        ),
                    ),
                    unit=PanelUnit.SHARE,
                    maximum=1,
                ),
                Panel(
                    title="Dead letters",
                    description="Messages that could not be answered, by reason. There is an alert on them.",
                    queries=(
                        PanelQuery(
                            or_zero(
                                f"sum by (namespace, reason) (increase({pod_series('tidegate_agent_nearline_dead_letters_total')}[{RATE}]))"
                            ),
                            "{{namespace}} {{reason}}",
                        ),
                    ),
                ),
            ),
        ),
        PanelRow(
            "Events of FeatureComputes",
            (
                Panel(
                    title="Event lag",
                    description="How long ago the slowest pod had all events of the stream. There is an alert on pods that serve and lag more than 5 minutes; a pod that starts reads its streams first.",
                    queries=(
                        PanelQuery(
                            _aggregate_by_source(
                                "max", features_pod_series("tidegate_agent_events_lag_seconds")
                            ),
                            _SOURCE_LEGEND,
                        ),
                    ),
                    unit=PanelUnit.SECONDS,
                ),
                Panel(
                    title="Events pending",
                    description="Messages that the slowest pod has not read. If this grows while events are stored, the stream brings more than a pod can store.",
                    queries=(
                        PanelQuery(
                            _aggregate_by_source("max", features_pod_series("tidegate_agent_events_pending")),
                            _SOURCE_LEGEND,
                        ),
                    ),
                ),
                Panel(
                    title="Events stored and refused",
                    description="Events per second that a pod stores, on average over the pods, and those that it refuses, by reason. There is an alert on refused events.",
                    queries=(
                        PanelQuery(
                            _aggregate_by_source(
                                "avg", counter_rate(features_pod_series("tidegate_agent_events_stored_total"))
                            ),
                            f"{_SOURCE_LEGEND} stored",
                        ),
                        PanelQuery(
                            _aggregate_by_source(
                                "avg",
                                counter_rate(features_pod_series("tidegate_agent_events_refused_total")),
                                "reason",
                            ),
                            f"{_SOURCE_LEGEND} {{{{reason}}}}",
                        ),
                    ),
                    unit=PanelUnit.PER_SECOND,
                ),
                Panel(
                    title="Dead letters of events",
                    description="Refused events that were written to the dead letters, and those that their subject or topic did not take. There is an alert on the latter.",
                    queries=tuple(
                        PanelQuery(
                            or_zero(
                                _aggregate_by_source(
                                    "sum",
                                    f"increase({features_pod_series(f'tidegate_agent_events_{counter}_total')}[{RATE}])",
                                )
                            ),
                            f"{_SOURCE_LEGEND} {legend}",
                        )
                        for counter, legend in (
                            ("dead_letters", "written"),
                            ("dead_letters_failed", "not taken"),
                        )
                    ),
                ),
                Panel(
                    title="Keys read from a Redis",
                    description="Keys per second whose events were read, by origin. Answers for keys of last-known and default may lack the newest events: there is an alert on them.",
                    queries=(
                        PanelQuery(
                            _aggregate_by_features(
                                "sum",
                                counter_rate(features_pod_series("tidegate_feature_store_keys_total")),
                                "origin",
                            ),
                            f"{_FEATURES_LEGEND} {{{{origin}}}}",
                        ),
                    ),
                    unit=PanelUnit.PER_SECOND,
                ),
                Panel(
                    title="Failed reads of a Redis",
                    description="Reads per second that failed or took longer than timeout. After each, the process does not ask Redis for 0.25 s.",
                    queries=(
                        PanelQuery(
                            _aggregate_by_features(
                                "sum",
                                counter_rate(features_pod_series("tidegate_feature_store_failures_total")),
                            ),
                            _FEATURES_LEGEND,
                        ),
                    ),
                    unit=PanelUnit.PER_SECOND,
                ),
            ),
        ),
        PanelRow(
            "Tables of FeatureComputes",
            (
                Panel(
                    title="Age of tables",
                    description="How long ago the pod with the oldest table fetched it, for tables with refresh. It grows as long as the source's file does not change.",
                    queries=(
                        PanelQuery(
                            "time() - "
                            + _aggregate_by_source(
                                "min", features_pod_series("tidegate_agent_table_loaded_timestamp_seconds")
                            ),
                            _SOURCE_LEGEND,
                        ),
                    ),
                    unit=PanelUnit.SECONDS,
                    width=12,
                ),
                Panel(
                    title="Tables refused",
                    description="Checks of the pods that did not lead to the newest table, by reason. There is an alert on a pod that does not take a table for 30 minutes.",
                    queries=(
                        PanelQuery(
                            _aggregate_by_source(
                                "sum",
                                f"increase({features_pod_series('tidegate_agent_table_refusals_total')}[{RATE}])",
                                "reason",
                            ),
                            f"{_SOURCE_LEGEND} {{{{reason}}}}",
                        ),
                    ),
                    width=12,
                ),
            ),
        ),
        PanelRow(
            "Batches and backfills",
            (
                Panel(
                    title="Rows left",
                    description="Of the shards that pods work on, without pending shards.",
                    queries=(
                        PanelQuery(
                            f"sum by (namespace, pod) ({shard_series('tidegate_batch_rows_left')})",
                            _POD_LEGEND,
                        ),
                    ),
                    stacked=True,
                ),
                Panel(
                    title="Rows processed",
                    description="Rows per second that were scored, or got their features, and were written.",
                    queries=(
                        PanelQuery(
                            f"sum by (namespace, pod) ({counter_rate(shard_series('tidegate_batch_rows_total'))})",
                            _POD_LEGEND,
                        ),
                    ),
                    unit=PanelUnit.ROWS_PER_SECOND,
                    stacked=True,
                ),
                Panel(
                    title="Rejected rows and retries",
                    description="Rows that the model rejects or that have a null, and retries after a failure of the store or the server.",
                    queries=(
                        PanelQuery(
                            f"sum by (namespace, pod) ({counter_rate(shard_series('tidegate_batch_rows_refused_total'))})",
                            f"{_POD_LEGEND} rejected",
                        ),
                        PanelQuery(
                            f"sum by (namespace, pod) ({counter_rate(shard_series('tidegate_batch_retries_total'))})",
                            f"{_POD_LEGEND} retries",
                        ),
                    ),
                    unit=PanelUnit.PER_SECOND,
                ),
                Panel(
                    title="Progress of a shard",
                    description="By pod, including rows that an earlier pod wrote.",
                    queries=(
                        PanelQuery(
                            f"1 - {shard_series('tidegate_batch_rows_left')} / ({shard_series('tidegate_batch_shard_rows')} > 0)",
                            _POD_LEGEND,
                        ),
                    ),
                    unit=PanelUnit.SHARE,
                    maximum=1,
                    width=12,
                ),
                Panel(
                    title="Requests of batches",
                    description="Requests to the model in the same pod, without retries.",
                    queries=(
                        PanelQuery(
                            f"sum by (namespace, pod) ({counter_rate(pod_series('tidegate_batch_requests_total'))})",
                            _POD_LEGEND,
                        ),
                    ),
                    unit=PanelUnit.REQUESTS_PER_SECOND,
                    width=12,
                ),
            ),
        ),
        PanelRow(
            "Sample logs",
            (
                Panel(
                    title="Samples",
                    description="Samples taken, and samples confirmed by the sink.",
                    queries=(
                        PanelQuery(
                            _counter_rate("tidegate_agent_samples_total"), f"{_INFERENCE_LEGEND} taken"
                        ),
                        PanelQuery(
                            _counter_rate("tidegate_agent_samples_written_total"),
                            f"{_INFERENCE_LEGEND} written",
                        ),
                    ),
                    unit=PanelUnit.PER_SECOND,
                ),
                Panel(
                    title="Samples waiting",
                    description="Memory of the samples that wait for the sink; beyond its bound, samples are dropped.",
                    queries=(
                        PanelQuery(
                            f"sum by (namespace, pod) ({pod_series('tidegate_agent_samples_held_bytes')})",
                            _POD_LEGEND,
                        ),
                    ),
                    unit=PanelUnit.BYTES,
                ),
                Panel(
                    title="Samples dropped",
                    description="By reason; docs/reference/samples.md explains what can be missing.",
                    queries=(
                        PanelQuery(
                            or_zero(
                                f"sum by (namespace, reason) (increase({pod_series('tidegate_agent_samples_dropped_total')}[{RATE}]))"
                            ),
                            "{{namespace}} {{reason}}",
                        ),
                    ),
                ),
            ),
        ),
    ),
)
