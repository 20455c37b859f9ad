"""One model: where the time of a request goes, from the gateway to the tensor and back."""

from __future__ import annotations

from typing import Final

from tidegate.grafana.panels import Dashboard, Kind, Panel, Query, Row, Unit
from tidegate.grafana.selecting import (
    CHOSEN_INFERENCES,
    INFERENCE,
    NAMESPACE,
    RATE,
    busy_pods,
    latency,
    of_gateways,
    of_pods,
    or_none,
    rate,
)

_WHOSE: Final = "{{namespace}}/{{inference}}"
_MODEL: Final = "{{model}} {{version}}"
_REQUESTS: Final = f"(sum by (model, version) ({rate(of_pods('nv_inference_request_success'))}) > 0)"


def _times(part: str) -> str:
    """Mean seconds of a part, by model and version; Triton counts microseconds."""
    return (
        f"sum by (model, version) ({rate(of_pods(f'nv_inference_{part}_duration_us'))}) / 1e6 / {_REQUESTS}"
    )


def _counted(*metrics: str) -> tuple[Query, ...]:
    return tuple(
        Query(
            f"sum by (namespace, inference) ({of_gateways(metric)})",
            f"{_WHOSE} {metric.removeprefix('upstream_')}",
        )
        for metric in metrics
    )


BREAKDOWN: Final = Dashboard(
    uid="tidegate-breakdown",
    title="Tidegate / Model latency breakdown",
    description="Where the time of a request goes: the gateway, the queue of Triton, and the model.",
    variables=(NAMESPACE, INFERENCE),
    rows=(
        Row(
            "At the gateways",
            (
                Panel(
                    title="Latency",
                    description="From the gateway to the pod and back; p50 and p99. Retries are other requests here.",
                    queries=(
                        Query(latency(0.5), f"{_WHOSE} p50"),
                        Query(latency(0.99), f"{_WHOSE} p99"),
                    ),
                    unit=Unit.SECONDS,
                ),
                Panel(
                    title="Latency, all of it",
                    description="How many requests took how long: two humps are two kinds of requests or two kinds of pods.",
                    queries=(Query(f"sum by (le) ({of_gateways('upstream_rq_time_bucket')})", "{{le}}"),),
                    unit=Unit.MILLISECONDS,
                    kind=Kind.HEATMAP,
                ),
                Panel(
                    title="Answers by class",
                    description="4xx is what the model or a rule refuses, 5xx what fails. A gRPC failure behind a 200 is counted for released routes alone.",
                    queries=(
                        Query(
                            f"sum by (namespace, inference, envoy_response_code_class) ({of_gateways('upstream_rq_xx')})",
                            f"{_WHOSE} {{{{envoy_response_code_class}}}}xx",
                        ),
                    ),
                    unit=Unit.REQUESTS_PER_SECOND,
                ),
                Panel(
                    title="Retries and timeouts",
                    description="What protection and patience cost: each retry is a request that a pod did not answer.",
                    queries=_counted("upstream_rq_retry", "upstream_rq_timeout", "upstream_rq_cancelled"),
                    unit=Unit.REQUESTS_PER_SECOND,
                ),
                Panel(
                    title="Over a limit",
                    description="Requests that maxConcurrent or maxPending refused, and those for which no pod was healthy.",
                    queries=_counted(
                        "upstream_rq_pending_overflow",
                        "upstream_rq_active_overflow",
                        "upstream_cx_none_healthy",
                    ),
                    unit=Unit.REQUESTS_PER_SECOND,
                ),
                Panel(
                    title="Under way",
                    description="Requests that pods have and have not answered.",
                    queries=(
                        Query(
                            f"sum by (envoy_cluster_name) (envoy_cluster_upstream_rq_active{{{CHOSEN_INFERENCES}}})",
                            "{{envoy_cluster_name}}",
                        ),
                    ),
                ),
            ),
        ),
        Row(
            "In Triton",
            (
                Panel(
                    title="Where the time goes",
                    description="Mean of a request, stacked: waiting in the queue, copying inputs, computing, copying outputs. A queue that grows beside a busy model needs replicas; beside an idle one, a shorter maxQueueDelay.",
                    queries=tuple(
                        Query(_times(part), f"{_MODEL} {part.replace('_', ' ')}")
                        for part in ("queue", "compute_input", "compute_infer", "compute_output")
                    ),
                    unit=Unit.SECONDS,
                    stacked=True,
                    width=12,
                ),
                Panel(
                    title="Rows in an execution",
                    description="Mean size of a batch: what batching gathers. 1 where it is Disabled and clients send single rows.",
                    queries=(
                        Query(
                            f"sum by (model, version) ({rate(of_pods('nv_inference_count'))})"
                            f" / (sum by (model, version) ({rate(of_pods('nv_inference_exec_count'))}) > 0)",
                            _MODEL,
                        ),
                    ),
                    width=6,
                ),
                Panel(
                    title="Waiting in Triton",
                    description="Requests in its queues at this moment.",
                    queries=(
                        Query(
                            f"sum by (model, version) ({of_pods('nv_inference_pending_request_count')})",
                            _MODEL,
                        ),
                    ),
                    width=6,
                ),
                Panel(
                    title="Requests by version",
                    description="Which version answers: a swap shows as one line that goes over into another.",
                    queries=(
                        Query(
                            f"sum by (model, version) ({rate(of_pods('nv_inference_request_success'))})",
                            _MODEL,
                        ),
                    ),
                    unit=Unit.REQUESTS_PER_SECOND,
                    stacked=True,
                ),
                Panel(
                    title="Failures",
                    description="Requests that Triton could not answer, by its reason.",
                    queries=(
                        Query(
                            f"sum by (model, version, reason) ({rate(of_pods('nv_inference_request_failure'))})",
                            f"{_MODEL} {{{{reason}}}}",
                        ),
                    ),
                    unit=Unit.REQUESTS_PER_SECOND,
                ),
                Panel(
                    title="Busy pods",
                    description="Share of the time in which a pod computes. Near 1 it serves as much as it can.",
                    queries=(
                        Query(
                            busy_pods(),
                            "{{pod}}",
                        ),
                    ),
                    unit=Unit.SHARE,
                    maximum=1,
                ),
            ),
        ),
        Row(
            "In a pipeline",
            (
                Panel(
                    title="Requests by what a part did for them",
                    description="Of a ModelAccess with a pipeline: the lookup of features and each model, and what became of the requests there.",
                    queries=(
                        Query(
                            or_none(
                                f'sum by (model, part, outcome) (rate(tidegate_pipeline_requests_total{{namespace=~"$namespace"}}[{RATE}]))'
                            ),
                            "{{model}} {{part}} {{outcome}}",
                        ),
                    ),
                    unit=Unit.REQUESTS_PER_SECOND,
                    width=12,
                ),
                Panel(
                    title="Rows in a call of a part",
                    description="How many rows one call carries for all the requests of a batch.",
                    queries=(
                        Query(
                            or_none(
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
