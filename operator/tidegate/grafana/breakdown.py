"""The dashboard of one model: where the time of a request goes, from the gateway to Triton and back."""

from __future__ import annotations

from typing import Final

from tidegate.grafana.panels import Dashboard, Panel, PanelKind, PanelQuery, PanelRow, PanelUnit
from tidegate.grafana.promql import (
    INFERENCE,
    NAMESPACE,
    RATE,
    SELECTED_CLUSTERS,
    counter_rate,
    gateway_rate,
    latency_seconds,
    or_zero,
    pod_busy_share,
    pod_series,
)

_INFERENCE_LEGEND: Final = "{{namespace}}/{{inference}}"
_MODEL_LEGEND: Final = "{{model}} {{version}}"
_REQUESTS: Final = (
    f"(sum by (model, version) ({counter_rate(pod_series('nv_inference_request_success'))}) > 0)"
)


def _mean_seconds(part: str) -> str:
    """Return the mean seconds of a part of a request, by model and version; Triton counts microseconds."""
    return f"sum by (model, version) ({counter_rate(pod_series(f'nv_inference_{part}_duration_us'))}) / 1e6 / {_REQUESTS}"


def _counter_queries(*metrics: str) -> tuple[PanelQuery, ...]:
    return tuple(
        PanelQuery(
            f"sum by (namespace, inference) ({gateway_rate(metric)})",
            f"{_INFERENCE_LEGEND} {metric.removeprefix('upstream_')}",
        )
        for metric in metrics
    )


