"""The delta dialect: what it sends and what it leaves out; the order of things is the other dialect's (test_xds_stream.py)."""

from __future__ import annotations

import pytest

from builders.proxy import CLUSTER, CTR, ENDPOINT, LISTENER, SCOPE, DeltaProxy, Proxy, a_snapshot
from tidegate.routing import protos
from tidegate.routing.envoy import clusters
from tidegate.routing.snapshot import Resource, Snapshot, TypeUrl
from tidegate.xds.delta import DeltaStream
from tidegate.xds.delta_messages import DeltaRequest, decode_delta_request, encode_delta_response
from tidegate.xds.messages import DiscoveryResponse

OLD = a_snapshot({"old": 1}, routes_to=["old"])
NEW = a_snapshot({"new": 1}, routes_to=["new"])


def a_settled_proxy(snapshot: Snapshot = OLD) -> DeltaProxy:
    """A proxy that runs `snapshot`."""
    proxy = DeltaProxy(DeltaStream(snapshot))
    proxy.connect()
    proxy.settle()
    assert proxy.stream.progress.acked is snapshot
    return proxy


def said(responses: list[DiscoveryResponse]) -> list[tuple[TypeUrl, list[str], list[str]]]:
    """Type, what is sent and what is deleted, in order."""
    return [
        (TypeUrl(response.type_url), [each.name for each in response.resources], list(response.removed))
        for response in responses
    ]


# What is sent


def test_a_replaced_target_is_two_clusters_and_no_more() -> None:
    proxy = a_settled_proxy(a_snapshot({"old": 1, "other": 1}, routes_to=["old"]))
    proxy.set(a_snapshot({"new": 1, "other": 1}, routes_to=["new"]))
    assert said(proxy.settle()) == [
        (CLUSTER, ["new"], []),
        (ENDPOINT, ["new"], []),
        (SCOPE, [CTR], []),
        (CLUSTER, [], ["old"]),
    ]
    assert proxy.clusters == {"new": "c1", "other": "c1"}


def test_a_proxy_that_comes_back_with_all_of_it_is_sent_nothing() -> None:
    proxy = a_settled_proxy()
    again = DeltaStream(OLD)
    proxy.connect(again)
    assert proxy.settle() == []
    assert again.progress.acked is OLD


def test_a_proxy_that_comes_back_is_sent_what_changed_meanwhile() -> None:
    proxy = a_settled_proxy()
    proxy.connect(DeltaStream(NEW))
    assert said(proxy.settle()) == [
        (CLUSTER, ["new"], []),
        (ENDPOINT, ["new"], []),
        (SCOPE, [CTR], []),
        (CLUSTER, [], ["old"]),
    ]


def test_an_empty_fleet_is_said_to_be_empty() -> None:
    proxy = DeltaProxy(DeltaStream(a_snapshot({})))
    proxy.connect()
    assert said(proxy.settle())[0] == (CLUSTER, [], [])
    assert proxy.stream.progress.acked is not None


# Who asks for what


def test_named_clusters_are_sent_and_no_others() -> None:
    stream = DeltaStream(a_snapshot({"a": 1, "b": 1}))
    (response,) = stream.on_request(DeltaRequest(CLUSTER, frozenset({"a"})), 0)
    assert said([response]) == [(CLUSTER, ["a"], [])]
    stream.on_request(DeltaRequest(CLUSTER, nonce=response.nonce), 0)
    (more,) = stream.on_request(DeltaRequest(CLUSTER, frozenset({"b"})), 0)
    assert said([more]) == [(CLUSTER, ["b"], [])]


def test_a_star_besides_names_is_everything_until_it_is_given_up() -> None:
    stream = DeltaStream(a_snapshot({"a": 1, "b": 1}))
    (first,) = stream.on_request(DeltaRequest(CLUSTER, frozenset({"a", "*"})), 0)
    assert said([first]) == [(CLUSTER, ["a", "b"], [])]
    stream.on_request(DeltaRequest(CLUSTER, nonce=first.nonce), 0)
    assert stream.on_request(DeltaRequest(CLUSTER, unsubscribe=frozenset({"*"})), 0) == []
    (response,) = stream.on_snapshot(a_snapshot({"a": 2, "b": 2}), 0)
    assert said([response]) == [(CLUSTER, ["a"], [])]


def test_what_is_asked_for_again_is_sent_again() -> None:
    proxy = a_settled_proxy()
    proxy.outbox.append(DeltaRequest(ENDPOINT, frozenset({"old"})))
    assert said(proxy.settle()) == [(ENDPOINT, ["old"], [])]


def test_what_is_given_up_is_sent_no_more() -> None:
    proxy = a_settled_proxy()
    proxy.outbox.append(DeltaRequest(ENDPOINT, unsubscribe=frozenset({"old"})))
    proxy.settle()
    proxy.set(a_snapshot({"old": 1}, routes_to=["old"], endpoints={"old": 5}))
    assert proxy.settle() == []


