"""The gateway's Envoy listeners, one without TLS and one with, hardened against clients, with scoped routes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tidegate.routing import envoy_names, protos
from tidegate.routing.envoy import (
    admission,
    allowlist,
    authentication,
    endpoints,
    grpc_counts,
    host_aliases,
    local_replies,
    rate_limit,
    routes,
    tls,
    tracing,
)
from tidegate.routing.hosts import ACCESS_HEADER, FEATURES_HEADER, HostKind

TYPE: Final = "envoy.config.listener.v3.Listener"
NAME: Final = "gateway"
TLS_NAME: Final = "gateway-tls"

_HTTP_CONNECTION_MANAGER: Final = (
    "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
)
_HEADER_MUTATION: Final = "envoy.extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation"

# Used only between two mutations of `_target_header`.
_FEATURES_TARGET: Final = f"{host_aliases.TARGET_HEADER}-features"

# Bytes that the proxy buffers for one connection. A larger message streams through under flow control;
# only a request that fits can be retried.
_BUFFER_BYTES: Final = 1 << 20

_MAX_HEADERS_KB: Final = 32

_HANDSHAKE_S: Final = 10


@dataclass(frozen=True, slots=True)
class ListenerSettings:
    """The settings that differ between gateways; the defaults are the chart's."""

    address: str = "0.0.0.0"  # noqa: S104  the gateway's purpose is to be reached
    port: int = 8080
    access_log: bool = False
    tls: tls.TlsSettings | None = None
    tracing: tracing.TracingSettings | None = None
    """None: no request is traced, and callers' trace headers pass unchanged."""


def encode_listeners(settings: ListenerSettings) -> Mapping[str, bytes]:
    """Serialise the Listeners by name; they differ only in port and TLS."""
    plain = protos.encode(TYPE, _build_listener(NAME, settings, settings.port, {}))
    if settings.tls is None:
        return {NAME: plain}
    chain = {
        "transport_socket": tls.transport_socket(settings.tls),
        # A client without a finished TLS handshake by then only occupies a connection.
        "transport_socket_connect_timeout": protos.seconds(_HANDSHAKE_S),
    }
    return {
        NAME: plain,
        TLS_NAME: protos.encode(TYPE, _build_listener(TLS_NAME, settings, settings.tls.port, chain)),
    }


def _build_listener(
    name: str, settings: ListenerSettings, port: int, chain: Mapping[str, object]
) -> dict[str, object]:
    manager = protos.extension_config(
        "envoy.filters.network.http_connection_manager",
        _HTTP_CONNECTION_MANAGER,
        _connection_manager(settings),
    )
    return {
        "name": name,
        "address": {"socket_address": {"address": settings.address, "port_value": port}},
        "per_connection_buffer_limit_bytes": protos.wrap_value(_BUFFER_BYTES),
        "filter_chains": [{**chain, "filters": [manager]}],
    }


def _connection_manager(settings: ListenerSettings) -> dict[str, object]:
    return {
        "stat_prefix": "gateway",
        "codec_type": "AUTO",
        # The listener accepts no connection until it has routes; by default it would accept them after 15 s.
        "scoped_routes": _scoped_routes(),
        "server_name": "tidegate",
        "server_header_transformation": "OVERWRITE",
        "early_header_mutation_extensions": [_target_header()],
        "local_reply_config": local_replies.local_reply_config(),
        "http_filters": [
            allowlist.rbac_filter(),
            *host_aliases.disabled_filters(),
            # Before the rate limit, so that rejected callers do not use it up.
            *authentication.disabled_filters(),
            rate_limit.disabled_filter(),
            # After the rate limit, so that its rejections do not count as failures of a target.
            admission.disabled_filter(),
            grpc_counts.disabled_filter(),
            protos.extension_config(
                "envoy.filters.http.router",
                "envoy.extensions.filters.http.router.v3.Router",
                # Envoy's own x-envoy-* headers go neither to the models nor to the clients.
                {"suppress_envoy_headers": True},
            ),
        ],
        **_client_trust(),
        **_path_normalisation(),
        **_client_limits(),
        **({} if settings.tracing is None else {"tracing": tracing.tracing_config(settings.tracing)}),
        "access_log": [
            _rejection_logger(),
            *([_access_log()] if settings.access_log else []),
        ],
    }


