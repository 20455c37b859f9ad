"""What is joined by hand on the wire is what protobuf itself would write and read."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from builders.any_fleet import any_fleet
from builders.fleet import a_backend, a_fleet
from builders.model_access import a_model_access
from stages.examples import examples
from tidegate.api.meta import ObjectKey
from tidegate.routing import protos, wire
from tidegate.routing.envoy import clusters, endpoints, routes
from tidegate.routing.envoy.listener import ListenerSettings
from tidegate.routing.envoy_names import cluster_name, parse_cluster_name
from tidegate.routing.fleet import BackendKey, BackendKind, Endpoint, FleetState
from tidegate.routing.ir import AccessPoolKey, EndpointPool, InferenceProtocol, PoolRole
from tidegate.routing.planner import plan_routing
from tidegate.xds.messages import (
    DeltaRequest,
    DiscoveryResponse,
    decode_delta_request,
    decode_sotw_request,
    encode_delta_response,
    encode_sotw_response,
)
from tidegate.xds.resources import TypeUrl, XdsResource
from tidegate.xds.snapshot_builder import SnapshotBuilder

ENDPOINTS = st.builds(
    Endpoint,
    st.ip_addresses().map(str),
    grpc_port=st.integers(1, 65535),
    http_port=st.integers(1, 65535),
    decision=st.sampled_from(["", "gpu-a-7", "x" * 253]),
    weight=st.integers(0, 1_000_000),
)
POOLS = st.builds(
    EndpointPool,
    st.just(BackendKey(BackendKind.INFERENCE, "ads", "ctr")),
    st.lists(ENDPOINTS, max_size=4).map(tuple),
)

REQUEST = "envoy.service.discovery.v3.DiscoveryRequest"


@settings(deadline=None)
@given(st.lists(st.binary(max_size=300), max_size=3), st.text())
def test_a_packed_any_is_an_any(pieces: list[bytes], url: str) -> None:
    message = protos.decode("google.protobuf.Any", wire.encode_any(url, *pieces))
    assert (message.type_url, message.value) == (url, b"".join(pieces))


@settings(deadline=None)
@given(POOLS, st.sampled_from(InferenceProtocol))
def test_endpoints_are_what_protobuf_writes(pool: EndpointPool, protocol: InferenceProtocol) -> None:
    written = endpoints.encode_endpoints(cluster_name(pool.backend, protocol), pool, protocol)
    message = protos.decode(endpoints.TYPE, written)
    assert message.SerializeToString(deterministic=True) == written
    assert message.cluster_name == cluster_name(pool.backend, protocol)
    found = [
        (socket.address, socket.port_value)
        for locality in message.endpoints
        for each in locality.lb_endpoints
        for socket in [each.endpoint.address.socket_address]
    ]
    ports = "grpc_port" if protocol is InferenceProtocol.GRPC else "http_port"
    assert found == [(each.address, getattr(each, ports)) for each in pool.endpoints]
    weights = [
        each.load_balancing_weight.value for locality in message.endpoints for each in locality.lb_endpoints
    ]
    assert weights == [each.weight for each in pool.endpoints]
    decisions = [
        each.metadata.filter_metadata[endpoints.METADATA_NAMESPACE]
        .fields[endpoints.DECISION_KEY]
        .string_value
        for locality in message.endpoints
        for each in locality.lb_endpoints
    ]
    assert decisions == [each.decision for each in pool.endpoints]


@settings(deadline=None, max_examples=examples(100))
@given(any_fleet())
def test_virtual_hosts_of_any_fleet_are_what_protobuf_writes(fleet: FleetState) -> None:
    """In the order of the fields' numbers and nothing twice, as when protobuf wrote all of it: no version changed with that."""
    for planned in plan_routing(fleet).hosts.values():
        written = routes.encode_host(planned.host)
        message = protos.decode("envoy.config.route.v3.VirtualHost", written)
        assert message.SerializeToString(deterministic=True) == written


@settings(deadline=None)
@given(st.lists(st.binary(max_size=300), max_size=4), st.text(), st.text())
def test_a_response_is_what_protobuf_reads(bodies: list[bytes], version: str, nonce: str) -> None:
    resources = tuple(XdsResource("r", "v", wire.encode_any("t", body)) for body in bodies)
    data = encode_sotw_response(DiscoveryResponse(TypeUrl.SCOPE, version, nonce, resources))
    message = protos.decode("envoy.service.discovery.v3.DiscoveryResponse", data)
    assert (message.version_info, message.nonce, message.type_url) == (version, nonce, TypeUrl.SCOPE)
    assert [resource.value for resource in message.resources] == bodies


def test_a_request_is_read() -> None:
    data = protos.encode(
        REQUEST,
        {
            "type_url": TypeUrl.CLUSTER,
            "resource_names": ["b", "a"],
            "version_info": "v",
            "response_nonce": "7",
            "node": {"id": "gateway-1"},
        },
    )
    request = decode_sotw_request(data)
    assert request.names == {"a", "b"}
    assert (request.version, request.nonce, request.node, request.error) == ("v", "7", "gateway-1", None)


@pytest.mark.parametrize(
    ("detail", "expected"), [({"code": 3, "message": "no"}, "no"), ({"code": 3}, "code 3"), ({}, "code 0")]
)
def test_a_refusal_is_read_even_without_words(detail: dict[str, object], expected: str) -> None:
    assert decode_sotw_request(protos.encode(REQUEST, {"error_detail": detail})).error == expected


