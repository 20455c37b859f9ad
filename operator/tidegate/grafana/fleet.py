"""The dashboard of the fleet: demand, answers, objectives, and unhealthy objects."""

from __future__ import annotations

from typing import Final

from tidegate.grafana.panels import Dashboard, Panel, PanelKind, PanelQuery, PanelRow, PanelUnit, stat_panel
from tidegate.grafana.promql import (
    INFERENCE,
    NAMESPACE,
    OFFERED,
    RATE,
    SERVED,
    inference_gauge,
    latency_seconds,
    object_gauge,
    or_zero,
    replica_count,
)
from tidegate.telemetry.recording_rules import burn_rate_series

_INFERENCES: Final = object_gauge("tidegate_object_ready", 'kind="Inference"')
_EVERYTHING: Final = object_gauge("tidegate_object_ready", name_pattern=".*")
_STALLED: Final = object_gauge("tidegate_object_stalled", name_pattern=".*")
_LIMIT: Final = inference_gauge("tidegate_inference_slo_latency_seconds")

FLEET: Final = Dashboard(
    uid="tidegate-fleet",
    title="Tidegate / Fleet and SLO",
    description="Demand, answers and objectives of the models, and objects that need attention.",
    variables=(NAMESPACE, INFERENCE),
    rows=(
        PanelRow(
            "Now",
            (
                stat_panel("Inferences ready", "Of those selected.", f"sum({_INFERENCES})"),
                stat_panel(
                    "Objects not ready",
                    "Of any kind; the table below lists them.",
                    f"count(({_EVERYTHING}) == 0) or vector(0)",
                    warn_from=1,
                ),
                stat_panel(
                    "Objects stalled",
                    "They recover only when their spec or a referenced object changes.",
                    f"sum({_STALLED})",
                    warn_from=1,
                ),
                stat_panel(
                    "Demand",
                    "Requests per second, answered or not.",
                    f"sum({OFFERED})",
                    PanelUnit.REQUESTS_PER_SECOND,
                ),
                stat_panel(
                    "Answered",
                    "Share of the demand that was answered with 2xx or 3xx.",
                    f"clamp_max(sum({SERVED}) / (sum({OFFERED}) > 0), 1)",
                    PanelUnit.SHARE,
                    warn_below=0.999,
                ),
                stat_panel(
                    "Slowest p99",
                    "Of the selected Inferences, measured at the gateways.",
                    f"max({latency_seconds(0.99)})",
                    PanelUnit.SECONDS,
                ),
            ),
        ),
        PanelRow(
            "Requests",
            (
                Panel(
                    title="Demand by Inference",
                    description="Requests per second that clients send, including those that a limit rejects, without shadow copies and retries.",
                    queries=(PanelQuery(OFFERED, "{{namespace}}/{{inference}}"),),
                    unit=PanelUnit.REQUESTS_PER_SECOND,
                    stacked=True,
                ),
                Panel(
                    title="Answered by Inference",
                    description="Requests per second that were answered with 2xx or 3xx.",
                    queries=(PanelQuery(SERVED, "{{namespace}}/{{inference}}"),),
                    unit=PanelUnit.REQUESTS_PER_SECOND,
                    stacked=True,
                ),
                Panel(
                    title="Share answered by Inference",
                    description="The measure of spec.slo.availability. If it falls, the latency breakdown shows whether the model rejects requests, times out or is missing.",
                    queries=(
                        PanelQuery(
                            f"clamp_max(({SERVED}) / (({OFFERED}) > 0), 1)", "{{namespace}}/{{inference}}"
                        ),
                    ),
                    unit=PanelUnit.SHARE,
                ),
                Panel(
                    title="p99 by Inference",
                    description="Time in which 99 of 100 requests were answered, measured at the gateways: the measure of spec.slo.latencyP99.",
                    queries=(PanelQuery(latency_seconds(0.99), "{{namespace}}/{{inference}}"),),
                    unit=PanelUnit.SECONDS,
                ),
                Panel(
                    title="Rejected at the gateways",
                    description="Requests per second without an allowed caller (via_upstream: rejected by the model itself), rejected by admission control, without a pod in any target (direct_response), or beyond the admitted share of the route (direct_response, refused- in the route).",
                    queries=(
                        PanelQuery(
                            or_zero(
                                f'sum by (route, reason) (rate(envoy_tidegate_refused{{route=~"access/$namespace/.*"}}[{RATE}]))'
                            ),
                            "{{route}} {{reason}}",
                        ),
                    ),
                    unit=PanelUnit.REQUESTS_PER_SECOND,
                ),
                Panel(
                    title="Desired and ready pods",
                    description="Pods that the spec or the allocator asks for, and pods that serve requests.",
                    queries=(
                        PanelQuery(
                            replica_count("desired", "ready"),
                            "{{namespace}}/{{name}} {{state}}",
                        ),
                    ),
                ),
            ),
        ),
        PanelRow(
            "Objectives",
            (
                Panel(
                    title="Error budget burn",
                    description="Burn rate of the error budget of spec.slo: at 1 the budget lasts exactly for its period, at 14.4 one "
                    "hour consumes 2 % of a month's budget. Needs the chart's rules (metrics.rules.enabled).",
                    queries=tuple(
                        PanelQuery(
                            f'{burn_rate_series(window)}{{namespace=~"$namespace", inference=~"$inference"}}',
                            f"{{{{namespace}}}}/{{{{inference}}}} {window}",
                        )
                        for window in ("5m", "1h", "6h")
                    ),
                    warn_from=1,
                    width=12,
                ),
                Panel(
                    title="p99 against spec.slo.latencyP99",
                    description="1 is the limit.",
                    queries=(
                        PanelQuery(
                            f"({latency_seconds(0.99)}) / on (namespace, inference) max by (namespace, inference) ({_LIMIT})",
                            "{{namespace}}/{{inference}}",
                        ),
                    ),
                    unit=PanelUnit.SHARE,
                    warn_from=1,
                    width=12,
                ),
            ),
        ),
        PanelRow(
            "Objects",
            (
                Panel(
                    title="Status of all objects",
                    description="The reason of the condition Ready; docs/reference/reasons.md shows what to do for each reason.",
                    queries=(PanelQuery(f"max by (kind, namespace, name, reason) ({_EVERYTHING})"),),
                    kind=PanelKind.TABLE,
                    width=24,
                ),
            ),
        ),
    ),
)
