"""Pools → clusters and endpoints as gRPC reads them (gRFC A27; A32 for the limit of concurrent requests)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tidegate.routing import protos
from tidegate.routing.envoy import clusters, endpoints
from tidegate.routing.envoy.clusters import cluster_name
from tidegate.routing.fleet import Endpoint
from tidegate.routing.ir import EndpointPool, InferenceProtocol

TYPE: Final = clusters.TYPE
ENDPOINTS_TYPE: Final = endpoints.TYPE


def encode_cluster(pool: EndpointPool) -> bytes:
    """Serialise the Cluster of a pool. Not every gRPC supports least-request, so pods are selected round-robin."""
    concurrent = pool.limits.concurrent if pool.limits else None
    limit = {"thresholds": [{"priority": "DEFAULT", "max_requests": {"value": concurrent}}]}
    return protos.encode(
        TYPE,
        {
            "name": cluster_name(pool.backend, InferenceProtocol.GRPC),
            "type": "EDS",
            "eds_cluster_config": {"eds_config": protos.ADS_CONFIG},
            "lb_policy": "ROUND_ROBIN",
            **({"circuit_breakers": limit} if concurrent else {}),
        },
    )


def encode_endpoints(pool: EndpointPool) -> bytes:
    """Serialise the ClusterLoadAssignment; gRPC uses the fallback's pods if it can connect to no other."""
    groups = [pods for pods in (pool.endpoints, pool.fallback) if pods]
    return protos.encode(
        ENDPOINTS_TYPE,
        {
            "cluster_name": cluster_name(pool.backend, InferenceProtocol.GRPC),
            "endpoints": [_build_locality(pods, priority) for priority, pods in enumerate(groups)],
        },
    )


def _build_locality(pods: Sequence[Endpoint], priority: int) -> dict[str, object]:
    addresses = ({"socket_address": {"address": pod.address, "port_value": pod.grpc_port}} for pod in pods)
    return {
        # gRPC ignores a locality without a weight.
        "locality": {"zone": "tidegate"},
        "load_balancing_weight": {"value": 1},
        "lb_endpoints": [{"endpoint": {"address": address}} for address in addresses],
        "priority": priority,
    }
