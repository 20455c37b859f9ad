"""The names of Envoy clusters and of counters: the renderer gives them, and telemetry reads them in Envoy's statistics."""

from __future__ import annotations

import re
from typing import Final

from tidegate.api.meta import ObjectKey
from tidegate.routing.fleet import BackendKey, BackendKind
from tidegate.routing.ir import AccessPoolKey, InferenceProtocol, PoolKey, PoolRole
from tidegate.routing.pipelines import pipeline_key, pipeline_owner

REJECTIONS_PREFIX: Final = "tidegate"
REJECTIONS_COUNTER: Final = "refused"
"""The counter of rejected calls (envoy/listener.py), by route, response code details and Envoy cluster."""

REJECTIONS_PATTERN: Final = rf"^{REJECTIONS_PREFIX}\.{REJECTIONS_COUNTER}\."
"""The pattern of its names on the page of statistics."""

OVERLOAD_DETAILS: Final = "denied_by_admission_control"
"""The response code details when admission control rejects a request."""

NO_POD_DETAILS: Final = "direct_response"
"""The response code details of a route that answers directly, as no target has a pod (ir.RouteRule.unavailable)."""

SHARES_LAYER: Final = "admitted-shares"
"""The layer of Envoy's runtime with the admitted shares of priced routes (envoy/prices.py): in the bootstrap, and its resource."""

PRICED_OUT: Final = "refused-"
"""Begins the last part of the name of the entry that refuses what a priced route does not admit; else that is the protocol."""

_REJECTIONS_NAME: Final = re.compile(
    rf"{REJECTIONS_PREFIX}\.{REJECTIONS_COUNTER}\.route\.(.*)\.reason\.(.*)\.envoy_cluster_name\.(.*)"
)

ROUTES_PATTERN: Final = r"^vhost\.access/[^.]*\.route\.[^.]*\.upstream_rq_(completed|2xx|3xx)$"
"""The pattern of the counters of answers by route, of all its protocols."""

_ROUTES_NAME: Final = re.compile(r"vhost\.(access/[^.]*)\.route\.([^.]*)\.upstream_rq_(completed|2xx|3xx)")

_PREFIX: Final = {
    BackendKind.INFERENCE: "inference",
    BackendKind.FEATURE_COMPUTE: "features",
    BackendKind.PIPELINE: "pipeline",
}

# Separates the target and its fallback; no name contains it.
_FALLBACK: Final = "+"


def cluster_name(pool: PoolKey, protocol: InferenceProtocol) -> str:
    """Return the name of a cluster and of its endpoints (EDS).

    Each cluster has an EDS name of its own, since two that share one stall each other for 15 s.
    One of an access has the names of its Inferences as the access gives them, with a slash if they are of other namespaces.
    The name has no dot: there Envoy ends the name in `cluster.<name>.<counter>`, and reads the rest as the counter's name.
    """
    if isinstance(pool, BackendKey):
        name = pool.name
        if pool.kind is BackendKind.PIPELINE:
            access, route = pipeline_owner(pool)
            name = f"{access.name}/{route}"
        return f"{_PREFIX[pool.kind]}/{pool.namespace}/{name}/{protocol.value}"
    inferences = pool.inference + (f"{_FALLBACK}{pool.fallback}" if pool.fallback else "")
    return f"{pool.role}/{pool.access}/{inferences}/{protocol}"


def parse_cluster_name(name: str) -> tuple[PoolKey, InferenceProtocol] | None:
    """Parse a name made by `cluster_name`; None for any other name."""
    try:
        prefix, *names, protocol = name.split("/")
        return _parse_pool(prefix, names), InferenceProtocol(protocol)
    except (ValueError, StopIteration):
        return None


def _parse_pool(prefix: str, names: list[str]) -> PoolKey:
    if prefix in _PREFIX.values():
        kind = next(kind for kind, kind_prefix in _PREFIX.items() if kind_prefix == prefix)
        if kind is BackendKind.PIPELINE:
            namespace, access, route = names
            return pipeline_key(ObjectKey(namespace, access), route)
        namespace, backend = names
        return BackendKey(kind, namespace, backend)
    namespace, access, *inferences = names
    inference, _, fallback = "/".join(inferences).partition(_FALLBACK)
    if not inference or max(inference.count("/"), fallback.count("/")) > 1:
        raise ValueError(inferences)
    return AccessPoolKey(PoolRole(prefix), ObjectKey(namespace, access), inference, fallback)


def parse_rejections_counter(name: str) -> tuple[str, str, str] | None:
    """Return the route, the response code details and the Envoy cluster in the name of a counter; None for others."""
    match = _REJECTIONS_NAME.fullmatch(name)
    return (match[1], match[2], match[3]) if match else None


def parse_route_counter(name: str) -> tuple[str, str] | None:
    """Return the route, as `access/<namespace>/<name>/<route>`, and what its counter counts; None for others."""
    match = _ROUTES_NAME.fullmatch(name)
    return (f"{match[1]}/{match[2]}", match[3]) if match else None