def _scoped_routes() -> dict[str, object]:
    name = {"name": host_aliases.TARGET_HEADER, "index": 0}
    return {
        "name": NAME,
        "scope_key_builder": {"fragments": [{"header_value_extractor": name}]},
        # Scopes contain their routes, so Envoy never uses this source.
        "rds_config_source": dict(protos.ADS_CONFIG),
        "scoped_rds": {
            "scoped_rds_config_source": {**protos.ADS_CONFIG, "initial_fetch_timeout": protos.seconds(0)}
        },
    }


def _target_header() -> dict[str, object]:
    """Return the mutations that write the request's target into `host_aliases.TARGET_HEADER`.

    The target is the ModelAccess; without it the FeatureCompute; without both `routes.HOSTS_SCOPE`.
    Before that, all x-envoy-* headers of the client are removed.
    Each mutation changes a header in place, so later mutations use the result of earlier ones.
    An empty header is not written at all, and so counts as absent.
    """

    def write_header(header: str, value: str, action: str) -> dict[str, object]:
        return {"append": {"header": {"key": header, "value": value}, "append_action": action}}

    target, features = host_aliases.TARGET_HEADER, _FEATURES_TARGET
    mutations = [
        {"remove_on_match": {"key_matcher": {"prefix": "x-envoy-"}}},
        {"remove": target},
        {"remove": features},
        write_header(target, f"%REQ({ACCESS_HEADER})%", "OVERWRITE_IF_EXISTS_OR_ADD"),
        write_header(target, f"{HostKind.ACCESS}/%REQ({target})%", "OVERWRITE_IF_EXISTS"),
        write_header(features, f"%REQ({FEATURES_HEADER})%", "OVERWRITE_IF_EXISTS_OR_ADD"),
        write_header(features, f"{HostKind.FEATURES}/%REQ({features})%", "OVERWRITE_IF_EXISTS"),
        write_header(target, f"%REQ({features})%", "ADD_IF_ABSENT"),
        {"remove": features},
        write_header(target, routes.HOSTS_SCOPE, "ADD_IF_ABSENT"),
    ]
    return protos.extension_config("tidegate.target", _HEADER_MUTATION, {"mutations": mutations})


def _client_trust() -> dict[str, object]:
    """Return settings that treat no client as internal, so that no client can set timeouts, retries or another path.

    An empty list would mean Envoy's default, which trusts loopback and RFC 1918: every client in a cluster.
    """
    no_address = {"address_prefix": "255.255.255.255", "prefix_len": {"value": 32}}
    return {
        "use_remote_address": {"value": True},
        "internal_address_config": {"cidr_ranges": [no_address]},
    }


def _path_normalisation() -> dict[str, object]:
    """Return settings that normalise paths and hosts before the allow-list and the routes read them."""
    return {
        "normalize_path": {"value": True},
        "merge_slashes": True,
        "path_with_escaped_slashes_action": "REJECT_REQUEST",
        "strip_any_host_port": True,
        "strip_trailing_host_dot": True,
    }


def _client_limits() -> dict[str, object]:
    """Return limits against clients that send slowly, hold connections or flood.

    The route's own idle timeout replaces the stream's.
    """
    return {
        "max_request_headers_kb": {"value": _MAX_HEADERS_KB},
        "request_headers_timeout": protos.seconds(10),
        "request_timeout": protos.seconds(60),
        "stream_idle_timeout": protos.seconds(60),
        "common_http_protocol_options": {
            "idle_timeout": protos.seconds(900),
            "max_headers_count": {"value": 100},
        },
        "http_protocol_options": {},
        "http2_protocol_options": {
            "max_concurrent_streams": {"value": 1024},
            "initial_stream_window_size": {"value": _BUFFER_BYTES},
            "initial_connection_window_size": {"value": 16 * _BUFFER_BYTES},
            "connection_keepalive": {
                "interval": protos.seconds(30),
                "timeout": protos.seconds(10),
            },
            "override_stream_error_on_invalid_http_message": {"value": True},
        },
    }


