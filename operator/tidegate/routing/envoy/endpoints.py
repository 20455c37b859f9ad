"""Pools → Envoy endpoints (EDS), encoded without protobuf's classes, since every change of a pod encodes one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from tidegate.routing import wire
from tidegate.routing.fleet import Endpoint
from tidegate.routing.ir import Pool, Protocol

TYPE: Final = "envoy.config.endpoint.v3.ClusterLoadAssignment"

METADATA: Final = "tidegate"
DECISION: Final = "decision"
"""The metadata key, below `METADATA`, of the AllocationDecision that set the number of pods."""

# Field numbers of ClusterLoadAssignment, LocalityLbEndpoints and SocketAddress; the messages between have one field each, number 1.
_CLUSTER_NAME: Final = 1
_ENDPOINTS: Final = 2
_LOCALITY: Final = wire.field(1, b"")
_LB_ENDPOINTS: Final = 2
_ADDRESS: Final = 2
_PORT_VALUE: Final = 3
_METADATA: Final = 3
_STRING_VALUE: Final = 3
_KEY, _VALUE = 1, 2
_ONLY: Final = 1
_POLICY: Final = 4
_OVERPROVISIONING_FACTOR: Final = 3
_PRIORITY: Final = 5

# One healthy pod of up to 1,000 keeps the fallback idle (percent, times the pods); by default the fallback would share the traffic from the first ejection on.
_ANY_POD: Final = 100_000


def encode(cluster: str, pool: Pool, protocol: Protocol) -> bytes:
    """Serialise the ClusterLoadAssignment of `cluster`; the fallback's pods have the second priority."""
    name = wire.field(_CLUSTER_NAME, cluster.encode())
    first = wire.field(_ENDPOINTS, _locality(pool.endpoints, protocol)) if pool.endpoints else b""
    if not pool.fallback:
        return name + first
    second = _locality(pool.fallback, protocol) + wire.number_field(_PRIORITY, 1)
    policy = wire.field(_OVERPROVISIONING_FACTOR, wire.number_field(_ONLY, _ANY_POD))
    return name + first + wire.field(_ENDPOINTS, second) + wire.field(_POLICY, policy)


def _locality(endpoints: Sequence[Endpoint], protocol: Protocol) -> bytes:
    pods = [
        _lb_endpoint(
            endpoint.address,
            endpoint.grpc_port if protocol is Protocol.GRPC else endpoint.http_port,
            endpoint.decision,
        )
        for endpoint in endpoints
    ]
    return _LOCALITY + wire.fields(_LB_ENDPOINTS, pods)


def _lb_endpoint(address: str, port: int, decision: str) -> bytes:
    socket_address = wire.field(_ADDRESS, address.encode()) + _port(port)
    endpoint = wire.field(_ONLY, wire.field(_ONLY, wire.field(_ONLY, socket_address)))
    return endpoint + _metadata(decision) if decision else endpoint


@lru_cache(maxsize=4096)
def _metadata(decision: str) -> bytes:
    """Encode LbEndpoint.metadata: filter_metadata {tidegate: {decision: <name>}}.

    Each map is an entry of key and value.
    """
    value = wire.field(_STRING_VALUE, decision.encode())
    fields = wire.field(_KEY, DECISION.encode()) + wire.field(_VALUE, value)
    struct = wire.field(_ONLY, fields)
    filters = wire.field(_KEY, METADATA.encode()) + wire.field(_VALUE, struct)
    return wire.field(_METADATA, wire.field(_ONLY, filters))


@lru_cache(maxsize=1024)
def _port(port: int) -> bytes:
    return wire.number_field(_PORT_VALUE, port)
