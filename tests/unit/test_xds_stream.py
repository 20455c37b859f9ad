"""The discovery stream: which response goes out when, and that no route ever leads to what the proxy lacks."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from builders.proxy import (
    CLUSTER,
    CTR,
    CTR_HOST,
    ENDPOINT,
    GATEWAY,
    LISTENER,
    SCOPE,
    Proxy,
    a_snapshot,
    host,
    names_in,
)
from stages.examples import examples
from tidegate.xds.inspection import SyncState
from tidegate.xds.messages import DeltaRequest, DiscoveryResponse
from tidegate.xds.protocols import DeltaStream
from tidegate.xds.resources import Snapshot, TypeUrl, XdsResource
from tidegate.xds.stream import MAKE_TIMEOUT_S

OLD = a_snapshot({"old": 1}, routes_to=["old"])
NEW = a_snapshot({"new": 1}, routes_to=["new"])


def a_proxy(snapshot: Snapshot | None = OLD, **options: Any) -> Proxy:
    """A proxy that has just connected; nothing has arrived anywhere."""
    proxy = Proxy(DeltaStream(snapshot, **options))
    proxy.connect()
    return proxy


def a_settled_proxy(snapshot: Snapshot = OLD, **options: Any) -> Proxy:
    """A proxy that runs `snapshot`."""
    proxy = a_proxy(snapshot, **options)
    proxy.settle()
    assert proxy.stream.progress.acked is snapshot
    return proxy


def kinds(responses: list[DiscoveryResponse]) -> list[TypeUrl]:
    """The types, in order."""
    return [TypeUrl(response.type_url) for response in responses]


def names(response: DiscoveryResponse) -> set[str]:
    """What is in it."""
    return {resource.name for resource in response.resources}


def contents(responses: list[DiscoveryResponse]) -> list[tuple[TypeUrl, list[str], list[str]]]:
    """Type, what is sent and what is deleted, in order."""
    return [
        (
            TypeUrl(response.type_url),
            [resource.name for resource in response.resources],
            list(response.removed),
        )
        for response in responses
    ]


def arrive(proxy: Proxy, kind: TypeUrl) -> None:
    """Everything arrives until the proxy has taken a response of this type; its answer stays on the way."""
    while True:
        if not proxy.inbox:
            proxy.server_takes()
        elif TypeUrl(proxy.client_takes().type_url) is kind:
            return


# A first connection


def test_nothing_is_sent_before_the_first_snapshot() -> None:
    proxy = a_proxy(None)
    assert proxy.settle() == []
    proxy.wait(3600)
    assert not proxy.inbox
    assert proxy.stream.wake_at is None


def test_a_proxy_that_connects_first_is_served_once_there_is_a_snapshot() -> None:
    proxy = a_proxy(None)
    proxy.settle()
    proxy.set(OLD)
    assert kinds(proxy.settle()) == [CLUSTER, ENDPOINT, LISTENER, SCOPE]
    assert proxy.routes_to == ("old",)


def test_a_new_proxy_gets_clusters_and_endpoints_before_listeners_and_routes() -> None:
    assert kinds(a_proxy().settle()) == [CLUSTER, ENDPOINT, LISTENER, SCOPE]


def test_an_empty_fleet_is_said_to_be_empty_and_still_gets_its_listener() -> None:
    proxy = a_proxy(a_snapshot({}))
    assert contents(proxy.settle()) == [(CLUSTER, [], []), (LISTENER, [GATEWAY], []), (SCOPE, [CTR], [])]
    assert proxy.stream.progress.acked is not None


def test_a_type_that_is_not_served_is_left_unanswered() -> None:
    stream = DeltaStream(OLD)
    unknown = DeltaRequest("type.googleapis.com/envoy.service.runtime.v3.Runtime")
    assert stream.on_request(unknown, 0) == []


def test_versions_are_those_of_the_content() -> None:
    first = a_proxy().settle()
    second = a_proxy().settle()
    assert [(r.type_url, r.version, r.resources) for r in first] == [
        (r.type_url, r.version, r.resources) for r in second
    ]


# Changes


def test_the_same_content_sends_nothing() -> None:
    proxy = a_settled_proxy()
    again = a_snapshot({"old": 1}, routes_to=["old"], generation=7)
    proxy.set(again)
    assert proxy.settle() == []
    assert proxy.stream.progress.acked is again


def test_a_replaced_target_is_made_before_the_old_one_is_broken_and_nothing_else_is_sent() -> None:
    proxy = a_settled_proxy(a_snapshot({"old": 1, "other": 1}, routes_to=["old"]))
    proxy.set(a_snapshot({"new": 1, "other": 1}, routes_to=["new"]))
    assert contents(proxy.settle()) == [
        (CLUSTER, ["new"], []),
        (ENDPOINT, ["new"], []),
        (SCOPE, [CTR], []),
        (CLUSTER, [], ["old"]),
    ]
    assert proxy.clusters == {"new": "c1", "other": "c1"}


def test_routes_wait_for_the_acceptance_of_the_endpoints() -> None:
    proxy = a_settled_proxy()
    proxy.set(NEW)
    arrive(proxy, ENDPOINT)
    assert not proxy.inbox
    while proxy.outbox:
        assert proxy.routes_to == ("old",)
        proxy.server_takes()
    assert kinds(list(proxy.inbox)) == [SCOPE]


def test_old_clusters_wait_for_the_acceptance_of_the_routes() -> None:
    proxy = a_settled_proxy()
    proxy.set(NEW)
    arrive(proxy, SCOPE)
    assert not proxy.inbox
    assert "old" in proxy.clusters
    proxy.settle()
    assert "old" not in proxy.clusters


def test_endpoints_alone_go_straight_out() -> None:
    proxy = a_settled_proxy()
    proxy.set(a_snapshot({"old": 1}, routes_to=["old"], endpoints={"old": 2}))
    (response,) = proxy.settle()
    assert response.type_url == ENDPOINT


def test_only_changed_endpoints_are_sent() -> None:
    proxy = a_settled_proxy(a_snapshot({"a": 1, "b": 1}, routes_to=["a"]))
    proxy.set(a_snapshot({"a": 1, "b": 1}, routes_to=["a"], endpoints={"b": 3}))
    (response,) = proxy.settle()
    assert names(response) == {"b"}


def test_a_change_of_routes_alone_sends_routes_alone() -> None:
    proxy = a_settled_proxy(a_snapshot({"a": 1, "b": 1}, routes_to=["a"]))
    proxy.set(a_snapshot({"a": 1, "b": 1}, routes_to=["b"]))
    assert kinds(proxy.settle()) == [SCOPE]


def test_a_changed_cluster_is_followed_by_its_endpoints() -> None:
    proxy = a_settled_proxy()
    proxy.set(a_snapshot({"old": 2}, routes_to=["old"]))
    assert kinds(proxy.settle()) == [CLUSTER, ENDPOINT]
    assert not proxy.warming


def test_endpoints_of_a_changed_cluster_never_overtake_it() -> None:
    proxy = a_settled_proxy()
    proxy.set(a_snapshot({"old": 1, "another": 1}, routes_to=["old"]))
    proxy.set(a_snapshot({"old": 2, "another": 1}, routes_to=["old"]))
    assert kinds(list(proxy.inbox)) == [CLUSTER]
    proxy.settle()
    assert proxy.clusters["old"] == "c2"
    assert not proxy.warming


def test_a_cluster_that_comes_back_gets_its_endpoints_again() -> None:
    proxy = a_settled_proxy(a_snapshot({"old": 1}))
    proxy.set(a_snapshot({}))
    proxy.client_takes()
    # The cluster's removal is accepted, but that its endpoints are no longer wanted has not arrived when it is back.
    proxy.server_takes()
    proxy.set(a_snapshot({"old": 1}))
    proxy.client_takes()
    proxy.settle()
    assert proxy.clusters == {"old": "c1"}
    assert not proxy.warming


def test_endpoints_that_fall_to_none_are_held_back_until_no_route_leads_there() -> None:
    both = a_settled_proxy(a_snapshot({"a": 1, "b": 1}, routes_to=["a", "b"]))
    both.set(a_snapshot({"a": 1, "b": 1}, routes_to=["b"], endpoints={"a": 0}))
    assert kinds(both.settle()) == [SCOPE, ENDPOINT]
    assert both.endpoints["a"].vacant


def test_endpoints_that_fall_to_none_where_no_route_leads_go_straight_out() -> None:
    proxy = a_settled_proxy(a_snapshot({"a": 1, "b": 1}, routes_to=["b"]))
    proxy.set(a_snapshot({"a": 1, "b": 1}, routes_to=["b"], endpoints={"a": 0}))
    assert kinds(proxy.settle()) == [ENDPOINT]


# Endpoints that the proxy asks for


def test_what_is_asked_for_again_is_sent_again() -> None:
    proxy = a_settled_proxy()
    proxy.outbox.append(DeltaRequest(ENDPOINT, frozenset({"old"})))
    assert contents(proxy.settle()) == [(ENDPOINT, ["old"], [])]


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


# A newer snapshot in the middle


@pytest.mark.parametrize("kind", [CLUSTER, ENDPOINT, SCOPE])
def test_going_back_in_the_middle_ends_where_it_began(kind: TypeUrl) -> None:
    proxy = a_settled_proxy()
    proxy.set(NEW)
    arrive(proxy, kind)
    proxy.set(OLD)
    while proxy.inbox or proxy.outbox:
        if proxy.outbox:
            proxy.server_takes()
        else:
            proxy.client_takes()
        assert proxy.broken_routes() == []
    assert proxy.routes_to == ("old",)
    assert proxy.clusters == {"old": "c1"}
    assert proxy.stream.progress.acked is OLD


def test_a_slow_proxy_meets_only_the_newest() -> None:
    proxy = a_settled_proxy()
    for version in range(2, 50):
        proxy.set(a_snapshot({"old": 1}, routes_to=["old"], endpoints={"old": version}))
    assert len(proxy.settle()) == 2
    assert proxy.endpoints["old"].version == "c1-e49"


def test_the_answer_to_an_older_response_is_no_answer_to_the_newer() -> None:
    stream = DeltaStream(OLD)
    (first,) = stream.on_request(DeltaRequest(CLUSTER), 0)
    stream.on_request(DeltaRequest(CLUSTER, nonce=first.nonce), 0)
    (second,) = stream.on_snapshot(a_snapshot({"old": 2}), 0)
    stream.on_request(DeltaRequest(CLUSTER, nonce=first.nonce, error="late"), 0)
    assert stream.counters.nacks == {}
    stream.on_request(DeltaRequest(CLUSTER, nonce=second.nonce), 0)
    assert stream.counters.acks == {CLUSTER: 2}


# Refusals


@pytest.mark.parametrize("kind", [CLUSTER, ENDPOINT, SCOPE])
def test_a_refusal_keeps_the_last_good_and_says_why(kind: TypeUrl) -> None:
    proxy = a_settled_proxy()
    proxy.refuses = {kind}
    proxy.set(NEW)
    proxy.settle()
    assert proxy.routes_to == ("old",)
    assert proxy.broken_routes() == []
    assert proxy.stream.progress.nack == "no, thank you"
    assert proxy.stream.progress.acked is OLD
    assert proxy.stream.counters.nacks == {kind: 1}


def test_what_was_refused_is_not_sent_again() -> None:
    proxy = a_settled_proxy()
    proxy.refuses = {SCOPE}
    proxy.set(NEW)
    proxy.settle()
    proxy.set(a_snapshot({"new": 1}, routes_to=["new"], generation=2))
    proxy.wait(3600)
    assert proxy.settle() == []


@pytest.mark.parametrize("kind", [CLUSTER, ENDPOINT, SCOPE])
@pytest.mark.parametrize("cure", [OLD, a_snapshot({"cure": 1}, routes_to=["cure"])], ids=["back", "on"])
def test_after_a_refusal_the_next_snapshot_is_reached(kind: TypeUrl, cure: Snapshot) -> None:
    proxy = a_settled_proxy()
    proxy.refuses = {kind}
    proxy.set(NEW)
    proxy.settle()
    proxy.refuses = set()
    proxy.set(cure)
    proxy.settle()
    assert proxy.stream.progress.acked is cure
    assert proxy.stream.progress.nack is None
    assert proxy.broken_routes() == []


def test_a_refused_cluster_does_not_hold_up_the_endpoints_of_others() -> None:
    proxy = a_settled_proxy(a_snapshot({"a": 1, "b": 1}, routes_to=["a"]))
    proxy.refuses = {CLUSTER}
    proxy.set(a_snapshot({"a": 1, "b": 2}, routes_to=["a"], endpoints={"a": 4}))
    proxy.settle()
    assert proxy.endpoints["a"].version == "c1-e4"


def test_a_refused_cluster_that_is_taken_back_is_not_offered_again() -> None:
    proxy = a_settled_proxy()
    proxy.refuses = {CLUSTER}
    proxy.set(a_snapshot({"old": 1, "bad": 1}, routes_to=["old"]))
    proxy.settle()
    proxy.refuses = set()
    proxy.set(NEW)
    offered = [name for response in proxy.settle() for name in names(response)]
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
    offered = [name for response in proxy.settle() for name in names(response)]
    assert "bad" not in offered
    assert proxy.clusters == {"old": "c2"}


def runs(proxy: Proxy, name: str = "ctr") -> int | None:
    """The generation of an access that the server believes the proxy to run."""
    running = proxy.stream.progress.running
    state = running.host_state(host(name)) if running is not None else None
    return state.generation if state is not None else None


def with_a_bad_route(generation: int, other: str) -> Snapshot:
    """The access ctr leads to `bad`, the access other to `other`; nothing leads to `old` any more."""
    return a_snapshot(
        {"bad": 1, other: 1}, routes_to=["bad"], others={"other": [other]}, generation=generation
    )


BEFORE = a_snapshot({"old": 1, "first": 1}, routes_to=["old"], others={"other": ["first"]})


def test_a_refused_route_holds_up_itself_and_nothing_else() -> None:
    proxy = a_settled_proxy(BEFORE)
    proxy.refuses_versions = {with_a_bad_route(2, "x").resources[SCOPE][CTR].version}

    for generation, target in enumerate(["second", "third", "fourth"], 2):
        proxy.set(with_a_bad_route(generation, target))
        proxy.settle()
        assert proxy.scopes == {CTR: ("old",), str(host("other")): (target,)}
        assert set(proxy.clusters) == {"old", "bad", target}
        assert (runs(proxy), runs(proxy, "other")) == (1, generation)
        assert proxy.stream.progress.rejected == {CTR_HOST: "no, thank you"}
        assert proxy.stream.progress.acked is BEFORE

    mended = a_snapshot({"fourth": 1}, routes_to=["fourth"], others={"other": ["fourth"]}, generation=5)
    proxy.set(mended)
    proxy.settle()
    assert set(proxy.clusters) == {"fourth"}
    assert (runs(proxy), runs(proxy, "other")) == (5, 5)
    assert (proxy.stream.progress.acked, proxy.stream.progress.rejected) == (mended, {})
    assert proxy.stream.counters.make_timeouts == 0


def test_an_access_that_is_refused_from_the_start_is_the_only_one_that_is_missing() -> None:
    proxy = a_proxy(with_a_bad_route(1, "first"))
    proxy.refuses_names = {CTR}
    proxy.settle()
    assert proxy.scopes == {str(host("other")): ("first",)}
    assert (runs(proxy), runs(proxy, "other")) == (None, 1)
    assert proxy.stream.progress.rejected == {CTR_HOST: "no, thank you"}


def test_endpoints_of_a_target_that_a_refused_route_still_uses_are_not_taken_away() -> None:
    proxy = a_settled_proxy(BEFORE)
    asleep = a_snapshot(
        {"old": 1, "new": 1, "first": 1},
        routes_to=["new"],
        others={"other": ["new"]},
        endpoints={"old": 0, "first": 0},
        generation=2,
    )
    proxy.refuses_versions = {asleep.resources[SCOPE][CTR].version}
    proxy.set(asleep)
    proxy.settle()
    assert proxy.routes_to == ("new", "old")
    assert proxy.broken_routes() == []
    assert proxy.endpoints["first"].vacant
    assert (runs(proxy), runs(proxy, "other")) == (1, 2)


# A proxy that says nothing


def test_silence_holds_up_the_routes_for_the_gates_time_and_is_counted() -> None:
    proxy = a_settled_proxy(make_timeout_s=10)
    proxy.set(NEW)
    proxy.inbox.clear()  # The proxy never answers.
    assert proxy.stream.wake_at == 10
    proxy.wait(9.9)
    assert not proxy.inbox
    proxy.wait(0.1)
    assert kinds(list(proxy.inbox)) == [SCOPE]
    assert proxy.stream.counters.make_timeouts == 1
    assert proxy.stream.wake_at is None


def test_an_answer_in_time_is_no_miss() -> None:
    proxy = a_settled_proxy(make_timeout_s=10)
    proxy.set(NEW)
    proxy.wait(9.9)
    proxy.settle()
    proxy.wait(100)
    assert proxy.routes_to == ("new",)
    assert proxy.stream.counters.make_timeouts == 0


def test_where_no_route_waits_silence_is_not_measured() -> None:
    proxy = a_settled_proxy()
    proxy.set(a_snapshot({"old": 1, "new": 1}, routes_to=["old"]))
    assert proxy.stream.wake_at is None


def test_silence_sends_no_route_to_a_cluster_that_was_never_sent() -> None:
    """It would be refused, and what comes with it."""
    proxy = a_settled_proxy(make_timeout_s=10)
    proxy.set(a_snapshot({"old": 1, "new": 1}, routes_to=["new"]))
    proxy.inbox.clear()  # The proxy never answers, so no more clusters can be sent.
    last = a_snapshot({"old": 1, "new": 1, "newer": 1}, routes_to=["new"], others={"other": ["newer"]})
    proxy.set(last)
    proxy.wait(10)
    (response,) = proxy.inbox
    assert names(response) == {CTR}
    assert proxy.stream.counters.make_timeouts == 1


def test_a_cluster_that_changes_before_its_endpoints_went_out_gets_those_that_it_waits_for() -> None:
    proxy = a_settled_proxy()
    proxy.set(a_snapshot({"old": 1, "new": 1}))
    proxy.client_takes()
    assert proxy.warming == {"new": "c1"}
    proxy.outbox.popleft()  # Its word on the clusters waits until all have endpoints, as Envoy's does.
    proxy.set(a_snapshot({"old": 1, "new": 2}, routes_to=["new"]))
    proxy.server_takes()
    assert [one.version for one in proxy.inbox[0].resources] == ["c1-e1"]


def test_silence_never_breaks_anything() -> None:
    proxy = a_settled_proxy()
    proxy.set(NEW)
    arrive(proxy, SCOPE)
    proxy.outbox.clear()  # The proxy runs the new routes and never says so.
    proxy.wait(3600)
    assert not proxy.inbox


# A proxy that comes back


def test_a_proxy_that_comes_back_with_all_of_it_is_sent_nothing() -> None:
    proxy = a_settled_proxy()
    again = DeltaStream(OLD)
    proxy.connect(again)
    assert proxy.settle() == []
    assert again.progress.acked is OLD


def test_a_proxy_that_comes_back_is_sent_what_changed_meanwhile() -> None:
    proxy = a_settled_proxy()
    proxy.connect(DeltaStream(NEW))
    assert contents(proxy.settle()) == [
        (CLUSTER, ["new"], []),
        (ENDPOINT, ["new"], []),
        (SCOPE, [CTR], []),
        (CLUSTER, [], ["old"]),
    ]


def test_a_proxy_that_comes_back_is_moved_off_clusters_that_nobody_knows_any_more() -> None:
    proxy = a_settled_proxy()
    proxy.connect(DeltaStream(NEW))
    while proxy.inbox or proxy.outbox:
        if proxy.outbox:
            proxy.server_takes()
        else:
            proxy.client_takes()
        assert proxy.broken_routes() == []
    assert proxy.routes_to == ("new",)
    assert proxy.clusters == {"new": "c1"}
    assert proxy.stream.progress.acked is NEW


def test_a_proxy_that_comes_back_keeps_endpoints_until_its_routes_have_left() -> None:
    proxy = a_settled_proxy(a_snapshot({"a": 1, "b": 1}, routes_to=["a"]))
    asleep = a_snapshot({"a": 1, "b": 1}, routes_to=["b"], endpoints={"a": 0})
    proxy.connect(DeltaStream(asleep))
    while proxy.inbox or proxy.outbox:
        if proxy.outbox:
            proxy.server_takes()
        else:
            proxy.client_takes()
        assert proxy.broken_routes() == []
    assert proxy.endpoints["a"].vacant
    assert proxy.stream.progress.acked is asleep


# Any order of events


@st.composite
def fleets(draw: st.DrawFn) -> Snapshot:
    """Clusters of several versions, some without endpoints; routes lead only where somebody answers."""
    clusters = draw(st.dictionaries(st.sampled_from("abcde"), st.integers(1, 3), max_size=5))
    endpoints = {name: draw(st.integers(0, 3)) for name in clusters}
    awake = sorted(name for name in clusters if endpoints[name])
    routes_to = draw(st.lists(st.sampled_from(awake), unique=True)) if awake else []
    return a_snapshot(clusters, routes_to=routes_to, endpoints=endpoints)


STEPS = st.lists(
    st.one_of(fleets(), st.sampled_from(["server", "server", "proxy", "proxy", "reconnect"])), max_size=60
)


@settings(max_examples=examples(300), deadline=None)
@given(steps=STEPS)
def test_no_order_of_events_leads_a_route_to_what_the_proxy_lacks(steps: list[Snapshot | str]) -> None:
    goal: Snapshot | None = None
    proxy = a_proxy(None)
    for step in [*steps, OLD]:
        if isinstance(step, Snapshot):
            # What the routes lead to may lose its endpoints outright only together with the routes: the planner's part.
            goal = step
            proxy.set(step)
        elif step == "server" and proxy.outbox:
            proxy.server_takes()
        elif step == "proxy" and proxy.inbox:
            proxy.client_takes()
        elif step == "reconnect":
            proxy.connect(DeltaStream(goal))
        assert proxy.broken_routes() == []
    while proxy.inbox or proxy.outbox:
        if proxy.outbox:
            proxy.server_takes()
        else:
            proxy.client_takes()
        assert proxy.broken_routes() == []
    assert proxy.stream.progress.acked is OLD
    assert proxy.routes_to == ("old",)
    assert proxy.clusters == {"old": "c1"}
    assert not proxy.warming
    assert proxy.stream.counters.make_timeouts == 0


@st.composite
def fleets_of_many(draw: st.DrawFn) -> Snapshot:
    """As above, with three accesses."""
    clusters = draw(st.dictionaries(st.sampled_from("abcde"), st.integers(1, 3), max_size=5))
    endpoints = {name: draw(st.integers(0, 2)) for name in clusters}
    awake = sorted(name for name in clusters if endpoints[name])
    somewhere = st.lists(st.sampled_from(awake), unique=True, max_size=2) if awake else st.just([])
    others = {name: draw(somewhere) for name in draw(st.sets(st.sampled_from(["x", "y"])))}
    return a_snapshot(clusters, routes_to=draw(somewhere), endpoints=endpoints, others=others)


def is_refused_scope(scope: XdsResource) -> bool:
    """Some of them, and always the same."""
    return scope.version[0] in "0123"


@settings(max_examples=examples(400), deadline=None)
@given(
    steps=st.lists(
        st.one_of(fleets_of_many(), st.sampled_from(["server", "server", "proxy", "proxy"])), max_size=40
    ),
    last=fleets_of_many(),
    refuses_routes=st.booleans(),
)
def test_in_any_order_of_events_a_refusal_holds_up_what_leads_to_it_and_nothing_else(
    steps: list[Snapshot | str], last: Snapshot, refuses_routes: bool
) -> None:
    """The proxy refuses every cluster of version 3, and some routes."""
    proxy = a_proxy(None)
    for step in [*steps, last]:
        if isinstance(step, Snapshot):
            bad = {scope.version for scope in step.resources[SCOPE].values() if is_refused_scope(scope)}
            proxy.refuses_versions |= {"c3", *(bad if refuses_routes else ())}
            proxy.set(step)
        elif step == "server" and proxy.outbox:
            proxy.server_takes()
        elif step == "proxy" and proxy.inbox:
            proxy.client_takes()
        assert [name for name in proxy.broken_routes() if name not in proxy.clusters] == []
    proxy.settle()

    assert not proxy.warming
    assert proxy.stream.counters.make_timeouts == 0
    there = last.resources[CLUSTER]
    good = {name: one.version for name, one in there.items() if one.version != "c3"}
    assert good.items() <= proxy.clusters.items()
    waits = set[str]()
    for name, scope in last.resources[SCOPE].items():
        leads_to = names_in(scope.body)
        refused = scope.version in proxy.refuses_versions
        if refused or any(there[cluster].version == "c3" for cluster in leads_to):
            waits.add(name)
        else:
            assert proxy.scopes[name] == leads_to
    assert {str(key) for key in proxy.stream.progress.rejected} == waits
    running = proxy.stream.progress.running
    assert running is not None
    assert running.snapshot is last
    assert {str(key) for key in running.differing_hosts} == waits
    assert set(proxy.clusters) <= {*there, *proxy.routes_to}
    assert set(proxy.scopes) <= set(last.resources[SCOPE])


def of_two(a: int = 0, b: int = 0, *, vacant: str = "", routes_to: str = "") -> Snapshot:
    """Of the clusters a and b those whose version is not 0; those of `vacant` have no endpoints."""
    clusters = {name: version for name, version in {"a": a, "b": b}.items() if version}
    endpoints = {name: int(name not in vacant) for name in clusters}
    return a_snapshot(clusters, endpoints=endpoints, routes_to=routes_to)


@st.composite
def pairs(draw: st.DrawFn, versions: st.SearchStrategy[int]) -> Snapshot:
    """Either cluster or both or none; one of them may lead to nobody."""
    a, b, vacant = draw(versions), draw(versions), draw(st.sampled_from(["", "a", "b", "ab"]))
    awake = [name for name, version in {"a": a, "b": b}.items() if version and name not in vacant]
    return of_two(a, b, vacant=vacant, routes_to=draw(st.sampled_from(["", *awake])))


SETTLE = ["server", "proxy"] * 8


@settings(max_examples=examples(400), deadline=None)
@given(
    steps=st.lists(
        st.one_of(pairs(st.integers(0, 3)), st.sampled_from(["server", "server", "proxy", "proxy"])),
        max_size=40,
    ),
    last=pairs(st.integers(0, 2)),
)
# The endpoints of `a` are under way when its cluster goes out again; the answer to them says nothing of that.
@example(
    steps=[
        *(of_two(a=1, b=1), *SETTLE),
        *(of_two(a=2, b=3), "proxy", of_two(a=2, b=1, vacant="a"), "server"),
    ],
    last=of_two(a=2, b=1, vacant="a"),
)
# The cluster goes back to what it was, whose endpoints went out before.
@example(steps=["server", of_two(a=1, b=3), of_two(a=2), "server", "proxy", "server"], last=of_two(a=1))
@example(
    steps=["server", of_two(a=1, b=3, vacant="ab"), of_two(a=2, vacant="a"), "server", "proxy", "server"],
    last=of_two(a=1, vacant="a"),
)
# The same with nothing refused.
@example(
    steps=["server", "server", of_two(a=1), "proxy", "server", "server", of_two(a=2, b=2, vacant="ab")],
    last=of_two(a=1, routes_to="a"),
)
# Endpoints that are held back go out again as they are.
@example(
    steps=[
        *(of_two(a=1, b=1, routes_to="a"), *SETTLE),
        *(of_two(a=2, b=3, routes_to="a"), "proxy", "server"),
        *(of_two(a=1, b=1, vacant="a"), "server", "proxy", "server"),
    ],
    last=of_two(a=1, b=1, vacant="a"),
)
def test_in_any_order_of_events_no_cluster_is_left_waiting_for_its_endpoints(
    steps: list[Snapshot | str], last: Snapshot
) -> None:
    """The proxy refuses every cluster of version 3, and has taken what came along with it all the same."""
    proxy = a_proxy(None)
    proxy.refuses_versions = {"c3"}
    for step in [*steps, last]:
        if isinstance(step, Snapshot):
            proxy.set(step)
        elif step == "server" and proxy.outbox:
            proxy.server_takes()
        elif step == "proxy" and proxy.inbox:
            proxy.client_takes()
    proxy.settle()
    proxy.wait(MAKE_TIMEOUT_S)
    proxy.settle()

    assert not proxy.warming
    assert proxy.clusters == {name: one.version for name, one in last.resources[CLUSTER].items()}
    assert proxy.endpoints == last.resources[ENDPOINT]
    assert proxy.stream.counters.make_timeouts == 0
    assert proxy.stream.progress.acked is last
    assert set(proxy.stream.sync_states().values()) == {SyncState.SYNCED}
    assert all(one.version for response in proxy.received for one in response.resources)