def _rejection_logger() -> dict[str, object]:
    """Return the access logger that counts rejected calls and writes no line.

    It counts responses with UNAUTHENTICATED or PERMISSION_DENIED, 401 or 403, requests that admission control rejected, and requests
    without a pod to answer them.
    The route's name begins with the name of the access; `reason` has the response code details, `via_upstream` if the model rejected the call.
    `envoy_cluster_name` is the cluster to which the request would have gone, by its name in statistics; empty without one.
    """
    tags = [
        {"name": "route", "value_format": "%ROUTE_NAME%"},
        {"name": "reason", "value_format": "%RESPONSE_CODE_DETAILS%"},
        # As Envoy calls it in its own counters.
        {"name": "envoy_cluster_name", "value_format": "%UPSTREAM_CLUSTER%"},
    ]
    counter_config = {
        "stat": {"name": envoy_names.REJECTIONS_COUNTER, "tags": tags},
        "value_fixed": {"value": 1},
    }
    callers = _match_grpc_status("UNAUTHENTICATED", "PERMISSION_DENIED")
    # The status is first, as it costs less than the expression. Envoy maps a 503 to UNAVAILABLE.
    shed = {
        "and_filter": {
            "filters": [_match_grpc_status("RESOURCE_EXHAUSTED", "UNAVAILABLE"), _match_not_served()]
        }
    }
    return {
        **protos.extension_config(
            "envoy.access_loggers.stats",
            "envoy.extensions.access_loggers.stats.v3.Config",
            {"stat_prefix": envoy_names.REJECTIONS_PREFIX, "counters": [counter_config]},
        ),
        "filter": {"or_filter": {"filters": [callers, shed]}},
    }


def _match_not_served() -> dict[str, object]:
    """Return an access log filter for admission control, and for routes without a pod, which answer directly."""
    kind = "envoy.extensions.access_loggers.filters.cel.v3.ExpressionFilter"
    expression = {
        "expression": f"response.code_details in ['{envoy_names.OVERLOAD_DETAILS}', '{envoy_names.NO_POD_DETAILS}']"
    }
    return {
        "extension_filter": protos.extension_config(
            "envoy.access_loggers.extension_filters.cel", kind, expression
        )
    }


def _match_grpc_status(*statuses: str) -> dict[str, object]:
    return {"grpc_status_filter": {"statuses": list(statuses)}}


def _access_log() -> dict[str, object]:
    """Return an access log with a line of JSON for each request.

    `decision` is the AllocationDecision that set the number of pods of the Inference.
    """
    fields = {
        "time": "%START_TIME%",
        "request": "%REQ(X-REQUEST-ID)%",
        "target": f"%REQ({ACCESS_HEADER}?:AUTHORITY)%",
        "path": "%REQ(:PATH)%",
        "route": "%ROUTE_NAME%",
        "status": "%RESPONSE_CODE%",
        "grpc_status": "%GRPC_STATUS%",
        "flags": "%RESPONSE_FLAGS%",
        "duration_ms": "%DURATION%",
        "upstream": "%UPSTREAM_HOST%",
        "envoy_cluster": "%UPSTREAM_CLUSTER%",
        "decision": f"%METADATA(UPSTREAM_HOST:{endpoints.METADATA_NAMESPACE}:{endpoints.DECISION_KEY})%",
    }
    return protos.extension_config(
        "envoy.access_loggers.stdout",
        "envoy.extensions.access_loggers.stream.v3.StdoutAccessLog",
        {"log_format": {"json_format": fields}},
    )
