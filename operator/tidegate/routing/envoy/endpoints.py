"""Pools → Envoy endpoints (EDS), encoded without protobuf's classes, since every change of a pod encodes one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final

from tidegate.routing import wire
from tidegate.routing.fleet import FULL_WEIGHT, Endpoint, SparePods
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
_HEALTH_CHECK: Final = 2

# One healthy pod of up to 1,000 keeps the fallback idle (percent, times the pods); by default the fallback would share the traffic from the first ejection on.
_ANY_POD: Final = 100_000
# A priority gets the share of its pods that are healthy, and the next one the rest.
_NO_MORE: Final = 100


def encode_endpoints(cluster: str, pool: EndpointPool, protocol: InferenceProtocol) -> bytes:
    """Serialise the ClusterLoadAssignment of `cluster`: pods, then shared spares, then the fallback's pods.

    Spares get the share of the pods that are missing or unhealthy. Of missing pods, each spare replaces one.
    """
    name = wire.encode_field(_CLUSTER_NAME, cluster.encode())
    groups, factor = _group_pods(pool)
    filled = [pods for pods in groups if pods]
    checked = bool(pool.health_path)
    localities = [
        _encode_locality(pods, protocol, checked=checked)
        + (wire.encode_number(_PRIORITY, priority) if priority else b"")
        for priority, pods in enumerate(filled)
    ]
    assignment = name + wire.encode_fields(_ENDPOINTS, localities)
    if len(filled) < 2:
        return assignment
    policy = wire.encode_field(_OVERPROVISIONING_FACTOR, wire.encode_number(_ONLY, factor))
    return assignment + wire.encode_field(_POLICY, policy)


def _group_pods(pool: EndpointPool) -> tuple[Sequence[Sequence[Endpoint]], int]:
    """Return the pods of each priority, and the overprovisioning factor in percent.

    Envoy sends each priority its healthy share of the requests, times the factor, less what the ones before it get. It scales the
    shares of all priorities up to 100 % together, so the first one cannot get less than half; then two groups become equals.
    """
    own, spares, fallback = pool.endpoints, pool.spares, pool.fallback
    if spares is None:
        return [own, fallback], _ANY_POD
    replaced = spares.count_replaced(len(own))
    if not own:
        if fallback and replaced < spares.needed:
            return [_join_fallback(spares, replaced, fallback)], _ANY_POD
        return [spares.pods, fallback], _NO_MORE
    # With a priority of their own, unhealthy spares would leave their share to the fallback, although own pods are healthy.
    if replaced > len(own) or (replaced and fallback):
        return [_join_spares(own, spares), fallback], _ANY_POD
    return [own, spares.pods, fallback], int(_NO_MORE * len(own) / (len(own) + replaced))


def _join_fallback(spares: SparePods, replaced: float, fallback: Sequence[Endpoint]) -> tuple[Endpoint, ...]:
    """Return spares and a fallback's pods as equals: spares get `replaced` of the needed parts, the others the rest."""
    scale = FULL_WEIGHT * len(fallback)
    spare_weight = max(round(scale * replaced / len(spares.pods)), 1)
    rest = (spares.needed - replaced) / sum(pod.weight or FULL_WEIGHT for pod in fallback)
    return (
        *(replace(pod, weight=spare_weight) for pod in spares.pods),
        *(replace(pod, weight=max(round(scale * rest * (pod.weight or FULL_WEIGHT)), 1)) for pod in fallback),
    )


def _join_spares(own: Sequence[Endpoint], spares: SparePods) -> tuple[Endpoint, ...]:
    """Return pods and spares as equals, of which the spares together have the weight of the pods that they replace."""
    replaced = spares.count_replaced(len(own))
    return (
        *(replace(pod, weight=(pod.weight or FULL_WEIGHT) * len(spares.pods)) for pod in own),
        *(replace(pod, weight=round(FULL_WEIGHT * replaced)) for pod in spares.pods),
    )


def _encode_locality(endpoints: Sequence[Endpoint], protocol: InferenceProtocol, *, checked: bool) -> bytes:
    pods = [_encode_lb_endpoint(endpoint, protocol, checked=checked) for endpoint in endpoints]
    return _LOCALITY + wire.encode_fields(_LB_ENDPOINTS, pods)


def _encode_lb_endpoint(pod: Endpoint, protocol: InferenceProtocol, *, checked: bool) -> bytes:
    """Encode a pod; `checked`: the gateways ask its REST port whether it answers."""
    port = pod.grpc_port if protocol is InferenceProtocol.GRPC else pod.http_port
    socket_address = wire.encode_field(_ADDRESS, pod.address.encode()) + _encode_port(port)
    endpoint = wire.encode_field(_ONLY, wire.encode_field(_ONLY, socket_address))
    if checked:
        endpoint += wire.encode_field(_HEALTH_CHECK, wire.encode_number(_ONLY, pod.http_port))
    lb_endpoint = wire.encode_field(_ONLY, endpoint)
    if pod.decision:
        lb_endpoint += _encode_metadata(pod.decision)
    return lb_endpoint + _encode_weight(pod.weight) if pod.weight else lb_endpoint


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