def test_a_delta_response_is_what_envoy_reads() -> None:
    body = protos.encode_any(clusters.TYPE, protos.encode(clusters.TYPE, {"name": "a"}))
    response = DiscoveryResponse(TypeUrl.LISTENER, "v1", "7", (XdsResource("a", "1", body),), ("b", "c"))
    read = protos.decode("envoy.service.discovery.v3.DeltaDiscoveryResponse", encode_delta_response(response))
    assert (read.system_version_info, read.type_url, read.nonce) == ("v1", TypeUrl.LISTENER, "7")
    assert [
        (resource.name, resource.version, resource.resource.SerializeToString())
        for resource in read.resources
    ] == [("a", "1", body)]
    assert list(read.removed_resources) == ["b", "c"]


def test_a_delta_request_is_read_as_envoy_writes_it() -> None:
    fields = {
        "type_url": TypeUrl.CLUSTER,
        "resource_names_subscribe": ["a"],
        "resource_names_unsubscribe": ["b"],
        "initial_resource_versions": {"c": "1"},
        "response_nonce": "7",
        "error_detail": {"code": 3, "message": "no"},
        "node": {"id": "gateway-1"},
    }
    data = protos.encode("envoy.service.discovery.v3.DeltaDiscoveryRequest", fields)
    assert decode_delta_request(data) == DeltaRequest(
        TypeUrl.CLUSTER, frozenset("a"), frozenset("b"), {"c": "1"}, "7", "no", "gateway-1"
    )


def test_rubbish_is_refused() -> None:
    with pytest.raises(DecodeError):
        decode_sotw_request(b"\xff\xff\xff")


def test_hosts_that_are_joined_are_one_scope_and_each_access_has_its_own() -> None:
    fleet = a_fleet(a_model_access("a"), a_model_access("b"), a_backend("ctr", "10.0.0.1"))
    scopes = SnapshotBuilder(ListenerSettings()).build_snapshot(plan_routing(fleet)).resources[TypeUrl.SCOPE]
    assert set(scopes) == {"hosts", "access/ads/a", "access/ads/b"}
    for name, hosts in (("hosts", {"access/ads/a", "access/ads/b"}), ("access/ads/a", {"access/ads/a"})):
        described: Any = protos.to_redacted_json(scopes[name].body)
        assert described["key"] == {"fragments": [{"string_key": name}]}
        configuration = described["route_configuration"]
        assert {host["name"] for host in configuration["virtual_hosts"]} == hosts


def named_clusters(scope: XdsResource) -> set[str]:
    """Return every cluster that the routes of a scope name."""
    described: Any = protos.to_redacted_json(scope.body)
    names = set[str]()
    for host in described["route_configuration"].get("virtual_hosts", ()):
        for route in host["routes"]:
            action = route.get("route", {})
            names.update(action[key] for key in ("cluster",) if key in action)
            names.update(target["name"] for target in action.get("weighted_clusters", {}).get("clusters", ()))
            names.update(mirror["cluster"] for mirror in action.get("request_mirror_policies", ()))
    return names


@settings(deadline=None, max_examples=examples(100))
@given(any_fleet())
def test_a_scope_references_the_clusters_that_its_routes_name(fleet: FleetState) -> None:
    scopes = SnapshotBuilder(ListenerSettings()).build_snapshot(plan_routing(fleet)).resources[TypeUrl.SCOPE]
    assert {name: scope.references for name, scope in scopes.items()} == {
        name: named_clusters(scope) for name, scope in scopes.items()
    }


NAMES = {BackendKind.PIPELINE: "scene.home"}


@pytest.mark.parametrize("kind", BackendKind)
@pytest.mark.parametrize("protocol", InferenceProtocol)
def test_the_name_of_a_cluster_tells_what_it_is(kind: BackendKind, protocol: InferenceProtocol) -> None:
    """And has no dot: Envoy would take what follows for a part of the metric's name."""
    key = BackendKey(kind, "ads", NAMES.get(kind, "ctr-v3"))
    name = cluster_name(key, protocol)
    assert parse_cluster_name(name) == (key, protocol)
    assert "." not in name


@pytest.mark.parametrize("role", PoolRole)
@pytest.mark.parametrize("fallback", ["", "small"])
def test_the_name_of_an_accesss_own_cluster_tells_what_it_is(role: PoolRole, fallback: str) -> None:
    key = AccessPoolKey(role, ObjectKey("ads", "ctr"), "ctr-v3", fallback)
    assert parse_cluster_name(cluster_name(key, InferenceProtocol.GRPC)) == (key, InferenceProtocol.GRPC)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "xds",
        "a/b/c/d",
        "inference/ads/ctr",
        "inference/ads/ctr/udp",
        "access/ads/ctr/grpc",
        "pipeline/ads/scene.home/grpc",
        "inference/ads/ctr/v3/grpc",
    ],
)
def test_a_foreign_cluster_name_is_not_parsed(name: str) -> None:
    assert parse_cluster_name(name) is None


def test_unknown_fields_are_refused_when_building() -> None:
    with pytest.raises(ValueError, match="no_such_field"):
        protos.encode("envoy.config.cluster.v3.Cluster", {"no_such_field": 1})
