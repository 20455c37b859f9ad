"""The bootstrap file of an Envoy gateway: the address of its xDS server, and nothing about the models.

`python -m tidegate.routing.bootstrap` prints the chart's; `--service-node` on Envoy's command line names the proxy.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import yaml

from tidegate.routing.envoy_names import SHARES_LAYER

XDS_CLUSTER: Final = "tidegate-xds"
XDS_SERVER_NAME: Final = "tidegate-xds"
"""The DNS name in the xDS servers' certificate, at any address."""

COLLECTOR_CLUSTER: Final = "tidegate-collector"
TRACES_PATH: Final = "/v1/traces"
"""The path of every receiver of OTLP over HTTP."""
"""The cluster of the receiver of spans, if there is one. No route leads to it."""

_CERTIFICATE: Final = "xds-certificate"
_AUTHORITY: Final = "xds-authority"
_ADMIN_CLUSTER: Final = "admin"
_TYPE: Final = "type.googleapis.com/"
_AUTHORIZATION: Final = "collector-authorization"
_PROMETHEUS_PATH: Final = "/stats/prometheus"
_READY_PATH: Final = "/ready"
# The same statistics with times in full resolution, for the analysis of a release.
STATS_PATH: Final = "/stats"

# Without routes a gateway must not become ready; by default it stops waiting for the xDS server after 15 s.
_ADS: Final = {"ads": {}, "resource_api_version": "V3", "initial_fetch_timeout": "0s"}


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Folders on the gateway.

    `keys` has ca.crt, tls.crt and tls.key, `secrets` the SDS files that `build_sds_files` makes.
    """

    keys: str
    secrets: str


@dataclass(frozen=True, slots=True)
class BootstrapSettings:
    """Addresses and limits of one gateway.

    Ports are 1 to 65535; `metrics_port` None leaves the metrics listener out.
    `tls` makes it show a certificate to its xDS server, and verify the server's.
    `memory_bytes` is the heap at which the gateway is full: about three quarters of the container's limit.
    """

    xds_host: str = "tidegate-xds"
    xds_port: int = 18000
    admin_port: int = 9901
    metrics_address: str = "0.0.0.0"  # noqa: S104  Prometheus scrapes it from outside the pod
    metrics_port: int | None = 9902
    max_connections: int = 50_000
    memory_bytes: int = 768 << 20
    tls: TlsFiles | None = None


@dataclass(frozen=True, slots=True)
class CollectorSettings:
    """The receiver of spans, and files on the gateway.

    `authorities` is for TLS, `authorization` is the content of the header of that name.
    """

    host: str
    port: int
    authorities: str = ""
    authorization: str = ""


def collector_bootstrap(settings: CollectorSettings) -> dict[str, object]:
    """Return the addition to a gateway's bootstrap (Envoy's --config-yaml) with the cluster that receives spans.

    It is part of the bootstrap and not of xDS, since a resource that names a missing file would be a NACK.
    """
    cluster: dict[str, object] = {
        "name": COLLECTOR_CLUSTER,
        "type": "STRICT_DNS",
        "connect_timeout": "2s",
        "dns_lookup_family": "V4_PREFERRED",
        "load_assignment": _load_assignment(COLLECTOR_CLUSTER, settings.host, settings.port),
        # Spans must not queue in the proxy while the collector is away.
        "circuit_breakers": {"thresholds": [{"max_pending_requests": 16, "max_requests": 16}]},
    }
    if settings.authorities:
        cluster["transport_socket"] = _collector_tls(settings)
    if not settings.authorization:
        return {"static_resources": {"clusters": [cluster]}}
    cluster["typed_extension_protocol_options"] = _authorization_options()
    secret = {"name": _AUTHORIZATION, "generic_secret": {"secret": {"filename": settings.authorization}}}
    return {"static_resources": {"clusters": [cluster], "secrets": [secret]}}


def _collector_tls(settings: CollectorSettings) -> dict[str, object]:
    server = {"san_type": "DNS", "matcher": {"exact": settings.host}}
    context = {
        "trusted_ca": {"filename": settings.authorities},
        "match_typed_subject_alt_names": [server],
    }
    return {
        "name": "envoy.transport_sockets.tls",
        "typed_config": {
            "@type": f"{_TYPE}envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
            "sni": settings.host,
            "common_tls_context": {
                "tls_params": {"tls_maximum_protocol_version": "TLSv1_3"},
                "validation_context": context,
            },
        },
    }


def _authorization_options() -> dict[str, object]:
    """Return protocol options that add the header Authorization to all requests, from a secret of the bootstrap."""
    generic = f"{_TYPE}envoy.extensions.http.injected_credentials.generic.v3.Generic"
    injector = {
        "@type": f"{_TYPE}envoy.extensions.filters.http.credential_injector.v3.CredentialInjector",
        "credential": {
            "name": "envoy.http.injected_credentials.generic",
            "typed_config": {"@type": generic, "credential": {"name": _AUTHORIZATION}},
        },
    }
    codec = f"{_TYPE}envoy.extensions.filters.http.upstream_codec.v3.UpstreamCodec"
    return {
        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
            "@type": f"{_TYPE}envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
            "explicit_http_config": {"http_protocol_options": {}},
            "http_filters": [
                {"name": "envoy.filters.http.credential_injector", "typed_config": injector},
                {"name": "envoy.filters.http.upstream_codec", "typed_config": {"@type": codec}},
            ],
        }
    }


def build_bootstrap(settings: BootstrapSettings) -> dict[str, object]:
    """Return Envoy's bootstrap as the mapping in its YAML."""
    static: dict[str, object] = {"clusters": [_xds_cluster(settings)]}
    if settings.metrics_port is not None:
        static = {
            "listeners": [_metrics_listener(settings.metrics_address, settings.metrics_port)],
            "clusters": [_xds_cluster(settings), _admin_cluster(settings.admin_port)],
        }
    return {
        # Only --service-node differs between proxies; the cluster name is Envoy's own field and must not be empty.
        "node": {"cluster": "tidegate-gateway"},
        "admin": {"address": _socket_address("127.0.0.1", settings.admin_port)},
        "dynamic_resources": {
            "ads_config": {
                # The xDS servers serve the other protocol, GRPC, to gRPC clients only.
                "api_type": "DELTA_GRPC",
                "transport_api_version": "V3",
                "set_node_on_first_message_only": True,
                "grpc_services": [
                    {
                        "envoy_grpc": {
                            "cluster_name": XDS_CLUSTER,
                            # Seconds without an xDS server do no harm; minutes of backoff after it is back would.
                            "retry_policy": {
                                "retry_back_off": {"base_interval": "0.25s", "max_interval": "5s"}
                            },
                        }
                    }
                ],
            },
            "cds_config": _ADS,
            "lds_config": _ADS,
        },
        "static_resources": static,
        "overload_manager": _overload_manager(settings),
        "layered_runtime": {"layers": [{"name": "static", "static_layer": {}}, _shares_layer()]},
    }


