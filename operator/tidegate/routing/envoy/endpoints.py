"""Pools → Envoy endpoints (EDS): the addresses behind each cluster."""

from __future__ import annotations

from typing import Final

from tidegate.routing import protos
from tidegate.routing.envoy.clusters import cluster_name
from tidegate.routing.ir import Pool, Protocol

TYPE: Final = "envoy.config.endpoint.v3.ClusterLoadAssignment"


def encode(pool: Pool, protocol: Protocol) -> bytes:
    """The serialised ClusterLoadAssignment."""
    localities: list[dict[str, object]] = []
    if pool.endpoints:
        endpoints = [
            _lb_endpoint(
                endpoint.address, endpoint.grpc_port if protocol is Protocol.GRPC else endpoint.http_port
            )
            for endpoint in pool.endpoints
        ]
        localities.append({"locality": {}, "lb_endpoints": endpoints})
    return protos.encode(
        TYPE, {"cluster_name": cluster_name(pool.backend, protocol), "endpoints": localities}
    )


def _lb_endpoint(address: str, port: int) -> dict[str, object]:
    return {"endpoint": {"address": {"socket_address": {"address": address, "port_value": port}}}}
