"""The dashboard of the fleet: demand, answers, objectives, and unhealthy objects."""

from __future__ import annotations

from typing import Final

from tidegate.grafana.panels import Dashboard, Kind, Panel, Query, Row, Unit, figure
from tidegate.grafana.selecting import (
    INFERENCE,
    NAMESPACE,
    OFFERED,
    RATE,
    SERVED,
    latency,
    of_inferences,
    of_objects,
    or_none,
    replicas,
)
from tidegate.telemetry.recorded import burn

_INFERENCES: Final = of_objects("tidegate_object_ready", 'kind="Inference"')
_EVERYTHING: Final = of_objects("tidegate_object_ready", named=".*")
_STALLED: Final = of_objects("tidegate_object_stalled", named=".*")
_LIMIT: Final = of_inferences("tidegate_inference_slo_latency_seconds")

FLEET: Final = Dashboard(
    uid="tidegate-fleet",
    title="Tidegate / Fleet and SLO",
    description="Demand, answers and objectives of the models, and objects that need attention.",
    variables=(NAMESPACE, INFERENCE),
    rows=(
        Row(
            "Now",
            (
                figure("Inferences ready", "Of those selected.", f"sum({_INFERENCES})"),
                figure(
                    "Objects not ready",
                    "Of any kind; the table below lists them.",
                    f"count(({_EVERYTHING}) == 0) or vector(0)",
                    warn_above=1,
                ),
                figure(
                    "Objects stalled",
                    "They recover only when their spec or a referenced object changes.",
                    f"sum({_STALLED})",
                    warn_above=1,
                ),
                figure(
                    "Demand",
                    "Requests per second, answered or not.",
                    f"sum({OFFERED})",
                    Unit.REQUESTS_PER_SECOND,
                ),
                figure(
                    "Answered",
                    "Share of the demand that was answered with 2xx or 3xx.",
                    f"clamp_max(sum({SERVED}) / (sum({OFFERED}) > 0), 1)",
                    Unit.SHARE,
                    warn_below=0.999,
                ),
                figure(
                    "Slowest p99",
                    "Of the selected Inferences, measured at the gateways.",
                    f"max({latency(0.99)})",
                    Unit.SECONDS,
                ),
            ),
        ),
        Row(
            "Requests",
            (
                Panel(
                    title="Demand by Inference",
                    description="Requests per second that clients send, including those that a limit rejects, without shadow copies and retries.",
                    queries=(Query(OFFERED, "{{namespace}}/{{inference}}"),),
                    unit=Unit.REQUESTS_PER_SECOND,
                    stacked=True,
                ),
                Panel(
                    title="Answered by Inference",
                    description="Requests per second that were answered with 2xx or 3xx.",
                    queries=(Query(SERVED, "{{namespace}}/{{inference}}"),),
                    unit=Unit.REQUESTS_PER_SECOND,
                    stacked=True,
                ),
                Panel(
                    title="Share answered by Inference",
                    description="The measure of spec.slo.availability. If it falls, the latency breakdown shows whether the model rejects requests, times out or is missing.",
                    queries=(
                        Query(f"clamp_max(({SERVED}) / (({OFFERED}) > 0), 1)", "{{namespace}}/{{inference}}"),
                    ),
                    unit=Unit.SHARE,
                ),
                Panel(
                    title="p99 by Inference",
                    description="Time in which 99 of 100 requests were answered, measured at the gateways: the measure of spec.slo.latencyP99.",
                    queries=(Query(latency(0.99), "{{namespace}}/{{inference}}"),),
                    unit=Unit.SECONDS,
                ),
                Panel(
                    title="Rejected at the gateways",
                    description="Requests per second without an allowed caller (via_upstream: rejected by the model itself), rejected by admission control, or without a pod in any target (direct_response).",
                    queries=(
                        Query(
                            or_none(
                                f'sum by (route, why) (rate(envoy_tidegate_refused{{route=~"access/$namespace/.*"}}[{RATE}]))'
                            ),
                            "{{route}} {{why}}",
                        ),
                    ),
                    unit=Unit.REQUESTS_PER_SECOND,
                ),
                Panel(
                    title="Desired and ready pods",
                    description="Pods that the spec or the allocator asks for, and pods that serve requests.",
                    queries=(
                        Query(
                            replicas("wanted", "ready"),
                            "{{namespace}}/{{name}} {{state}}",
                        ),
                    ),
                ),
            ),
        ),
        Row(
            "Objectives",
            (
                Panel(
                    title="Error budget burn",
                    description="Burn rate of the error budget of spec.slo: at 1 the budget lasts exactly for its period, at 14.4 one "
                    "hour consumes 2 % of a month's budget. Needs the chart's rules (metrics.rules.enabled).",
                    queries=tuple(
                        Query(
                            f'{burn(window)}{{namespace=~"$namespace", inference=~"$inference"}}',
                            f"{{{{namespace}}}}/{{{{inference}}}} {window}",
                        )
                        for window in ("5m", "1h", "6h")
                    ),
                    warn_above=1,
                    width=12,
                ),
                Panel(
                    title="p99 against spec.slo.latencyP99",
                    description="1 is the limit.",
                    queries=(
                        Query(
                            f"({latency(0.99)}) / on (namespace, inference) max by (namespace, inference) ({_LIMIT})",
                            "{{namespace}}/{{inference}}",
                        ),
                    ),
                    unit=Unit.SHARE,
                    warn_above=1,
                    width=12,
                ),
            ),
        ),
        Row(
            "Objects",
            (
                Panel(
                    title="Status of all objects",
                    description="The reason of the condition Ready; docs/reference/reasons.md shows what to do for each reason.",
                    queries=(Query(f"max by (kind, namespace, name, reason) ({_EVERYTHING})"),),
                    kind=Kind.TABLE,
                    width=24,
                ),
            ),
        ),
    ),
)
