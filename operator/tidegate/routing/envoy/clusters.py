"""Pools → Envoy clusters: two for each pool, one over HTTP/2 for gRPC and one over HTTP/1.1 for REST."""

from __future__ import annotations

from functools import cache
from typing import Final

from tidegate.routing import protos, wire
from tidegate.routing.envoy_names import cluster_name
from tidegate.routing.fleet import BackendKey, BackendKind
from tidegate.routing.ir import (
    EndpointPool,
    InferenceProtocol,
    OutlierEjection,
    PoolKey,
    PoolLimits,
    PoolRole,
)

TYPE: Final = "envoy.config.cluster.v3.Cluster"

# Inside one cluster's network a node that does not answer by then is gone, and a retry on another host still fits a timeout of 1 s.
CONNECT_TIMEOUT_S: Final = 0.25

# A ModelAccess sets its protection; without it, these limits only keep a broken backend from exhausting the proxy.
_MAX_CONNECTIONS: Final = 16_384
_MAX_REQUESTS: Final = 65_536
_MAX_RETRIES: Final = 1_024

# The percentage of the budget applies only above this many concurrent retries.
_MIN_RETRY_CONCURRENCY: Final = 16

_EJECTION_CHECK_S: Final = 0.5

# A pod that has vanished is left out within 3 s: two checks, and the pause before each.
_CHECK_INTERVAL_S: Final = 0.5
# In a cluster that never had a connection, as that of the protocol that no client uses; its first request may be 5 s too early.
_UNUSED_CHECK_INTERVAL_S: Final = 5.0
_CHECK_TIMEOUT_S: Final = 1.0
_FAILED_CHECKS: Final = 2
# Checks of pods that are only slow may fail on all of them at once; below this part of healthy pods, all get requests.
# Envoy applies it only while the pods of all priorities together serve less than 100 %. It compares one priority at a time, so
# one healthy pod of up to 100 is enough for the others to be left out. Without checks, the endpoints are the ready pods.
_CHECKED_PANIC_PERCENT: Final = 1.0
# What was sent to it fails a little later, so that retries find it left out: health checks end no request in flight.
_SILENCE_S: Final = 4
_IPPROTO_TCP: Final = 6
_TCP_USER_TIMEOUT: Final = 18

_NAME_FIELD: Final = 1
_ALT_STAT_NAME_FIELD: Final = 28


def encode_cluster(name: str, pool: EndpointPool, protocol: InferenceProtocol) -> bytes:
    """Serialise the Cluster with a name from `cluster_name`; its endpoints are separate, through EDS."""
    name_field = wire.encode_field(_NAME_FIELD, name.encode())
    rest = _encode_settings(protocol, pool.retry_budget_percent, pool.limits, pool.ejection, pool.health_path)
    return name_field + _encode_stat_name(pool.backend, protocol) + rest


def _encode_stat_name(pool: PoolKey, protocol: InferenceProtocol) -> bytes:
    """Encode the name under which statistics are counted: that of the target's Inference, whatever the access.

    Mirrored requests and those of a release are counted separately.
    """
    if isinstance(pool, BackendKey) or pool.role is not PoolRole.TARGET:
        return b""
    backend = BackendKey(BackendKind.INFERENCE, pool.inference_key.namespace, pool.inference_key.name)
    return wire.encode_field(_ALT_STAT_NAME_FIELD, cluster_name(backend, protocol).encode())


@cache
def _encode_settings(
    protocol: InferenceProtocol,
    retry_budget_percent: int | None,
    limits: PoolLimits | None,
    ejection: OutlierEjection | None,
    health_path: str,
) -> bytes:
    """Serialise the rest of a Cluster, equal for all with the same protocol, budget, protection and health check."""
    return protos.encode(
        TYPE,
        {
            "type": "EDS",
            "eds_cluster_config": {"eds_config": protos.ADS_CONFIG},
            "connect_timeout": protos.seconds(CONNECT_TIMEOUT_S),
            "lb_policy": "LEAST_REQUEST",
            "common_lb_config": {
                "healthy_panic_threshold": {"value": _CHECKED_PANIC_PERCENT if health_path else 0.0}
            },
            # A pod that leaves EDS finishes its requests in flight and gets no new ones, whatever a health check found last.
            "ignore_health_on_host_removal": True,
            "circuit_breakers": {"thresholds": [_circuit_breaker_thresholds(retry_budget_percent, limits)]},
            **({"outlier_detection": _outlier_detection(ejection, bool(health_path))} if ejection else {}),
            # Probes detect a vanished node in 20 s instead of the kernel's two hours; with spares, in 4 s.
            **(
                {**_check_health(health_path), **_detect_silence(_SILENCE_S - 2, 1)}
                if health_path
                else _detect_silence(10, 5)
            ),
            **({"upstream_bind_config": _limit_silence(_SILENCE_S)} if health_path else {}),
            "per_connection_buffer_limit_bytes": protos.wrap_value(1 << 20),
            "typed_extension_protocol_options": {
                "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": _protocol_options(protocol)
            },
        },
    )


