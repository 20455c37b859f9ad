"""Releases and version swaps: what the new one gets, and whether it is worse."""

from __future__ import annotations

from typing import Final

from tidegate.grafana.panels import Dashboard, Kind, Panel, Query, Row, Unit
from tidegate.grafana.selecting import (
    ACCESS,
    INFERENCE,
    NAMESPACE,
    RATE,
    of_inferences,
    of_objects,
    of_pods,
    or_none,
)

_RELEASES: Final = 'envoy_cluster_name=~"release/$namespace/$access/.*"'
_PARTS: Final = "release/([^/]+)/([^/]+)/([^/]+)/[a-z]+"
_ACCESSES: Final = of_objects("tidegate_object_ready", 'kind="ModelAccess"', named="$access")
_TARGET: Final = "{{access}} to {{target}}"
_BY: Final = "access, target"


def _of_releases(metric: str, matchers: str = "") -> str:
    """A rate of the gateways about released routes, by access and target (a name, `+` and its fallback's)."""
    rest = f", {matchers}" if matchers else ""
    series = f"rate(envoy_cluster_{metric}{{{_RELEASES}{rest}}}[{RATE}])"
    named = f'label_replace({series}, "access", "$1/$2", "envoy_cluster_name", "{_PARTS}")'
    return f'label_replace({named}, "target", "$3", "envoy_cluster_name", "{_PARTS}")'


_REFUSED: Final = 'envoy_response_code_class=~"4|5"'
_SENT: Final = f"sum by ({_BY}) ({_of_releases('upstream_rq_total')})"
_FAILED: Final = (
    f"(sum by ({_BY}) ({_of_releases('upstream_rq_xx', _REFUSED)}) or 0 * {_SENT})"
    f" + (sum by ({_BY}) ({_of_releases('grpc_failure')}) or 0 * {_SENT})"
)


def _percentile(share: float) -> str:
    return (
        f"histogram_quantile({share}, sum by ({_BY}, le) ({_of_releases('upstream_rq_time_bucket')})) / 1000"
    )


RELEASE: Final = Dashboard(
    uid="tidegate-release",
    title="Tidegate / Release",
    description="What a release gives its target, whether that is worse than what is there, and how versions load.",
    variables=(NAMESPACE, ACCESS, INFERENCE),
    rows=(
        Row(
            "Released routes",
            (
                Panel(
                    title="Share of each target",
                    description="Of the requests of the released route. Steps of spec.release show as steps here.",
                    queries=(
                        Query(
                            f"{_SENT} / on (access) group_left () (sum by (access) ({_SENT}) > 0)", _TARGET
                        ),
                    ),
                    unit=Unit.SHARE,
                    maximum=1,
                ),
                Panel(
                    title="Failures by target",
                    description="Share of its requests that clients saw fail: what the check ErrorRate judges.",
                    queries=(Query(f"({_FAILED}) / ({_SENT} > 0)", _TARGET),),
                    unit=Unit.SHARE,
                ),
                Panel(
                    title="p99 by target",
                    description="What the check LatencyP99 compares.",
                    queries=(Query(_percentile(0.99), _TARGET),),
                    unit=Unit.SECONDS,
                ),
                Panel(
                    title="How every ModelAccess is",
                    description="The reason of its condition Ready; `tidegate release status` says how far a release is.",
                    queries=(Query(f"max by (namespace, name, reason) ({_ACCESSES})"),),
                    kind=Kind.TABLE,
                    width=24,
                ),
            ),
        ),
        Row(
            "Versions in pods",
            (
                Panel(
                    title="Pods by version that answers",
                    description="A swap goes pod by pod; 0 is a pod in which none answers.",
                    queries=(
                        Query(
                            f'count_values by (namespace) ("version", {of_pods("tidegate_agent_serving_version")})',
                            "{{namespace}} {{version}}",
                        ),
                    ),
                    stacked=True,
                ),
                Panel(
                    title="Pods on their way to another version",
                    description="Ordered, and not yet what answers. Where it stays, the status of the Inference says why.",
                    queries=(
                        Query(
                            f"count({of_pods('tidegate_agent_target_version')} != on (namespace, pod) "
                            f"{of_pods('tidegate_agent_serving_version')}) or vector(0)",
                            "pods",
                        ),
                    ),
                ),
                Panel(
                    title="Versions asked for and answered",
                    description="What the spec asks for, and what all pods answer with; 0 while they differ.",
                    queries=(
                        Query(
                            f"max by (namespace, inference, state) ({of_inferences('tidegate_inference_version')})",
                            "{{namespace}}/{{inference}} {{state}}",
                        ),
                    ),
                ),
                Panel(
                    title="Time to fetch and to load, p90",
                    description="Of versions in the last hour: fetching and verifying the artefact, and Triton's load until the version was ready.",
                    queries=tuple(
                        Query(
                            f"histogram_quantile(0.9, sum by (le) (increase({of_pods(f'tidegate_agent_{what}_seconds_bucket')}[1h])))",
                            what,
                        )
                        for what in ("fetch", "load")
                    ),
                    unit=Unit.SECONDS,
                ),
                Panel(
                    title="Orders that failed",
                    description="Versions that could not be fetched, verified or loaded, by reason.",
                    queries=(
                        Query(
                            or_none(
                                f"sum by (reason) (increase({of_pods('tidegate_agent_failures_total')}[{RATE}]))"
                            ),
                            "{{reason}}",
                        ),
                    ),
                ),
                Panel(
                    title="Processes of models that ended",
                    description="While they served, and were started anew: for memory, or otherwise.",
                    queries=(
                        Query(
                            or_none(
                                f"sum by (why) (increase({of_pods('tidegate_agent_runner_ends_total')}[{RATE}]))"
                            ),
                            "{{why}}",
                        ),
                    ),
                ),
            ),
        ),
    ),
)
