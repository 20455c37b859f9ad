"""The fleet: what is asked for, what is answered, and which objects are not well."""

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
    description="What clients ask of the models, what they get, and which objects need somebody.",
    variables=(NAMESPACE, INFERENCE),
    rows=(
        Row(
            "Now",
            (
                figure("Inferences ready", "Of those chosen.", f"sum({_INFERENCES})"),
                figure(
                    "Objects not ready",
                    "Of any kind; the table below names them.",
                    f"count(({_EVERYTHING}) == 0) or vector(0)",
                    warn_above=1,
                ),
                figure(
                    "Objects stalled",
                    "Only a changed spec or another object helps these.",
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
                    "Share of the demand that was answered 2xx or 3xx.",
                    f"clamp_max(sum({SERVED}) / (sum({OFFERED}) > 0), 1)",
                    Unit.SHARE,
                    warn_below=0.999,
                ),
                figure(
                    "Slowest p99",
                    "Of the Inferences chosen, at the gateways.",
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
                    description="Requests per second that clients send: also those that a limit refuses. Copies and retries are not in it.",
                    queries=(Query(OFFERED, "{{namespace}}/{{inference}}"),),
                    unit=Unit.REQUESTS_PER_SECOND,
                    stacked=True,
                ),
                Panel(
                    title="Answered by Inference",
                    description="Requests per second that were answered 2xx or 3xx.",
                    queries=(Query(SERVED, "{{namespace}}/{{inference}}"),),
                    unit=Unit.REQUESTS_PER_SECOND,
                    stacked=True,
                ),
                Panel(
                    title="Share answered by Inference",
                    description="What spec.slo.availability is about. Where it falls: the breakdown of the model says whether it refuses, times out or is not there.",
                    queries=(
                        Query(f"clamp_max(({SERVED}) / (({OFFERED}) > 0), 1)", "{{namespace}}/{{inference}}"),
                    ),
                    unit=Unit.SHARE,
                ),
                Panel(
                    title="p99 by Inference",
                    description="Time within which 99 of 100 requests were answered, as the gateways see it: what spec.slo.latencyP99 is about.",
                    queries=(Query(latency(0.99), "{{namespace}}/{{inference}}"),),
                    unit=Unit.SECONDS,
                ),
                Panel(
                    title="Refused at the gateways",
                    description="Calls per second without an allowed caller (via_upstream: the model itself refused), shed by admission control, or for which no target had a pod (direct_response).",
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
                    title="Pods wanted and ready",
                    description="Pods that the spec or the allocator asks for, and those that answer.",
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
                    description="How fast the budget of spec.slo is used up: at 1 it lasts exactly as long as its period, at 14.4 an "
                    "hour takes 2 % of a month's. It needs the chart's rules (metrics.rules.enabled).",
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
                    title="How every object is",
                    description="The reason of its condition Ready; docs/reference/reasons.md says what to do about each.",
                    queries=(Query(f"max by (kind, namespace, name, reason) ({_EVERYTHING})"),),
                    kind=Kind.TABLE,
                    width=24,
                ),
            ),
        ),
    ),
)
