"""Render the routing IR for gRPC clients without a gateway, for `xds:///<host>` targets, and their bootstrap.

A virtual host becomes an API listener with the routes of one access inside, a pool a cluster and its endpoints.
gRPC implements these parts: gRFC A27 (listeners, clusters), A28 (matching and weights), A32 (concurrent requests), A44 (retries).
Timeouts (gRFC A31) are left to the client's own deadlines: gRPC's C core, so Python's, ends calls up to a second before
a timeout from outside (grpc/grpc#40633; with 1.85, our default timeout of 1 s ended every call at once).
Header matchers use the older fields, since some gRPC versions do not support `string_match`.
Settings that gRPC does not read are left out, and listed by `ignored_fields`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from tidegate.api.model_access import ModelAccess, ModelAccessSpec, Route
from tidegate.routing import protos
from tidegate.routing.envoy import clusters, endpoints, listener
from tidegate.routing.envoy.allowlist import GRPC_METHODS, GRPC_SERVICE
from tidegate.routing.envoy_names import cluster_name
from tidegate.routing.fleet import Endpoint
from tidegate.routing.ir import (
    Comparison,
    EndpointPool,
    HeaderMatcher,
    InferenceProtocol,
    RouteRule,
    VirtualHost,
)

_HTTP_CONNECTION_MANAGER: Final = (
    "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
)
_ROUTER: Final = "envoy.extensions.filters.http.router.v3.Router"
# The methods that a gateway admits; no route leads to any other.
_CALLS: Final = f"/{re.escape(GRPC_SERVICE)}/({'|'.join(GRPC_METHODS)})"
_MAX_IGNORED: Final = 64


def encode_listener(name: str, host: VirtualHost) -> bytes:
    """Serialise the Listener of `host` under one of its names."""
    virtual_host = {
        "name": host.name,
        "domains": ["*"],
        "routes": [_build_route(host, rule) for rule in host.rules],
    }
    manager = {
        "stat_prefix": host.name,
        "route_config": {"name": host.name, "virtual_hosts": [virtual_host]},
        "http_filters": [protos.extension_config("router", _ROUTER)],
    }
    api_listener = {"api_listener": protos.pack_any(_HTTP_CONNECTION_MANAGER, manager)}
    return protos.encode(listener.TYPE, {"name": name, "api_listener": api_listener})


def _build_route(host: VirtualHost, rule: RouteRule) -> dict[str, object]:
    match = {"safe_regex": {"regex": _CALLS}, "headers": [_header_matcher(test) for test in rule.headers]}
    route: dict[str, object] = {"name": f"{host.name}/{rule.name}", "match": match}
    weights: dict[str, int] = {}
    for target in rule.targets:
        # Several intervals of one target make one weight, since gRPC has no sticky routes.
        name = cluster_name(target.backend, InferenceProtocol.GRPC)
        weights[name] = weights.get(name, 0) + target.weight
    if rule.unavailable is not None or not any(weights.values()):
        # gRPC does not support this action, so it fails such calls as UNAVAILABLE.
        return route | {"direct_response": {"status": 503}}
    return route | {"route": _build_action(rule, weights)}


def _build_action(rule: RouteRule, weights: Mapping[str, int]) -> dict[str, object]:
    action: dict[str, object] = {
        "weighted_clusters": {
            "clusters": [{"name": name, "weight": {"value": weight}} for name, weight in weights.items()],
            "total_weight": {"value": sum(weights.values())},
        },
    }
    if rule.attempts:
        action["retry_policy"] = {"retry_on": "unavailable", "num_retries": {"value": rule.attempts}}
    return action


def _header_matcher(test: HeaderMatcher) -> dict[str, object]:
    match test.comparison:
        case Comparison.EXACT:
            return {"name": test.name, "exact_match": test.value}
        case Comparison.PREFIX:
            return {"name": test.name, "prefix_match": test.value}
        case Comparison.REGEX:
            return {"name": test.name, "safe_regex_match": {"regex": test.value}}


def encode_cluster(pool: EndpointPool) -> bytes:
    """Serialise the Cluster of a pool. Some gRPC versions do not support least-request, so pods are selected round-robin."""
    concurrent = pool.limits.concurrent if pool.limits else None
    limit = {"thresholds": [{"priority": "DEFAULT", "max_requests": {"value": concurrent}}]}
    return protos.encode(
        clusters.TYPE,
        {
            "name": cluster_name(pool.backend, InferenceProtocol.GRPC),
            "type": "EDS",
            "eds_cluster_config": {"eds_config": protos.ADS_CONFIG},
            "lb_policy": "ROUND_ROBIN",
            **({"circuit_breakers": limit} if concurrent else {}),
        },
    )


def encode_endpoints(pool: EndpointPool) -> bytes:
    """Serialise the ClusterLoadAssignment; gRPC uses spares, then the fallback's pods, if it can connect to no other."""
    spares = pool.spares.pods if pool.spares is not None else ()
    groups = [pods for pods in (pool.endpoints, spares, pool.fallback) if pods]
    return protos.encode(
        endpoints.TYPE,
        {
            "cluster_name": cluster_name(pool.backend, InferenceProtocol.GRPC),
            "endpoints": [_build_locality(pods, priority) for priority, pods in enumerate(groups)],
        },
    )


