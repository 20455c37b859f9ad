"""PromQL for what a visitor has chosen, whatever a Prometheus makes of our labels `namespace` and `name`."""

from __future__ import annotations

from typing import Final

from tidegate.grafana.panels import Variable
from tidegate.telemetry import expressions, scope

RATE: Final = "$__rate_interval"
"""Four scrapes at least, as Grafana knows them."""

CHOSEN_INFERENCES: Final = (
    'envoy_cluster_name=~"(inference/$namespace|release/$namespace/[^/]+)/($inference)([+][^/]*)?/[a-z]+"'
)
_WHOSE: Final = "(?:inference/([^/]+)|release/([^/]+)/[^/]+)/([^/+]+).*"


def narrowed(expression: str) -> str:
    """An expression about all Inferences, for those chosen."""
    return expression.replace(expressions.OF_INFERENCES, CHOSEN_INFERENCES)


OFFERED: Final = narrowed(expressions.offered(RATE))
"""Requests per second that clients send to the Inferences chosen."""
SERVED: Final = narrowed(expressions.served(RATE))
"""Requests per second that they answered."""


def latency(share: float) -> str:
    """Seconds within which that share of the requests to the Inferences chosen was answered."""
    return f"histogram_quantile({share}, {narrowed(expressions.latency_buckets(RATE))}) / 1000"


def of_gateways(metric: str, matchers: str = "") -> str:
    """A rate that the gateways count about the Inferences chosen, with the labels that objects have."""
    further = f", {matchers}" if matchers else ""
    selected = rate(f"envoy_cluster_{metric}{{{CHOSEN_INFERENCES}{further}}}")
    named = f'label_replace({selected}, "namespace", "$1$2", "envoy_cluster_name", "{_WHOSE}")'
    return f'label_replace({named}, "inference", "$3", "envoy_cluster_name", "{_WHOSE}")'


def of_objects(metric: str, matchers: str = "", *, named: str = "$inference", label: str = "name") -> str:
    """A gauge of the controllers about objects that are called `named`, in the namespaces chosen."""
    rest = f", {matchers}" if matchers else ""
    return scope.of_object(metric, f'{label}=~"{named}"{rest}', namespace='namespace=~"$namespace"')


def of_inferences(metric: str, matchers: str = "") -> str:
    """A gauge of the controllers about the Inferences chosen, called `inference`."""
    return of_objects(metric, matchers, named="$inference", label="inference")


def replicas(*states: str) -> str:
    """Pods of the objects chosen, of these states."""
    joined = "|".join(states)
    series = of_objects("tidegate_object_replicas", f'state=~"{joined}"')
    return f"sum by (namespace, name, state) ({series})"


def of_pools(metric: str, matchers: str = "") -> str:
    """A series of the allocator or of GPU sharing, of the pools chosen."""
    return f'{metric}{{pool=~"$pool"{", " + matchers if matchers else ""}}}'


def of_pods(metric: str, matchers: str = "") -> str:
    """A series of the pods of the Inferences chosen, and of others whose names begin as theirs do."""
    rest = f", {matchers}" if matchers else ""
    return f'{metric}{{namespace=~"$namespace", pod=~"inf-($inference)-.+"{rest}}}'


def busy_pods() -> str:
    """Share of the time in which a pod computes: Triton counts an execution's time once for each request in it."""
    executions = rate(of_pods("nv_inference_exec_count"))
    of_each = (
        f"{rate(of_pods('nv_inference_compute_infer_duration_us'))} / 1e6"
        f" / ({rate(of_pods('nv_inference_request_success'))} > 0) * {executions}"
    )
    return f"clamp_max(sum by (namespace, pod) ({of_each} or 0 * {executions}), 1)"


def rate(series: str) -> str:
    """How fast a counter grows."""
    return f"rate({series}[{RATE}])"


def quantile(share: float, metric: str, *, by: str = "", matchers: str = "") -> str:
    """Of a histogram of ours, in its own unit."""
    grouped = f"{by}, le" if by else "le"
    return f"histogram_quantile({share}, sum by ({grouped}) ({rate(f'{metric}_bucket{{{matchers}}}')}))"


def or_none(expression: str) -> str:
    """0 where nothing of the kind has happened yet: such series begin with the first of them."""
    return f"({expression}) or vector(0)"


_INFERENCES: Final = 'tidegate_object_ready{kind="Inference"}'

NAMESPACE: Final = Variable(
    "namespace",
    "Namespace",
    'count by (namespace) (label_replace(tidegate_object_ready{exported_namespace=~".*"}, '
    '"namespace", "$1", "exported_namespace", "(.+)"))',
)
INFERENCE: Final = Variable(
    "inference",
    "Inference",
    f'count by (inference) (label_replace({_INFERENCES}, "inference", "$1", "name", "(.+)"))',
)
ACCESS: Final = Variable(
    "access",
    "ModelAccess",
    'count by (access) (label_replace(tidegate_object_ready{kind="ModelAccess"}, "access", "$1", "name", "(.+)"))',
)
POOL: Final = Variable(
    "pool",
    "Pool",
    'count by (pool) (label_replace(tidegate_object_ready{kind="ComputePool"}, "pool", "$1", "name", "(.+)"))',
)
