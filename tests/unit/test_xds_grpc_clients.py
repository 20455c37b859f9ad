"""The stream of a gRPC client without a gateway: which names it gets, and that its routes never lead to what it lost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from builders.proxy import CLUSTER, ENDPOINT, LISTENER, DiscoveryClient, names_in
from stages.examples import examples
from tidegate.xds.messages import DiscoveryResponse, SotwRequest
from tidegate.xds.protocols import SotwStream
from tidegate.xds.resources import NO_RESOURCES, Snapshot, TypeUrl, XdsResource, content_hash

CTR = "ctr.ads.tidegate"


def cluster(name: str) -> str:
    """The cluster of an Inference in the namespace ads."""
    return f"inference/ads/{name}/grpc"


def a_client_snapshot(
    clusters: Mapping[str, int], *, routes_to: Iterable[str] | None = (), empty: Iterable[str] = ()
) -> Snapshot:
    """Clusters of Inferences by name and version, those of `empty` without endpoints; `routes_to` is where CTR leads, None: there is none."""
    resources: dict[TypeUrl, dict[str, XdsResource]] = {type_url: {} for type_url in TypeUrl}
    for name, version in clusters.items():
        key, vacant = cluster(name), name in empty
        resources[CLUSTER][key] = XdsResource(key, f"c{version}", b"")
        resources[ENDPOINT][key] = XdsResource(key, f"e{version}{'-' if vacant else '+'}", b"", vacant=vacant)
    if routes_to is not None:
        body = ",".join((CTR, *sorted(map(cluster, routes_to)))).encode()
        resources[LISTENER][CTR] = XdsResource(CTR, content_hash([body]), body)
    sets = {type_url: NO_RESOURCES.with_changes(of_type) for type_url, of_type in resources.items()}
    return Snapshot.from_sets(sets, {})


@dataclass
class GrpcClient(DiscoveryClient[SotwRequest]):
    """A client with one channel, to CTR.

    It asks for everything by name: the listener, then the clusters of its routes, then their endpoints.
    It takes the resources of a response one by one, and answers with all names that it wants by then.
    Of clusters and listeners it drops those that it has and that a response leaves out; those go to `deleted` until they are back.
    """

    wanted: dict[TypeUrl, frozenset[str]] = field(default_factory=dict)
    resources: dict[TypeUrl, dict[str, XdsResource]] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)
    refuses_names: set[str] = field(default_factory=set)
    nonces: dict[TypeUrl, str] = field(default_factory=dict)
    versions: dict[TypeUrl, str] = field(default_factory=dict)

    def connect(self, stream: SotwStream | None = None) -> None:
        """Open the stream, or a new one, and ask again for everything."""
        self.stream = stream or self.stream
        self.inbox.clear()
        self.outbox.clear()
        self.nonces.clear()
        self.wanted.setdefault(LISTENER, frozenset({CTR}))
        for type_url in (CLUSTER, ENDPOINT, LISTENER):
            if self.wanted.get(type_url):
                self._ask(type_url)

    def client_takes(self) -> DiscoveryResponse:
        response = self.inbox.popleft()
        self.received.append(response)
        type_url = TypeUrl(response.type_url)
        self.nonces[type_url], self.versions[type_url] = response.nonce, response.version
        has = self.resources.setdefault(type_url, {})
        sent = {resource.name: resource for resource in response.resources}
        if type_url is not ENDPOINT:
            for name in has.keys() - sent.keys():
                del has[name]
                self.deleted.add(name)
        for name in sent.keys() & self.wanted[type_url] - self.refuses_names:
            has[name] = sent[name]
            self.deleted.discard(name)
        refused = sorted(sent.keys() & self.refuses_names)
        self._ask(type_url, error=", ".join(f"{name}: no" for name in refused) or None)
        if type_url is LISTENER:
            self._want(CLUSTER, frozenset(self.routes_to))
        if type_url is CLUSTER:
            self._want(ENDPOINT, frozenset(has))
        return response

    @property
    def routes_to(self) -> tuple[str, ...]:
        """Clusters that the routes of CTR lead to."""
        listener = self.resources.get(LISTENER, {}).get(CTR)
        return () if listener is None else names_in(listener.body)

    def broken_routes(self) -> list[str]:
        """Clusters that the routes lead to and that were deleted or have no endpoints; calls wait for those that never came."""
        endpoints = self.resources.get(ENDPOINT, {})
        return [
            name
            for name in self.routes_to
            if name in self.deleted or (name in endpoints and endpoints[name].vacant)
        ]

    def _want(self, type_url: TypeUrl, names: frozenset[str]) -> None:
        """Ask for other names; what is no longer wanted is forgotten."""
        if names == self.wanted.get(type_url, frozenset()):
            return
        self.wanted[type_url] = names
        has = self.resources.setdefault(type_url, {})
        for name in has.keys() - names:
            del has[name]
        if type_url is CLUSTER:
            self.deleted &= names | {CTR}
            self._want(ENDPOINT, frozenset(has))
        self._ask(type_url)

    def _ask(self, type_url: TypeUrl, error: str | None = None) -> None:
        names, nonce = self.wanted[type_url], self.nonces.get(type_url, "")
        version = self.versions.get(type_url, "")
        request = SotwRequest(type_url, names, version, nonce, error, node="web-1", user_agent="gRPC C-core")
        self.outbox.append(request)


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
    assert client.stream.counters.make_timeouts == 0