def test_a_request_without_a_nonce_answers_nothing() -> None:
    stream = DeltaStream(OLD)
    stream.on_request(DeltaRequest(CLUSTER), 0)
    stream.on_request(DeltaRequest(CLUSTER), 0)
    assert stream.counters.acks == {}


# Refusals


@pytest.mark.parametrize("kind", [CLUSTER, ENDPOINT, SCOPE])
@pytest.mark.parametrize("cure", [OLD, a_snapshot({"cure": 1}, routes_to=["cure"])], ids=["back", "on"])
def test_a_refusal_keeps_the_last_good_until_the_next_snapshot(kind: TypeUrl, cure: Snapshot) -> None:
    proxy = a_settled_proxy()
    proxy.refuses = {kind}
    proxy.set(NEW)
    proxy.settle()
    assert proxy.routes_to == ("old",)
    assert proxy.stream.progress.nack == "no, thank you"
    assert proxy.stream.progress.acked is OLD
    proxy.refuses = set()
    proxy.set(cure)
    proxy.settle()
    assert proxy.stream.progress.acked is cure
    assert proxy.stream.progress.nack is None
    assert proxy.broken_routes() == []


@pytest.mark.parametrize("dialect", [Proxy, DeltaProxy])
def test_a_refused_cluster_that_is_taken_back_is_not_offered_again(dialect: type[Proxy]) -> None:
    proxy = dialect(dialect.a_stream(OLD))
    proxy.connect()
    proxy.settle()
    proxy.refuses = {CLUSTER}
    proxy.set(a_snapshot({"old": 1, "bad": 1}, routes_to=["old"]))
    proxy.settle()
    proxy.refuses = set()
    proxy.set(NEW)
    offered = [name for _, names, _ in said(proxy.settle()) for name in names]
    assert "bad" not in offered
    assert proxy.clusters == {"new": "c1"}


def test_a_refused_deletion_is_not_taken_for_done() -> None:
    proxy = a_settled_proxy(a_snapshot({"old": 1, "spare": 1}, routes_to=["old"]))
    proxy.refuses = {CLUSTER}
    proxy.set(OLD)
    proxy.settle()
    assert proxy.stream.progress.acked is not OLD
    assert "spare" in proxy.clusters


def test_a_refused_resource_is_not_sent_again_as_it_was() -> None:
    proxy = a_settled_proxy(a_snapshot({"old": 1}, routes_to=["old"]))
    proxy.refuses_names = {"bad"}
    proxy.set(a_snapshot({"old": 1, "bad": 1}, routes_to=["old"]))
    proxy.settle()
    proxy.set(a_snapshot({"old": 2, "bad": 1}, routes_to=["old"]))
    offered = [name for _, names, _ in said(proxy.settle()) for name in names]
    assert "bad" not in offered
    assert proxy.clusters == {"old": "c2"}


# On the wire


def test_a_response_is_what_envoy_reads() -> None:
    body = protos.any_of(clusters.TYPE, protos.encode(clusters.TYPE, {"name": "a"}))
    response = DiscoveryResponse(LISTENER, "v1", "7", (Resource("a", "1", body),), ("b", "c"))
    read = protos.decode("envoy.service.discovery.v3.DeltaDiscoveryResponse", encode_delta_response(response))
    assert (read.system_version_info, read.type_url, read.nonce) == ("v1", LISTENER, "7")
    assert [(one.name, one.version, one.resource.SerializeToString()) for one in read.resources] == [
        ("a", "1", body)
    ]
    assert list(read.removed_resources) == ["b", "c"]


def test_a_request_is_read_as_envoy_writes_it() -> None:
    fields = {
        "type_url": CLUSTER,
        "resource_names_subscribe": ["a"],
        "resource_names_unsubscribe": ["b"],
        "initial_resource_versions": {"c": "1"},
        "response_nonce": "7",
        "error_detail": {"code": 3, "message": "no"},
        "node": {"id": "gateway-1"},
    }
    data = protos.encode("envoy.service.discovery.v3.DeltaDiscoveryRequest", fields)
    assert decode_delta_request(data) == DeltaRequest(
        CLUSTER, frozenset("a"), frozenset("b"), {"c": "1"}, "7", "no", "gateway-1"
    )


def test_a_named_cluster_stays_until_the_proxy_gives_it_up() -> None:
    stream = DeltaStream(a_snapshot({"a": 1}))
    (first,) = stream.on_request(DeltaRequest(CLUSTER, frozenset({"a"})), 0)
    stream.on_request(DeltaRequest(CLUSTER, nonce=first.nonce), 0)
    assert stream.on_snapshot(a_snapshot({"b": 1}), 0) == []
    assert stream.on_request(DeltaRequest(CLUSTER, unsubscribe=frozenset({"a"})), 0) == []
    (second,) = stream.on_request(DeltaRequest(CLUSTER, frozenset({"b"})), 0)
    assert said([second]) == [(CLUSTER, ["b"], [])]
