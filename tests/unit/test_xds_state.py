"""What a proxy has compared with a goal: whether routes may go out, and what is held back because the proxy rejected something."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders.proxy import CLUSTER, CTR, ENDPOINT, LISTENER, SCOPE, a_snapshot, host
from tidegate.routing.envoy.routes import HOSTS_SCOPE
from tidegate.xds.desired import find_held_back, rejected_hosts
from tidegate.xds.protocols import DeltaSubscription
from tidegate.xds.resources import NO_RESOURCES, Snapshot, TypeUrl, XdsResource
from tidegate.xds.state import StreamState
from tidegate.xds.subscription import Change

OLD = a_snapshot({"old": 1}, routes_to=["old"])
NEW = a_snapshot({"new": 1}, routes_to=["new"])
BOTH = a_snapshot({"old": 1, "new": 1}, routes_to=["new"])


def a_state(runs: Snapshot) -> StreamState:
    """The state of a proxy that runs all of `runs`."""
    return StreamState(
        {
            type_url: DeltaSubscription(
                type_url, None, accepted=dict(runs.resources[type_url]), sent=dict(runs.resources[type_url])
            )
            for type_url in TypeUrl
        }
    )


def answer(state: StreamState, type_url: TypeUrl, change: Change, error: str | None = None) -> None:
    """The proxy is sent `change` and accepts it, or rejects it with `error`."""
    subscription = state.subscriptions[type_url]
    subscription.record_sent(change, "1")
    if error is None:
        subscription.record_ack()
    else:
        subscription.record_nack(error)


def of(snapshot: Snapshot, type_url: TypeUrl, name: str) -> Change:
    resource: XdsResource = snapshot.resources[type_url][name]
    return {name: resource}


def reasons(state: StreamState, goal: Snapshot) -> dict[str, str]:
    """The objects that wait, by name, and why."""
    held_back = find_held_back(state, goal)
    return {str(host): reason for host, reason in rejected_hosts(state, goal, held_back).items()}


def test_a_proxy_has_the_backends_once_it_accepted_clusters_and_endpoints() -> None:
    state = a_state(OLD)
    assert not state.has_backends(NEW)
    answer(state, CLUSTER, of(NEW, CLUSTER, "new"))
    assert not state.has_backends(NEW)
    answer(state, ENDPOINT, of(NEW, ENDPOINT, "new"))
    assert state.has_backends(NEW)


@pytest.mark.parametrize("type_url", [CLUSTER, ENDPOINT])
def test_a_rejected_backend_is_not_waited_for(type_url: TypeUrl) -> None:
    state = a_state(OLD)
    if type_url is ENDPOINT:
        answer(state, CLUSTER, of(NEW, CLUSTER, "new"))
    answer(state, type_url, of(NEW, type_url, "new"), error="no")
    assert state.has_backends(NEW)


def test_a_suspect_is_waited_for_until_the_rejected_resource_is_found() -> None:
    state = a_state(OLD)
    two = a_snapshot({"old": 1, "new": 1, "bad": 1}, routes_to=["old"])
    answer(state, CLUSTER, {**of(two, CLUSTER, "new"), **of(two, CLUSTER, "bad")}, error="one of you")
    assert not state.has_backends(two)


def test_what_a_proxy_runs_differs_until_it_accepts_the_routes() -> None:
    state = a_state(OLD)
    assert state.differing_names(SCOPE, BOTH) == {CTR}
    answer(state, SCOPE, of(BOTH, SCOPE, CTR))
    assert state.differing_names(SCOPE, BOTH) == frozenset()


def test_a_rejected_route_is_exempt_and_keeps_what_it_leads_to_as_the_proxy_runs_it() -> None:
    goal = a_snapshot({"new": 1}, routes_to=["new"], others={"other": []})
    state = a_state(a_snapshot({"old": 1, "idle": 1, "new": 1}, routes_to=["old"], others={"other": []}))
    answer(state, SCOPE, of(goal, SCOPE, CTR), error="bad route")
    held_back = find_held_back(state, goal)
    assert held_back.scopes == {CTR: "bad route"}
    assert held_back.is_exempt(SCOPE, CTR, goal)
    assert state.differing_names(CLUSTER, goal) == {"old", "idle"}
    assert held_back.is_exempt(CLUSTER, "old", goal)
    assert not held_back.is_exempt(CLUSTER, "idle", goal)


def test_a_rejected_route_from_an_earlier_stream_keeps_every_cluster() -> None:
    """The proxy came back with a version that this process has never seen, and rejects the present one."""
    state = a_state(OLD)
    state.subscriptions[SCOPE] = DeltaSubscription.from_first_request(SCOPE, frozenset(), {CTR: "of old"})
    answer(state, SCOPE, of(NEW, SCOPE, CTR), error="bad route")
    assert find_held_back(state, NEW).keeps_cluster("anything")


def test_a_route_to_a_rejected_cluster_is_held_back_for_the_same_reason() -> None:
    state = a_state(OLD)
    goal = a_snapshot({"old": 1, "bad": 1}, routes_to=["bad"], others={"other": ["old"]})
    answer(state, CLUSTER, of(goal, CLUSTER, "bad"), error="bad cluster")
    assert find_held_back(state, goal).scopes == {CTR: "bad cluster"}
    assert reasons(state, goal) == {CTR: "bad cluster"}


def test_a_route_to_a_cluster_that_stays_as_it_was_goes_out_and_its_object_says_why_it_waits() -> None:
    state = a_state(OLD)
    goal = a_snapshot({"old": 2}, routes_to=["old"], others={"other": []})
    answer(state, CLUSTER, of(goal, CLUSTER, "old"), error="bad cluster")
    assert find_held_back(state, goal).scopes == {}
    assert reasons(state, goal) == {CTR: "bad cluster"}


def test_a_rejected_first_listener_concerns_every_object() -> None:
    state = a_state(OLD)
    state.subscriptions[LISTENER] = DeltaSubscription(LISTENER, None)
    goal = a_snapshot({"old": 1}, routes_to=["old"], others={"other": ["old"]})
    (listener,) = goal.resources[LISTENER].values()
    answer(state, LISTENER, {listener.name: listener}, error="bad listener")
    assert reasons(state, goal).keys() == set(map(str, goal.hosts))


def with_hosts(**versions: str) -> Snapshot:
    """A snapshot with the hosts of accesses, by the names and versions of their aliases."""
    snapshot = a_snapshot({}, others={name: [] for name in versions if name != "ctr"})
    aliases = {
        str(host(name)): XdsResource(str(host(name)), version, b"") for name, version in versions.items()
    }
    hosts_scope = XdsResource(HOSTS_SCOPE, str(versions), b"", aliases=NO_RESOURCES.with_changes(aliases))
    scopes = snapshot.resources[SCOPE].with_changes({HOSTS_SCOPE: hosts_scope})
    return replace(snapshot, resources={**snapshot.resources, SCOPE: scopes})


def test_a_rejected_scope_of_hosts_concerns_the_objects_whose_hosts_differ() -> None:
    state, goal = a_state(with_hosts(ctr="1", other="1")), with_hosts(ctr="1", other="2")
    answer(state, SCOPE, of(goal, SCOPE, HOSTS_SCOPE), error="bad host")
    assert reasons(state, goal) == {str(host("other")): "bad host"}


def test_a_rejected_scope_of_hosts_from_an_earlier_stream_concerns_every_object_with_hosts() -> None:
    state, goal = a_state(OLD), with_hosts(ctr="1", other="2")
    versions = {HOSTS_SCOPE: "of old"}
    state.subscriptions[SCOPE] = DeltaSubscription.from_first_request(SCOPE, frozenset(), versions)
    answer(state, SCOPE, of(goal, SCOPE, HOSTS_SCOPE), error="bad host")
    assert reasons(state, goal) == {CTR: "bad host", str(host("other")): "bad host"}