BREAKDOWN: Final = Dashboard(
    uid="tidegate-breakdown",
    title="Tidegate / Model latency breakdown",
    description="Where the time of a request goes: gateway, Triton's queue, model.",
    variables=(NAMESPACE, INFERENCE),
    rows=(
        PanelRow(
            "At the gateways",
            (
                Panel(
                    title="Latency",
                    description="From the gateway to the pod and back; p50 and p99. A retry counts as another request.",
                    queries=(
                        PanelQuery(latency_seconds(0.5), f"{_INFERENCE_LEGEND} p50"),
                        PanelQuery(latency_seconds(0.99), f"{_INFERENCE_LEGEND} p99"),
                    ),
                    unit=PanelUnit.SECONDS,
                ),
                Panel(
                    title="Latency distribution",
                    description="Requests by latency. Two peaks mean two kinds of requests, or two kinds of pods.",
                    queries=(
                        PanelQuery(f"sum by (le) ({gateway_rate('upstream_rq_time_bucket')})", "{{le}}"),
                    ),
                    unit=PanelUnit.MILLISECONDS,
                    kind=PanelKind.HEATMAP,
                ),
                Panel(
                    title="Responses by class",
                    description="4xx: the model or a rule rejects the request. 5xx: it fails. gRPC errors with HTTP status 200 are counted only on released routes.",
                    queries=(
                        PanelQuery(
                            f"sum by (namespace, inference, envoy_response_code_class) ({gateway_rate('upstream_rq_xx')})",
                            f"{_INFERENCE_LEGEND} {{{{envoy_response_code_class}}}}xx",
                        ),
                    ),
                    unit=PanelUnit.REQUESTS_PER_SECOND,
                ),
                Panel(
                    title="Retries and timeouts",
                    description="Each retry is a request that a pod did not answer.",
                    queries=_counter_queries(
                        "upstream_rq_retry", "upstream_rq_timeout", "upstream_rq_cancelled"
                    ),
                    unit=PanelUnit.REQUESTS_PER_SECOND,
                ),
                Panel(
                    title="Rejected by limits",
                    description="Requests beyond maxConcurrent or maxPending, and requests without a healthy pod.",
                    queries=_counter_queries(
                        "upstream_rq_pending_overflow",
                        "upstream_rq_active_overflow",
                        "upstream_cx_none_healthy",
                    ),
                    unit=PanelUnit.REQUESTS_PER_SECOND,
                ),
                Panel(
                    title="Requests in flight",
                    description="Requests that pods have not answered yet.",
                    queries=(
                        PanelQuery(
                            f"sum by (envoy_cluster_name) (envoy_cluster_upstream_rq_active{{{SELECTED_CLUSTERS}}})",
                            "{{envoy_cluster_name}}",
                        ),
                    ),
                ),
            ),
        ),
        PanelRow(
            "In Triton",
            (
                Panel(
                    title="Where the time goes",
                    description="Mean time of a request, stacked: queue, copying inputs, computing, copying outputs. If the queue grows while the model is busy, add replicas; if the model is idle, shorten maxQueueDelay.",
                    queries=tuple(
                        PanelQuery(_mean_seconds(part), f"{_MODEL_LEGEND} {part.replace('_', ' ')}")
                        for part in ("queue", "compute_input", "compute_infer", "compute_output")
                    ),
                    unit=PanelUnit.SECONDS,
                    stacked=True,
                    width=12,
                ),
                Panel(
                    title="Batch size",
                    description="Mean number of rows in an execution. 1 if batching is Disabled and clients send single rows.",
                    queries=(
                        PanelQuery(
                            f"sum by (model, version) ({counter_rate(pod_series('nv_inference_count'))})"
                            f" / (sum by (model, version) ({counter_rate(pod_series('nv_inference_exec_count'))}) > 0)",
                            _MODEL_LEGEND,
                        ),
                    ),
                    width=6,
                ),
                Panel(
                    title="Requests that share executions",
                    description="Requests answered by an execution that they shared, with batching.mode Adaptive or Fixed: of the same shape (rows), or padded to one (padding).",
                    queries=(
                        PanelQuery(
                            f"sum by (model, version, way) ({counter_rate(pod_series('tidegate_model_joined_requests_total'))})",
                            f"{_MODEL_LEGEND} {{{{way}}}}",
                        ),
                    ),
                    unit=PanelUnit.REQUESTS_PER_SECOND,
                    width=6,
                ),
                Panel(
                    title="Requests with one row of shared inputs",
                    description="Requests of several rows for which a compiled graph took one row of spec.model.sharedInputs: sent so by the client (sent), or with rows that were found equal (equal).",
                    queries=(
                        PanelQuery(
                            f"sum by (model, version, way) ({counter_rate(pod_series('tidegate_model_shared_requests_total'))})",
                            f"{_MODEL_LEGEND} {{{{way}}}}",
                        ),
                    ),
                    unit=PanelUnit.REQUESTS_PER_SECOND,
                    width=6,
                ),
                Panel(
                    title="Executions by bucket",
                    description="Executions with spec.compile.engine: by the engine of a bucket (hit), without a bucket (miss), or by ONNX Runtime although there is one (original), on trial or because that is faster.",
                    queries=(
                        PanelQuery(
                            f"sum by (model, version, way) ({counter_rate(pod_series('tidegate_model_bucket_requests_total'))})",
                            f"{_MODEL_LEGEND} {{{{way}}}}",
                        ),
                    ),
                    unit=PanelUnit.REQUESTS_PER_SECOND,
                    width=6,
                ),
                Panel(
                    title="Rows added to fill buckets",
                    description="Rows that were computed for nothing, because a request has fewer than its bucket. List other spec.compile.buckets.rows if they are many.",
                    queries=(
                        PanelQuery(
                            f"sum by (model, version) ({counter_rate(pod_series('tidegate_model_bucket_padding_rows_total'))})",
                            _MODEL_LEGEND,
                        ),
                    ),
                    width=6,
                ),
                Panel(
                    title="Requests in Triton's queues",
                    description="Requests that wait for an execution.",
                    queries=(
                        PanelQuery(
                            f"sum by (model, version) ({pod_series('nv_inference_pending_request_count')})",
                            _MODEL_LEGEND,
                        ),
                    ),
                    width=6,
                ),
                Panel(
                    title="Requests by version",
                    description="Requests by the version that answers. During a swap, one line replaces the other.",
                    queries=(
                        PanelQuery(
                            f"sum by (model, version) ({counter_rate(pod_series('nv_inference_request_success'))})",
                            _MODEL_LEGEND,
                        ),
                    ),
                    unit=PanelUnit.REQUESTS_PER_SECOND,
                    stacked=True,
                ),
                Panel(
                    title="Failures",
                    description="Requests that Triton failed to answer, by Triton's reason.",
                    queries=(
                        PanelQuery(
                            f"sum by (model, version, reason) ({counter_rate(pod_series('nv_inference_request_failure'))})",
                            f"{_MODEL_LEGEND} {{{{reason}}}}",
                        ),
                    ),
                    unit=PanelUnit.REQUESTS_PER_SECOND,
                ),
                Panel(
                    title="Busy time by pod",
                    description="Share of the time in which a pod computes. Near 1, the pod is at its capacity.",
                    queries=(
                        PanelQuery(
                            pod_busy_share(),
                            "{{pod}}",
                        ),
                    ),
                    unit=PanelUnit.SHARE,
                    maximum=1,
                ),
            ),
        ),
        PanelRow(
            "In a pipeline",
            (
                Panel(
                    title="Requests by part and outcome",
                    description="Requests of ModelAccesses with a pipeline: for the feature lookup and each model, the outcome.",
                    queries=(
                        PanelQuery(
                            or_zero(
                                f'sum by (model, part, outcome) (rate(tidegate_pipeline_requests_total{{namespace=~"$namespace"}}[{RATE}]))'
                            ),
                            "{{model}} {{part}} {{outcome}}",
                        ),
                    ),
                    unit=PanelUnit.REQUESTS_PER_SECOND,
                    width=12,
                ),
                Panel(
                    title="Rows per call of a part",
                    description="Rows that one call carries for all requests of a batch.",
                    queries=(
                        PanelQuery(
                            or_zero(
                                f'sum by (model, part) (rate(tidegate_pipeline_call_rows_total{{namespace=~"$namespace"}}[{RATE}]))'
                                f' / (sum by (model, part) (rate(tidegate_pipeline_calls_total{{namespace=~"$namespace"}}[{RATE}])) > 0)'
                            ),
                            "{{model}} {{part}}",
                        ),
                    ),
                    width=12,
                ),
            ),
        ),
    ),
)
