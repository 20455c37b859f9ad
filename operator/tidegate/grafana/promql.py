"""Build PromQL for the user's selection, independent of how Prometheus renames our labels `namespace` and `name`."""

from __future__ import annotations

from typing import Final

from tidegate.grafana.panels import DashboardVariable
from tidegate.planning.access.value_classes import RouteOutcome
from tidegate.telemetry import expressions, scope

RATE: Final = "$__rate_interval"
"""Grafana's window for rates: at least four scrapes."""

SELECTED_CLUSTERS: Final = (
    'envoy_cluster_name=~"(inference/$namespace|release/$namespace/[^/]+|release/[^/]+/[^/]+/$namespace)'
    '/($inference)([+].*)?/[a-z]+"'
)


def select_chosen(expression: str) -> str:
    """Return an expression about all Inferences restricted to the selected ones."""
    outcome = RouteOutcome.REFUSED
    shares = inference_gauge(expressions.ROUTE_DEMAND_RATIO, expressions.select_outcome(outcome))
    return expression.replace(expressions.INFERENCE_CLUSTERS, SELECTED_CLUSTERS).replace(
        expressions.route_shares(outcome), expressions.route_shares(outcome, shares)
    )


def latency_seconds(share: float) -> str:
    """Return seconds in which that share of the requests to the selected Inferences was answered."""
    return f"histogram_quantile({share}, {select_chosen(expressions.latency_buckets(RATE))}) / 1000"


def gateway_rate(metric: str, matchers: str = "") -> str:
    """Return a rate of the gateways for the selected Inferences, with the labels `namespace` and `inference`."""
    more_matchers = f", {matchers}" if matchers else ""
    selected = counter_rate(f"envoy_cluster_{metric}{{{SELECTED_CLUSTERS}{more_matchers}}}")
    return expressions.label_inference(selected)


def object_gauge(
    metric: str, matchers: str = "", *, name_pattern: str = "$inference", label: str = "name"
) -> str:
    """Return a gauge of the controllers for objects whose name matches `named`, in the selected namespaces."""
    rest = f", {matchers}" if matchers else ""
    return scope.object_series(
        metric, f'{label}=~"{name_pattern}"{rest}', namespace_matcher='namespace=~"$namespace"'
    )


def inference_gauge(metric: str, matchers: str = "") -> str:
    """Return a gauge of the controllers for the selected Inferences, with their name in the label `inference`."""
    return object_gauge(metric, matchers, name_pattern="$inference", label="inference")


OFFERED: Final = select_chosen(expressions.offered_rate(RATE))
"""Requests per second that clients send to the selected Inferences."""
SERVED: Final = select_chosen(expressions.served_rate(RATE))
"""Requests per second that the selected Inferences answered."""


def replica_count(*states: str) -> str:
    """Return the number of pods of the selected objects in these states."""
    joined = "|".join(states)
    series = object_gauge("tidegate_object_replicas", f'state=~"{joined}"')
    return f"sum by (namespace, name, state) ({series})"


def pool_series(metric: str, matchers: str = "") -> str:
    """Return a series of the allocator or of GPU sharing for the selected pools."""
    return f'{metric}{{pool=~"$pool"{", " + matchers if matchers else ""}}}'


def pod_series(metric: str, matchers: str = "") -> str:
    """Return a series of the pods of the selected Inferences, and of other pods whose names begin like theirs."""
    rest = f", {matchers}" if matchers else ""
    return f'{metric}{{namespace=~"$namespace", pod=~"inf-($inference)-.+"{rest}}}'


def spare_series(metric: str) -> str:
    """Return a series of the pods that the Inferences of the selected namespaces and pools share."""
    return f'{metric}{{namespace=~"$namespace", pod=~"spare-($pool)-.+"}}'


def shard_series(metric: str) -> str:
    """Return a series of the pods of the selected Inferences' batches, and of all backfills in the selected namespaces."""
    return f'{metric}{{namespace=~"$namespace", pod=~"inf-($inference)-.+|fcb-.+"}}'


def features_pod_series(metric: str) -> str:
    """Return a series of the pods of all FeatureComputes in the selected namespaces."""
    return f'{metric}{{namespace=~"$namespace", pod=~"fc-.+"}}'


def pod_busy_share() -> str:
    """Return the share of the time in which a pod computes; Triton counts an execution's time once for each request in it."""
    executions = counter_rate(pod_series("nv_inference_exec_count"))
    busy_shares = (
        f"{counter_rate(pod_series('nv_inference_compute_infer_duration_us'))} / 1e6"
        f" / ({counter_rate(pod_series('nv_inference_request_success'))} > 0) * {executions}"
    )
    return f"clamp_max(sum by (namespace, pod) ({busy_shares} or 0 * {executions}), 1)"


def counter_rate(series: str) -> str:
    """Return the rate of a counter."""
    return f"rate({series}[{RATE}])"


def histogram_quantile(share: float, metric: str, *, by: str = "", matchers: str = "") -> str:
    """Return a quantile of one of our histograms, in the histogram's unit."""
    grouped = f"{by}, le" if by else "le"
    return (
        f"histogram_quantile({share}, sum by ({grouped}) ({counter_rate(f'{metric}_bucket{{{matchers}}}')}))"
    )


def or_zero(expression: str) -> str:
    """Return the expression, or 0 while the series does not exist: a counter's series begins with the first event."""
    return f"({expression}) or vector(0)"


_INFERENCES: Final = 'tidegate_object_ready{kind="Inference"}'

NAMESPACE: Final = DashboardVariable(
    "namespace",
    "Namespace",
    'count by (namespace) (label_replace(tidegate_object_ready{exported_namespace=~".*"}, '
    '"namespace", "$1", "exported_namespace", "(.+)"))',
)
INFERENCE: Final = DashboardVariable(
    "inference",
    "Inference",
    f'count by (inference) (label_replace({_INFERENCES}, "inference", "$1", "name", "(.+)"))',
)
ACCESS: Final = DashboardVariable(
    "access",
    "ModelAccess",
    'count by (access) (label_replace(tidegate_object_ready{kind="ModelAccess"}, "access", "$1", "name", "(.+)"))',
)
POOL: Final = DashboardVariable(
    "pool",
    "Pool",
    'count by (pool) (label_replace(tidegate_object_ready{kind="ComputePool"}, "pool", "$1", "name", "(.+)"))',
)
