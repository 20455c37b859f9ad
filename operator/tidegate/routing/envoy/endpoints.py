"""Pools → Envoy endpoints (EDS), encoded without protobuf's classes, since every change of a pod encodes one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from tidegate.routing import wire
from tidegate.routing.fleet import Endpoint
from tidegate.routing.ir import EndpointPool, InferenceProtocol

TYPE: Final = "envoy.config.endpoint.v3.ClusterLoadAssignment"

METADATA_NAMESPACE: Final = "tidegate"
DECISION_KEY: Final = "decision"
"""The metadata key, below `METADATA`, of the AllocationDecision that set the number of pods."""

# Field numbers of ClusterLoadAssignment, LocalityLbEndpoints and SocketAddress; the messages between have one field each, number 1.
_CLUSTER_NAME: Final = 1
_ENDPOINTS: Final = 2
_LOCALITY: Final = wire.encode_field(1, b"")
_LB_ENDPOINTS: Final = 2
_ADDRESS: Final = 2
_PORT_VALUE: Final = 3
_METADATA: Final = 3
_LOAD_BALANCING_WEIGHT: Final = 4
_STRING_VALUE: Final = 3
_KEY, _VALUE = 1, 2
_ONLY: Final = 1
_POLICY: Final = 4
_OVERPROVISIONING_FACTOR: Final = 3
_PRIORITY: Final = 5

# One healthy pod of up to 1,000 keeps the fallback idle (percent, times the pods); by default the fallback would share the traffic from the first ejection on.
_ANY_POD: Final = 100_000


def encode_endpoints(cluster: str, pool: EndpointPool, protocol: InferenceProtocol) -> bytes:
    """Serialise the ClusterLoadAssignment of `cluster`; the fallback's pods have the second priority."""
    name = wire.encode_field(_CLUSTER_NAME, cluster.encode())
    first = (
        wire.encode_field(_ENDPOINTS, _encode_locality(pool.endpoints, protocol)) if pool.endpoints else b""
    )
    if not pool.fallback:
        return name + first
    second = _encode_locality(pool.fallback, protocol) + wire.encode_number(_PRIORITY, 1)
    policy = wire.encode_field(_OVERPROVISIONING_FACTOR, wire.encode_number(_ONLY, _ANY_POD))
    return name + first + wire.encode_field(_ENDPOINTS, second) + wire.encode_field(_POLICY, policy)


def _encode_locality(endpoints: Sequence[Endpoint], protocol: InferenceProtocol) -> bytes:
    pods = [
        _encode_lb_endpoint(
            endpoint.address,
            endpoint.grpc_port if protocol is InferenceProtocol.GRPC else endpoint.http_port,
            endpoint.decision,
            endpoint.weight,
        )
        for endpoint in endpoints
    ]
    return _LOCALITY + wire.encode_fields(_LB_ENDPOINTS, pods)


def _encode_lb_endpoint(address: str, port: int, decision: str, weight: int) -> bytes:
    socket_address = wire.encode_field(_ADDRESS, address.encode()) + _encode_port(port)
    endpoint = wire.encode_field(_ONLY, wire.encode_field(_ONLY, wire.encode_field(_ONLY, socket_address)))
    if decision:
        endpoint += _encode_metadata(decision)
    return endpoint + _encode_weight(weight) if weight else endpoint


@lru_cache(maxsize=1024)
def _encode_weight(weight: int) -> bytes:
    """Encode LbEndpoint.load_balancing_weight, a UInt32Value."""
    return wire.encode_field(_LOAD_BALANCING_WEIGHT, wire.encode_number(_ONLY, weight))


@lru_cache(maxsize=4096)
def _encode_metadata(decision: str) -> bytes:
    """Encode LbEndpoint.metadata: filter_metadata {tidegate: {decision: <name>}}.

    Each map is an entry of key and value.
    """
    value = wire.encode_field(_STRING_VALUE, decision.encode())
    fields = wire.encode_field(_KEY, DECISION_KEY.encode()) + wire.encode_field(_VALUE, value)
    struct = wire.encode_field(_ONLY, fields)
    filters = wire.encode_field(_KEY, METADATA_NAMESPACE.encode()) + wire.encode_field(_VALUE, struct)
    return wire.encode_field(_METADATA, wire.encode_field(_ONLY, filters))


@lru_cache(maxsize=1024)
def _encode_port(port: int) -> bytes:
    return wire.encode_number(_PORT_VALUE, port)
