"""Pools → Envoy endpoints (EDS): the addresses behind each cluster, written by hand since every pod that comes or goes writes one."""

from __future__ import annotations

from typing import Final

from tidegate.routing import wire
from tidegate.routing.envoy.clusters import cluster_name
from tidegate.routing.ir import Pool, Protocol

TYPE: Final = "envoy.config.endpoint.v3.ClusterLoadAssignment"

# Field numbers of ClusterLoadAssignment, LocalityLbEndpoints and SocketAddress; the messages between have one field each, number 1.
_CLUSTER_NAME: Final = 1
_ENDPOINTS: Final = 2
_LOCALITY: Final = wire.field(1, b"")
_LB_ENDPOINTS: Final = 2
_ADDRESS: Final = 2
_PORT_VALUE: Final = 3
_ONLY: Final = 1


def encode(pool: Pool, protocol: Protocol) -> bytes:
    """The serialised ClusterLoadAssignment."""
    name = wire.field(_CLUSTER_NAME, cluster_name(pool.backend, protocol).encode())
    if not pool.endpoints:
        return name
    endpoints = (
        _lb_endpoint(
            endpoint.address, endpoint.grpc_port if protocol is Protocol.GRPC else endpoint.http_port
        )
        for endpoint in pool.endpoints
    )
    return name + wire.field(_ENDPOINTS, _LOCALITY + wire.fields(_LB_ENDPOINTS, endpoints))


def _lb_endpoint(address: str, port: int) -> bytes:
    socket_address = wire.field(_ADDRESS, address.encode()) + wire.number_field(_PORT_VALUE, port)
    return wire.field(_ONLY, wire.field(_ONLY, wire.field(_ONLY, socket_address)))
