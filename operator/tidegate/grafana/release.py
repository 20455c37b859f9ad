"""The dashboard of releases and version swaps: the share of the new target, and whether it is worse."""

from __future__ import annotations

from typing import Final

from tidegate.grafana.panels import Dashboard, Panel, PanelKind, PanelQuery, PanelRow, PanelUnit
from tidegate.grafana.promql import (
    ACCESS,
    INFERENCE,
    NAMESPACE,
    RATE,
    inference_gauge,
    object_gauge,
    or_zero,
    pod_series,
)

_RELEASES: Final = 'envoy_cluster_name=~"release/$namespace/$access/.*"'
_PARTS: Final = "release/([^/]+)/([^/]+)/(.+)/[a-z]+"
_ACCESSES: Final = object_gauge("tidegate_object_ready", 'kind="ModelAccess"', name_pattern="$access")
_TARGET: Final = "{{access}} to {{target}}"
_BY: Final = "access, target"


def _release_rate(metric: str, matchers: str = "") -> str:
    """Return a rate of the gateways for released routes, by access and target.

    The target is an Inference as the ModelAccess names it, followed by `+` and the name of its fallback, if any.
    """
    rest = f", {matchers}" if matchers else ""
    series = f"rate(envoy_cluster_{metric}{{{_RELEASES}{rest}}}[{RATE}])"
    labelled = f'label_replace({series}, "access", "$1/$2", "envoy_cluster_name", "{_PARTS}")'
    return f'label_replace({labelled}, "target", "$3", "envoy_cluster_name", "{_PARTS}")'


_REFUSED: Final = 'envoy_response_code_class=~"4|5"'
_SENT: Final = f"sum by ({_BY}) ({_release_rate('upstream_rq_total')})"
_FAILED: Final = (
    f"(sum by ({_BY}) ({_release_rate('upstream_rq_xx', _REFUSED)}) or 0 * {_SENT})"
    f" + (sum by ({_BY}) ({_release_rate('grpc_failure')}) or 0 * {_SENT})"
)


def _latency_quantile(share: float) -> str:
    return (
        f"histogram_quantile({share}, sum by ({_BY}, le) ({_release_rate('upstream_rq_time_bucket')})) / 1000"
    )


RELEASE: Final = Dashboard(
    uid="tidegate-release",
    title="Tidegate / Release",
    description="The share of a release's target, how it compares to the other targets, and how versions load.",
    variables=(NAMESPACE, ACCESS, INFERENCE),
    rows=(
        PanelRow(
            "Released routes",
            (
                Panel(
                    title="Share of each target",
                    description="Share of the requests of the released route. The steps of spec.release appear as steps here.",
                    queries=(
                        PanelQuery(
                            f"{_SENT} / on (access) group_left () (sum by (access) ({_SENT}) > 0)", _TARGET
                        ),
                    ),
                    unit=PanelUnit.SHARE,
                    maximum=1,
                ),
                Panel(
                    title="Failures by target",
                    description="Share of the target's requests that failed for clients: the measure of the check ErrorRate.",
                    queries=(PanelQuery(f"({_FAILED}) / ({_SENT} > 0)", _TARGET),),
                    unit=PanelUnit.SHARE,
                ),
                Panel(
                    title="p99 by target",
                    description="The measure of the check LatencyP99.",
                    queries=(PanelQuery(_latency_quantile(0.99), _TARGET),),
                    unit=PanelUnit.SECONDS,
                ),
                Panel(
                    title="Status of all ModelAccesses",
                    description="The reason of the condition Ready; `tidegate release status` shows the step of a release.",
                    queries=(PanelQuery(f"max by (namespace, name, reason) ({_ACCESSES})"),),
                    kind=PanelKind.TABLE,
                    width=24,
                ),
            ),
        ),
        PanelRow(
            "Versions in pods",
            (
                Panel(
                    title="Pods by serving version",
                    description="A swap changes one pod after another; 0 is a pod that serves no version.",
                    queries=(
                        PanelQuery(
                            f'count_values by (namespace) ("version", {pod_series("tidegate_agent_serving_version")})',
                            "{{namespace}} {{version}}",
                        ),
                    ),
                    stacked=True,
                ),
                Panel(
                    title="Pods with a pending swap",
                    description="Pods whose target version differs from the version that they serve. If it stays above 0, the status of the Inference shows why.",
                    queries=(
                        PanelQuery(
                            f"count({pod_series('tidegate_agent_target_version')} != on (namespace, pod) "
                            f"{pod_series('tidegate_agent_serving_version')}) or vector(0)",
                            "pods",
                        ),
                    ),
                ),
                Panel(
                    title="Target and serving versions",
                    description="The version in the spec, and the version that all pods serve; 0 while the pods differ.",
                    queries=(
                        PanelQuery(
                            f"max by (namespace, inference, state) ({inference_gauge('tidegate_inference_version')})",
                            "{{namespace}}/{{inference}} {{state}}",
                        ),
                    ),
                ),
                Panel(
                    title="Time to fetch and to load, p90",
                    description="Versions of the last hour: fetching and verifying the artefact, and loading it in Triton until the version was ready.",
                    queries=tuple(
                        PanelQuery(
                            f"histogram_quantile(0.9, sum by (le) (increase({pod_series(f'tidegate_agent_{operation}_seconds_bucket')}[1h])))",
                            operation,
                        )
                        for operation in ("fetch", "load")
                    ),
                    unit=PanelUnit.SECONDS,
                ),
                Panel(
                    title="Failed fetches and loads",
                    description="Versions that could not be fetched, verified or loaded, by reason.",
                    queries=(
                        PanelQuery(
                            or_zero(
                                f"sum by (reason) (increase({pod_series('tidegate_agent_failures_total')}[{RATE}]))"
                            ),
                            "{{reason}}",
                        ),
                    ),
                ),
                Panel(
                    title="Restarts of model processes",
                    description="Processes that ended while they served, out of memory or for another reason, and were restarted.",
                    queries=(
                        PanelQuery(
                            or_zero(
                                f"sum by (reason) (increase({pod_series('tidegate_agent_runner_ends_total')}[{RATE}]))"
                            ),
                            "{{reason}}",
                        ),
                    ),
                ),
            ),
        ),
    ),
)