def _shares_layer() -> dict[str, object]:
    """Return the layer of admitted shares; an xDS server that does not have it delays the start of a gateway by 1 s."""
    return {
        "name": SHARES_LAYER,
        "rtds_layer": {"name": SHARES_LAYER, "rtds_config": {**_ADS, "initial_fetch_timeout": "1s"}},
    }


def render_bootstrap(settings: BootstrapSettings) -> str:
    """Return the bootstrap as YAML."""
    header = "# Generated by python -m tidegate.routing.bootstrap; do not edit.\n"
    return header + yaml.safe_dump(build_bootstrap(settings), sort_keys=False, width=110)


def build_sds_files(keys: str) -> dict[str, dict[str, object]]:
    """Return SDS files by name, from which Envoy reads its certificate and its authority.

    Envoy reads them again when folder `keys` changes.
    """
    watched = {"watched_directory": {"path": keys}}
    certificate = {
        "certificate_chain": {"filename": f"{keys}/tls.crt"},
        "private_key": {"filename": f"{keys}/tls.key"},
    }
    server = {"san_type": "DNS", "matcher": {"exact": XDS_SERVER_NAME}}
    authority = {"trusted_ca": {"filename": f"{keys}/ca.crt"}, "match_typed_subject_alt_names": [server]}
    secret = f"{_TYPE}envoy.extensions.transport_sockets.tls.v3.Secret"

    def sds_file(name: str, kind: str, fields: Mapping[str, object]) -> dict[str, object]:
        return {"resources": [{"@type": secret, "name": name, kind: {**fields, **watched}}]}

    return {
        _CERTIFICATE: sds_file(_CERTIFICATE, "tls_certificate", certificate),
        _AUTHORITY: sds_file(_AUTHORITY, "validation_context", authority),
    }


def _transport_socket(files: TlsFiles) -> dict[str, object]:
    def by_file(name: str) -> dict[str, object]:
        source = {"path": f"{files.secrets}/{name}.yaml"}
        return {"name": name, "sds_config": {"path_config_source": source, "resource_api_version": "V3"}}

    context = {
        # As a client Envoy goes no higher than 1.2 by itself.
        "tls_params": {
            "tls_minimum_protocol_version": "TLSv1_3",
            "tls_maximum_protocol_version": "TLSv1_3",
        },
        "alpn_protocols": ["h2"],
        "tls_certificate_sds_secret_configs": [by_file(_CERTIFICATE)],
        "validation_context_sds_secret_config": by_file(_AUTHORITY),
    }
    return {
        "name": "envoy.transport_sockets.tls",
        "typed_config": {
            "@type": f"{_TYPE}envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
            "sni": XDS_SERVER_NAME,
            "common_tls_context": context,
        },
    }