def _build_locality(pods: Sequence[Endpoint], priority: int) -> dict[str, object]:
    return {
        # gRPC ignores a locality without a weight.
        "locality": {"zone": "tidegate"},
        "load_balancing_weight": {"value": 1},
        "lb_endpoints": [_build_lb_endpoint(pod) for pod in pods],
        "priority": priority,
    }


def _build_lb_endpoint(pod: Endpoint) -> dict[str, object]:
    address = {"socket_address": {"address": pod.address, "port_value": pod.grpc_port}}
    weight = {"load_balancing_weight": {"value": pod.weight}} if pod.weight else {}
    return {"endpoint": {"address": address}, **weight}


def ignored_fields(access: ModelAccess) -> tuple[str, ...]:
    """Return the fields of the spec without effect on gRPC clients without a proxy, for status.proxylessIgnored.

    For an access with authentication it is only `auth`, because these clients get no routes of it.
    """
    if access.spec.auth is not None:
        return ("auth",)
    fields = [
        *_ignored_protection_fields(access.spec),
        *(field for route in access.spec.routes for field in _ignored_route_fields(route)),
    ]
    if len(fields) > _MAX_IGNORED:
        fields = [*fields[: _MAX_IGNORED - 1], "…"]
    return tuple(fields)


def _ignored_protection_fields(spec: ModelAccessSpec) -> Iterator[str]:
    protection = spec.protection
    if protection is None:
        return
    if protection.rate_limit is not None:
        yield "protection.rateLimit"
    if protection.max_pending is not None:
        yield "protection.maxPending"
    if protection.admission_control is not None:
        yield "protection.admissionControl"
    if protection.outlier is not None:
        # gRPC ejects by success rate and failure percentage (gRFC A50), not by failures in a row.
        yield "protection.outlier"


def _ignored_route_fields(route: Route) -> Iterator[str]:
    if route.value is not None:
        yield f"routes[{route.name}].value"
    yield f"routes[{route.name}].timeout"
    if route.sticky is not None:
        yield f"routes[{route.name}].sticky"
    if route.mirror:
        yield f"routes[{route.name}].mirror"
    if route.retry is not None and route.retry.attempts:
        yield f"routes[{route.name}].retry.budgetPercent"


def build_bootstrap(server: str, node: str, certificates: str | None = None) -> str:
    """Return the JSON for GRPC_XDS_BOOTSTRAP_CONFIG, or for the file that GRPC_XDS_BOOTSTRAP names.

    `server` is host:port. `certificates` is a folder on the client with ca.crt, tls.crt and tls.key, which gRPC reads again
    every minute (gRFC A65); None: plain text.
    """
    credentials: dict[str, object] = {"type": "insecure"}
    if certificates is not None:
        files = {
            "ca_certificate_file": f"{certificates}/ca.crt",
            "certificate_file": f"{certificates}/tls.crt",
            "private_key_file": f"{certificates}/tls.key",
        }
        credentials = {"type": "tls", "config": {**files, "refresh_interval": "60s"}}
    servers = [{"server_uri": server, "channel_creds": [credentials], "server_features": ["xds_v3"]}]
    return json.dumps({"xds_servers": servers, "node": {"id": node}}, indent=2)
