"""Build the range queries for the charts of an Inference and of a release, one query for all series of a page."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from tidegate.api.meta import ObjectKey
from tidegate.planning.access.value_classes import RouteOutcome
from tidegate.telemetry import expressions
from tidegate.telemetry.scope import object_series

SERIES_LABEL: Final = "series"
"""The label that names a series in the answers."""
SIDE_LABEL: Final = "side"
TARGET, STABLE = "target", "stable"
"""The sides of a release: the released Inference, and the other targets of its route."""
_CLUSTER: Final = "envoy_cluster_name"
_FAILED: Final = 'envoy_response_code_class=~"4|5"'


def inference_query(key: ObjectKey, rate_window: str) -> str:
    """Return the query for the series of an Inference, each with its name in the label `series`.

    offered and served: requests per second. p50 and p99: seconds at the gateways. desired and ready: replicas.
    serving: the version that every pod serves.
    """
    namespace, name = _quote_name(key.namespace), _quote_name(key.name)
    releases = f"release/{namespace}/[^/]+|release/[^/]+/[^/]+/{namespace}"
    clusters = f'{_CLUSTER}=~"(inference/{namespace}|{releases})/{name}([+].*)?/[a-z]+"'

    own = f'namespace="{_escape_text(key.namespace)}"'
    refused = RouteOutcome.REFUSED
    shares = object_series(
        expressions.ROUTE_DEMAND_RATIO,
        f'inference="{_escape_text(key.name)}",{expressions.select_outcome(refused)}',
        namespace_matcher=own,
    )

    def select_clusters(expression: str) -> str:
        return expression.replace(expressions.INFERENCE_CLUSTERS, clusters).replace(
            expressions.route_shares(refused), expressions.route_shares(refused, shares)
        )

    buckets = select_clusters(expressions.latency_buckets(rate_window))
    replicas = 'kind="Inference",name="{}",state="{}"'
    return _join_series(
        {
            "offered": select_clusters(expressions.offered_rate(rate_window)),
            "served": select_clusters(expressions.served_rate(rate_window)),
            "p50": f"histogram_quantile(0.5, {buckets}) / 1000",
            "p99": f"histogram_quantile(0.99, {buckets}) / 1000",
            **{
                state: f"max by (namespace, name) ({object_series('tidegate_object_replicas', replicas.format(_escape_text(key.name), state), namespace_matcher=own)})"
                for state in ("desired", "ready")
            },
            "serving": "max by (namespace, inference) ("
            + object_series(
                "tidegate_inference_version",
                f'inference="{_escape_text(key.name)}",state="serving"',
                namespace_matcher=own,
            )
            + ")",
        }
    )


def release_query(access: ObjectKey, target: str, rate_window: str) -> str:
    """Return the query for both sides of a release: the side is in the label `side`, the name in `series`.

    sent and failed: requests per second, counted as the check ErrorRate counts them. p99: seconds.
    """
    release = f"release/{_quote_name(access.namespace)}/{_quote_name(access.name)}"
    target_clusters = f"{release}/{_quote_name(target)}([+].*)?/[a-z]+"

    def by_side(metric: str, matchers: str = "", label: str = "") -> str:
        selected = f'rate(envoy_cluster_{metric}{{{_CLUSTER}=~"{release}/.+"{matchers}}}[{rate_window}])'
        stable = f'label_replace({selected}, "{SIDE_LABEL}", "{STABLE}", "", "")'
        labelled = f'label_replace({stable}, "{SIDE_LABEL}", "{TARGET}", "{_CLUSTER}", "{target_clusters}")'
        return f"sum by ({SIDE_LABEL}{label}) ({labelled})"

    sent = by_side("upstream_rq_total")
    failed = (
        f"({by_side('upstream_rq_xx', f', {_FAILED}')} or 0 * {sent})"
        f" + ({by_side('grpc_failure')} or 0 * {sent})"
    )
    return _join_series(
        {
            "sent": sent,
            "failed": failed,
            "p99": f"histogram_quantile(0.99, {by_side('upstream_rq_time_bucket', label=', le')}) / 1000",
        }
    )


def _join_series(expressions_by_name: Mapping[str, str]) -> str:
    """Return one expression whose series have their name in the label `series`."""
    return " or ".join(
        f'label_replace({expression}, "{SERIES_LABEL}", "{name}", "", "")'
        for name, expression in expressions_by_name.items()
    )


def _escape_text(text: str) -> str:
    """Return the text as part of a string of PromQL."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _quote_name(text: str) -> str:
    """Return the text as part of a pattern of PromQL that matches it and nothing else."""
    return _escape_text(re.escape(text).replace("\\-", "-"))