def _xds_cluster(settings: BootstrapSettings) -> dict[str, object]:
    return {
        **({"transport_socket": _transport_socket(settings.tls)} if settings.tls else {}),
        "name": XDS_CLUSTER,
        "type": "STRICT_DNS",
        "connect_timeout": "1s",
        "dns_lookup_family": "V4_PREFERRED",
        "load_assignment": _load_assignment(XDS_CLUSTER, settings.xds_host, settings.xds_port),
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": f"{_TYPE}envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                "explicit_http_config": {
                    "http2_protocol_options": {
                        # Detects a server that vanished without closing the connection in 15 s.
                        "connection_keepalive": {"interval": "10s", "timeout": "5s"},
                        "initial_stream_window_size": 16 << 20,
                        "initial_connection_window_size": 16 << 20,
                    }
                },
            }
        },
    }


def _admin_cluster(admin_port: int) -> dict[str, object]:
    return {
        "name": _ADMIN_CLUSTER,
        "type": "STATIC",
        "connect_timeout": "1s",
        "load_assignment": _load_assignment(_ADMIN_CLUSTER, "127.0.0.1", admin_port),
    }


def _metrics_listener(address: str, port: int) -> dict[str, object]:
    """Return a listener with three read-only pages of the admin interface, which itself stays on loopback."""
    manager: dict[str, object] = {
        "@type": f"{_TYPE}envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "metrics",
        "normalize_path": True,
        "merge_slashes": True,
        "path_with_escaped_slashes_action": "REJECT_REQUEST",
        "request_headers_timeout": "5s",
        "stream_idle_timeout": "30s",
        "route_config": {
            "name": "metrics",
            "virtual_hosts": [
                {
                    "name": "metrics",
                    "domains": ["*"],
                    "routes": [
                        {
                            "match": {
                                "path": path,
                                "headers": [{"name": ":method", "string_match": {"exact": "GET"}}],
                            },
                            "route": {"cluster": _ADMIN_CLUSTER, "timeout": "10s"},
                        }
                        for path in (_PROMETHEUS_PATH, STATS_PATH, _READY_PATH)
                    ],
                }
            ],
        },
        "http_filters": [
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": f"{_TYPE}envoy.extensions.filters.http.router.v3.Router"},
            }
        ],
    }
    return {
        "name": "metrics",
        "address": _socket_address(address, port),
        # A gateway that sheds load must still answer scrapes and readiness probes.
        "bypass_overload_manager": True,
        "ignore_global_conn_limit": True,
        "filter_chains": [
            {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
        ],
    }


def _overload_manager(settings: BootstrapSettings) -> dict[str, object]:
    """Return limits that shed load before the kernel kills the proxy.

    They shed idle connections first, then new requests, then new connections.
    """
    # Not cgroup_memory: it counts the page cache, which the kernel gives back by itself.
    memory = "envoy.resource_monitors.fixed_heap"
    connections = "envoy.resource_monitors.global_downstream_max_connections"

    def overload_action(name: str, threshold: float) -> dict[str, object]:
        trigger = {"name": memory, "threshold": {"value": threshold}}
        return {"name": f"envoy.overload_actions.{name}", "triggers": [trigger]}

    return {
        "refresh_interval": "0.25s",
        "resource_monitors": [
            {
                "name": memory,
                "typed_config": {
                    "@type": f"{_TYPE}envoy.extensions.resource_monitors.fixed_heap.v3.FixedHeapConfig",
                    "max_heap_size_bytes": settings.memory_bytes,
                },
            },
            {
                "name": connections,
                "typed_config": {
                    "@type": f"{_TYPE}envoy.extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig",
                    "max_active_downstream_connections": settings.max_connections,
                },
            },
        ],
        "actions": [
            overload_action("shrink_heap", 0.85),
            overload_action("disable_http_keepalive", 0.90),
            overload_action("stop_accepting_requests", 0.95),
            overload_action("stop_accepting_connections", 0.97),
        ],
    }


def _load_assignment(cluster: str, host: str, port: int) -> dict[str, object]:
    endpoint = {"endpoint": {"address": _socket_address(host, port)}}
    return {"cluster_name": cluster, "endpoints": [{"lb_endpoints": [endpoint]}]}


def _socket_address(host: str, port: int) -> dict[str, object]:
    return {"socket_address": {"address": host, "port_value": port}}


def main(arguments: Sequence[str]) -> None:
    """Print the bootstrap for the addresses on the command line."""
    defaults = BootstrapSettings()
    parser = argparse.ArgumentParser(prog="python -m tidegate.routing.bootstrap", description=main.__doc__)
    parser.add_argument("--xds-host", default=defaults.xds_host, help="the xDS server's host name")
    parser.add_argument("--xds-port", type=int, default=defaults.xds_port)
    parser.add_argument("--admin-port", type=int, default=defaults.admin_port, help="on 127.0.0.1 only")
    parser.add_argument("--metrics-port", type=int, default=defaults.metrics_port)
    parser.add_argument("--max-connections", type=int, default=defaults.max_connections)
    parser.add_argument("--memory-bytes", type=int, default=defaults.memory_bytes, help="heap, at most")
    parsed = parser.parse_args(arguments)
    sys.stdout.write(render_bootstrap(BootstrapSettings(**vars(parsed))))


if __name__ == "__main__":
    main(sys.argv[1:])