def _circuit_breaker_thresholds(
    retry_budget_percent: int | None, limits: PoolLimits | None
) -> dict[str, object]:
    concurrent = limits.concurrent if limits else None
    pending = limits.pending if limits else None
    thresholds: dict[str, object] = {
        "max_connections": {"value": _MAX_CONNECTIONS},
        "max_pending_requests": {"value": pending or _MAX_REQUESTS},
        "max_requests": {"value": concurrent or _MAX_REQUESTS},
    }
    if retry_budget_percent is None:
        # Only requests that were not sent at all are retried then: they add no load, so they need no budget.
        return thresholds | {"max_retries": {"value": _MAX_RETRIES}}
    budget = {
        "budget_percent": {"value": float(retry_budget_percent)},
        "min_retry_concurrency": {"value": _MIN_RETRY_CONCURRENCY},
    }
    return thresholds | {"retry_budget": budget}


def _check_health(path: str) -> dict[str, object]:
    """Return the check of every pod of an Inference with spares: Triton says whether its model is ready.

    A node that is gone answers nothing, and Kubernetes reports it after 50 s. So the pods are asked.
    """
    check = {
        "timeout": protos.seconds(_CHECK_TIMEOUT_S),
        "interval": protos.seconds(_CHECK_INTERVAL_S),
        "no_traffic_interval": protos.seconds(_UNUSED_CHECK_INTERVAL_S),
        "unhealthy_threshold": {"value": _FAILED_CHECKS},
        "healthy_threshold": {"value": 1},
        "http_health_check": {"path": path},
    }
    return {"health_checks": [check], "close_connections_on_host_health_failure": True}


def _detect_silence(after_s: int, interval_s: int) -> dict[str, object]:
    """Return the options by which a connection without traffic ends, two probes after its host is gone."""
    probes = {
        "keepalive_probes": {"value": 2},
        "keepalive_time": {"value": after_s},
        "keepalive_interval": {"value": interval_s},
    }
    return {"upstream_connection_options": {"tcp_keepalive": probes}}


def _limit_silence(seconds: int) -> dict[str, object]:
    """Return the options by which a connection ends whose host does not acknowledge sent data for this time.

    So does one to a live host that reads nothing: with a closed receive window, all requests of an HTTP/2 connection end.
    Checks leave such a pod out a second earlier, and no limit is known for how long pods stall.

    There are no probes while something is not acknowledged, and the kernel would send that again for a quarter of an hour.
    """
    option = {
        "description": "TCP_USER_TIMEOUT",
        "level": _IPPROTO_TCP,
        "name": _TCP_USER_TIMEOUT,
        "int_value": 1000 * seconds,
        "state": "STATE_PREBIND",
    }
    return {"socket_options": [option]}


def _outlier_detection(ejection: OutlierEjection, is_checked: bool) -> dict[str, object]:
    """Return outlier detection by failures in a row only, without Envoy's default comparison of success rates.

    With health checks, a passed one does not end the ejection of a pod that fails requests, as it does by default.
    """
    for_its_time = {"successful_active_health_check_uneject_host": {"value": False}}
    every_pod = {"max_ejection_percent": {"value": 100}}
    half = {"max_ejection_percent": {"value": 50}}
    return {
        "consecutive_5xx": {"value": ejection.failures},
        "enforcing_success_rate": {"value": 0},
        "base_ejection_time": protos.duration(ejection.duration),
        # By default each further ejection would last longer.
        "max_ejection_time": protos.duration(ejection.duration),
        # How often Envoy ends ejections.
        "interval": protos.seconds(_EJECTION_CHECK_S),
        **(every_pod if ejection.all_pods else half),
        **(for_its_time if is_checked else {}),
    }


def _protocol_options(protocol: InferenceProtocol) -> dict[str, object]:
    if protocol is InferenceProtocol.GRPC:
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
    return protos.pack_any(
        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
        {
            "explicit_http_config": http,
            "common_http_protocol_options": {"idle_timeout": protos.seconds(300)},
        },
    )
