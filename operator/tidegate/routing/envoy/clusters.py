"""Pools → Envoy clusters: two for each backend, one over HTTP/2 for gRPC and one over HTTP/1.1 for REST."""

from __future__ import annotations

from functools import cache
from typing import Final

from tidegate.routing import protos, wire
from tidegate.routing.fleet import BackendKey, BackendKind
from tidegate.routing.ir import Pool, Protocol

TYPE: Final = "envoy.config.cluster.v3.Cluster"

# Inside one cluster network: a node that does not answer by then is gone, and the retry on another host still fits a 1 s timeout.
CONNECT_TIMEOUT_S: Final = 0.25

# Protection is asked for in a ModelAccess; these only keep one broken backend from eating the proxy.
_MAX_CONNECTIONS: Final = 16_384
_MAX_REQUESTS: Final = 65_536
_MAX_RETRIES: Final = 1_024

# Below this many at once, retries are no storm yet; the percentage counts above it.
_MIN_RETRY_CONCURRENCY: Final = 16

_NAME_FIELD: Final = 1
_PREFIX: Final = {BackendKind.INFERENCE: "inference", BackendKind.FEATURE_COMPUTE: "features"}


def cluster_name(backend: BackendKey, protocol: Protocol) -> str:
    """Also the name of its endpoints (EDS): one EDS name for each cluster, since two that share one stall each other 15 s."""
    return f"{_PREFIX[backend.kind]}/{backend.namespace}/{backend.name}/{protocol}"


def parse_cluster_name(name: str) -> tuple[BackendKey, Protocol] | None:
    """What `cluster_name` was given; None for a name that it never gives."""
    try:
        prefix, namespace, backend, protocol = name.split("/")
        kind = next(kind for kind, known in _PREFIX.items() if known == prefix)
        return BackendKey(kind, namespace, backend), Protocol(protocol)
    except (ValueError, StopIteration):
        return None


def encode(pool: Pool, protocol: Protocol) -> bytes:
    """The serialised Cluster; its endpoints come apart, through EDS."""
    name = cluster_name(pool.backend, protocol)
    return wire.field(_NAME_FIELD, name.encode()) + _all_but_the_name(protocol, pool.retry_budget_percent)


@cache
def _all_but_the_name(protocol: Protocol, retry_budget_percent: int | None) -> bytes:
    """The rest of a serialised Cluster, alike in all clusters with the same protocol and budget."""
    return protos.encode(
        TYPE,
        {
            "type": "EDS",
            "eds_cluster_config": {"eds_config": protos.ADS},
            "connect_timeout": protos.seconds(CONNECT_TIMEOUT_S),
            "lb_policy": "LEAST_REQUEST",
            # Endpoints are the ready pods; panic routing to the rest has nothing to offer.
            "common_lb_config": {"healthy_panic_threshold": {"value": 0.0}},
            # A pod that leaves EDS keeps its requests in flight and gets no new ones; there is no active health check to wait for.
            "ignore_health_on_host_removal": True,
            "circuit_breakers": {"thresholds": [_thresholds(retry_budget_percent)]},
            "per_connection_buffer_limit_bytes": protos.wrapped(1 << 20),
            # A node that vanished without a word: probes find it in 20 s, not in the kernel's two hours.
            "upstream_connection_options": {
                "tcp_keepalive": {
                    "keepalive_probes": {"value": 2},
                    "keepalive_time": {"value": 10},
                    "keepalive_interval": {"value": 5},
                }
            },
            "typed_extension_protocol_options": {
                "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": _protocol_options(protocol)
            },
        },
    )


def _thresholds(retry_budget_percent: int | None) -> dict[str, object]:
    limits: dict[str, object] = {
        "max_connections": {"value": _MAX_CONNECTIONS},
        "max_pending_requests": {"value": _MAX_REQUESTS},
        "max_requests": {"value": _MAX_REQUESTS},
    }
    if retry_budget_percent is None:
        # Only requests of which nothing was sent are tried again then: they add no load, so they need no budget.
        return limits | {"max_retries": {"value": _MAX_RETRIES}}
    budget = {
        "budget_percent": {"value": float(retry_budget_percent)},
        "min_retry_concurrency": {"value": _MIN_RETRY_CONCURRENCY},
    }
    return limits | {"retry_budget": budget}


def _protocol_options(protocol: Protocol) -> dict[str, object]:
    if protocol is Protocol.GRPC:
        # No keep-alive pings: gRPC servers answer more than one in five minutes with GOAWAY (too_many_pings).
        http: dict[str, object] = {
            "http2_protocol_options": {
                "max_concurrent_streams": {"value": 1024},
                "initial_stream_window_size": {"value": 1 << 20},
                "initial_connection_window_size": {"value": 16 << 20},
            }
        }
    else:
        http = {"http_protocol_options": {}}
    return protos.packed(
        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
        {
            "explicit_http_config": http,
            "common_http_protocol_options": {"idle_timeout": protos.seconds(300)},
        },
    )
