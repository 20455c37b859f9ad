"""The stream of a gRPC client without a gateway: which names it gets, and that its routes never lead to what it lost."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from builders.grpc_client import CTR, GrpcClient, a_client_snapshot, cluster
from builders.proxy import CLUSTER, ENDPOINT, LISTENER
from stages.examples import examples
from tidegate.xds.messages import DiscoveryResponse, SotwRequest
from tidegate.xds.protocols import SotwStream
from tidegate.xds.resources import Snapshot, TypeUrl

OLD = a_client_snapshot({"old": 1, "other": 1}, routes_to=["old"])
NEW = a_client_snapshot({"new": 1, "other": 1}, routes_to=["new"])


def a_settled_client(snapshot: Snapshot = OLD) -> GrpcClient:
    """A client that has everything that it asked for."""
    client = GrpcClient(SotwStream(snapshot))
    client.connect()
    client.settle()
    assert client.broken_routes() == []
    return client


def contents(responses: list[DiscoveryResponse]) -> list[tuple[TypeUrl, list[str]]]:
    """Type and names, in order."""
    return [
        (TypeUrl(response.type_url), [resource.name for resource in response.resources])
        for response in responses
    ]


def test_a_client_gets_what_it_names_and_nothing_else() -> None:
    client = GrpcClient(SotwStream(OLD))
    client.connect()
    assert contents(client.settle()) == [
        (LISTENER, [CTR]),
        (CLUSTER, [cluster("old")]),
        (ENDPOINT, [cluster("old")]),
    ]


def test_a_name_that_does_not_exist_is_answered_with_nothing() -> None:
    client = GrpcClient(SotwStream(a_client_snapshot({"old": 1}, routes_to=None)))
    client.connect()
    assert contents(client.settle()) == [(LISTENER, [])]
    client.set(OLD)
    client.settle()
    assert client.routes_to == (cluster("old"),)


def test_a_listener_that_goes_is_left_out_of_a_response() -> None:
    client = a_settled_client()
    client.set(a_client_snapshot({"old": 1}, routes_to=None))
    client.settle()
    assert client.deleted == {CTR}


def test_a_cluster_stays_until_the_client_gives_it_up() -> None:
    client = a_settled_client()
    client.set(NEW)
    client.client_takes()
    assert contents(client.received[-1:]) == [(LISTENER, [CTR])]
    assert not client.inbox
    client.settle()
    assert client.resources[CLUSTER].keys() == {cluster("new")}
    assert not client.deleted


def test_a_response_with_a_changed_cluster_repeats_the_others() -> None:
    client = a_settled_client(a_client_snapshot({"a": 1, "b": 1}, routes_to=["a", "b"]))
    client.set(a_client_snapshot({"a": 1, "b": 2}, routes_to=["a", "b"]))
    assert contents(client.settle()) == [
        (CLUSTER, [cluster("a"), cluster("b")]),
        (ENDPOINT, [cluster("b")]),
    ]


def test_a_client_that_rejects_one_cluster_keeps_the_others() -> None:
    """It takes each by itself; a response without the good ones would delete them."""
    client = GrpcClient(SotwStream(a_client_snapshot({"good": 1, "bad": 1}, routes_to=["good", "bad"])))
    client.refuses_names = {cluster("bad")}
    client.connect()
    client.settle()
    assert client.resources[CLUSTER].keys() == {cluster("good")}
    assert client.stream.progress.nack == f"{cluster('bad')}: no"
    client.set(a_client_snapshot({"good": 2, "bad": 1}, routes_to=["good", "bad"]))
    client.settle()
    assert client.resources[CLUSTER][cluster("good")].version == "c2"
    assert not client.deleted


def test_endpoints_that_fall_to_none_are_held_back_until_the_routes_have_left() -> None:
    client = a_settled_client(a_client_snapshot({"a": 1, "b": 1}, routes_to=["a", "b"]))
    client.set(a_client_snapshot({"a": 1, "b": 1}, routes_to=["b"], empty=["a"]))
    assert contents(client.settle())[0] == (LISTENER, [CTR])
    assert client.routes_to == (cluster("b"),)


def test_the_answer_to_an_older_response_is_no_answer_to_the_newer() -> None:
    stream, names = SotwStream(OLD), frozenset({cluster("old")})
    (first,) = stream.on_request(SotwRequest(CLUSTER, names), 0)
    stream.on_request(SotwRequest(CLUSTER, names, nonce=first.nonce), 0)
    (second,) = stream.on_snapshot(a_client_snapshot({"old": 2}, routes_to=["old"]), 0)
    stream.on_request(SotwRequest(CLUSTER, names, nonce=first.nonce, error="late"), 0)
    assert stream.counters.nacks == {}
    stream.on_request(SotwRequest(CLUSTER, names, nonce=second.nonce), 0)
    assert stream.counters.acks == {CLUSTER: 2}


def test_a_client_that_comes_back_keeps_a_cluster_that_the_server_never_knew() -> None:
    client = a_settled_client()
    client.connect(SotwStream(NEW))
    client.server_takes()
    client.client_takes()
    assert contents(client.received[-1:]) == [(CLUSTER, [cluster("old")])]
    client.settle()
    assert client.routes_to == (cluster("new"),)
    assert client.resources[CLUSTER].keys() == {cluster("new")}


@st.composite
def fleets(draw: st.DrawFn) -> Snapshot:
    """Clusters of several versions, some without endpoints; routes lead only where somebody answers."""
    clusters = draw(st.dictionaries(st.sampled_from("abcd"), st.integers(1, 3), max_size=4))
    awake = sorted(draw(st.sets(st.sampled_from(sorted(clusters))))) if clusters else []
    routes_to = draw(st.lists(st.sampled_from(awake), unique=True)) if awake else []
    return a_client_snapshot(clusters, routes_to=routes_to, empty=clusters.keys() - set(awake))


@settings(max_examples=examples(300), deadline=None)
@given(
    steps=st.lists(
        st.one_of(fleets(), st.sampled_from(["server", "server", "client", "client", "reconnect"])),
        max_size=60,
    )
)
def test_no_order_of_events_leads_a_route_to_what_the_client_lost(steps: list[Snapshot | str]) -> None:
    goal: Snapshot | None = None
    client = GrpcClient(SotwStream(None))
    client.connect()
    for step in [*steps, OLD]:
        if isinstance(step, Snapshot):
            goal = step
            client.set(step)
        elif step == "server" and client.outbox:
            client.server_takes()
        elif step == "client" and client.inbox:
            client.client_takes()
        elif step == "reconnect":
            client.connect(SotwStream(goal))
        assert client.broken_routes() == []
    while client.inbox or client.outbox:
        if client.outbox:
            client.server_takes()
        else:
            client.client_takes()
        assert client.broken_routes() == []
    assert client.routes_to == (cluster("old"),)
    assert {name: one.version for name, one in client.resources[CLUSTER].items()} == {cluster("old"): "c1"}
    assert client.resources[ENDPOINT] == {cluster("old"): OLD.resources[ENDPOINT][cluster("old")]}
    assert client.stream.progress.acked is OLD
    assert client.stream.counters.gate_misses == 0
