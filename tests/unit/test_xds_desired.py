"""What a proxy should have of each name: the rows of the table in xds/desired.py, one by one, and the endpoints that it needs."""

from __future__ import annotations

from typing import Any

import pytest

from builders.proxy import CLUSTER, CTR, ENDPOINT, GATEWAY, LISTENER, SCOPE, a_snapshot
from tidegate.xds.desired import NOTHING_HELD_BACK, TABLE, DesiredResources, HeldBack, InGoal, ProxyUpdate
from tidegate.xds.protocols import DeltaSubscription, SotwSubscription
from tidegate.xds.resources import Snapshot, TypeUrl, XdsResource
from tidegate.xds.state import StreamState
from tidegate.xds.subscription import Subscription

SECRET = TypeUrl.SECRET
RUNS = a_snapshot({"a": 1}, routes_to=["a"])
GONE = a_snapshot({})
CHANGED = a_snapshot({"a": 2, "b": 1}, routes_to=["a", "b"])
EMPTIED = a_snapshot({"a": 1}, endpoints={"a": 0})

SENT, KEPT, DROPPED = "what the goal has", "what the proxy has", "nothing"


def a_subscription(type_url: TypeUrl, runs: Snapshot) -> Subscription:
    """The subscription of a gateway that runs all of `runs`."""
    resources = dict(runs.resources[type_url])
    return DeltaSubscription(type_url, None, accepted=resources, sent=dict(resources))


def a_state(runs: Snapshot = RUNS) -> StreamState:
    """The state of a gateway that runs all of `runs`."""
    return StreamState({type_url: a_subscription(type_url, runs) for type_url in TypeUrl})


def found(
    state: StreamState, type_url: TypeUrl, name: str, goal: Snapshot, **options: Any
) -> XdsResource | None:
    """What the gateway should have under `name`."""
    update = ProxyUpdate(goal, options.pop("held_back", NOTHING_HELD_BACK), **options)
    return DesiredResources(state).find_desired(state.subscriptions[type_url], update).get(name)


ROWS = [
    pytest.param(CLUSTER, "a", CHANGED, {}, SENT, id="a cluster of the goal is sent"),
    pytest.param(CLUSTER, "a", GONE, {}, KEPT, id="a cluster stays while a route may lead there"),
    pytest.param(CLUSTER, "a", GONE, {"breaking": True}, DROPPED, id="then it goes"),
    pytest.param(
        CLUSTER,
        "a",
        GONE,
        {"breaking": True, "held_back": HeldBack(in_use=frozenset("a"))},
        KEPT,
        id="unless a route that is held back leads there",
    ),
    pytest.param(
        CLUSTER,
        "a",
        GONE,
        {"breaking": True, "held_back": HeldBack(in_use=None)},
        KEPT,
        id="or one that leads nobody knows where",
    ),
    pytest.param(ENDPOINT, "a", EMPTIED, {}, KEPT, id="endpoints stay while a route may lead there"),
    pytest.param(ENDPOINT, "a", EMPTIED, {"breaking": True}, SENT, id="then they become none"),
    pytest.param(ENDPOINT, "a", GONE, {"breaking": True}, KEPT, id="endpoints go with their cluster"),
    pytest.param(SCOPE, CTR, CHANGED, {}, SENT, id="a scope of the goal is sent"),
    pytest.param(SCOPE, CTR, CHANGED, {"unsent": frozenset("b")}, KEPT, id="not with an unsent cluster"),
    pytest.param(
        SCOPE,
        CTR,
        CHANGED,
        {"held_back": HeldBack({SCOPE: {}}, {CTR: "bad cluster"})},
        KEPT,
        id="nor with a rejected cluster",
    ),
    pytest.param(
        SCOPE,
        CTR,
        CHANGED,
        {"held_back": HeldBack({SCOPE: {CTR: "bad"}}, {CTR: "bad"})},
        SENT,
        id="a rejected scope is left to the bisector",
    ),
    pytest.param(LISTENER, GATEWAY, CHANGED, {}, SENT, id="a listener of the goal is sent"),
]


@pytest.mark.parametrize(("type_url", "name", "goal", "options", "expected"), ROWS)
def test_each_row_of_the_table(
    type_url: TypeUrl, name: str, goal: Snapshot, options: dict[str, Any], expected: str
) -> None:
    resources = {
        SENT: goal.resources[type_url].get(name),
        KEPT: RUNS.resources[type_url][name],
        DROPPED: None,
    }
    assert found(a_state(), type_url, name, goal, **options) is resources[expected]


@pytest.mark.parametrize("type_url", [SCOPE, LISTENER, SECRET])
def test_what_the_goal_does_not_have_is_dropped(type_url: TypeUrl) -> None:
    state = a_state()
    other = XdsResource("other", "1", b"")
    state.subscriptions[type_url] = DeltaSubscription(type_url, None, accepted={"other": other})
    desired = DesiredResources(state).find_desired(
        state.subscriptions[type_url], ProxyUpdate(RUNS, NOTHING_HELD_BACK)
    )
    assert desired["other"] is None


def test_the_table_has_a_row_for_everything_that_can_be() -> None:
    kinds = {(row.type_url, row.in_goal) for row in TABLE}
    possible = {(type_url, in_goal) for type_url in TypeUrl for in_goal in (InGoal.YES, InGoal.NO)}
    assert kinds == possible | {(ENDPOINT, InGoal.EMPTIED)}
    for kind in kinds:
        rows = [row for row in TABLE if (row.type_url, row.in_goal) == kind]
        combinations = [
            (referenced, blocked)
            for row in rows
            for referenced in ([False, True] if row.referenced is None else [row.referenced])
            for blocked in ([False, True] if row.blocked is None else [row.blocked])
        ]
        assert sorted(combinations) == [(False, False), (False, True), (True, False), (True, True)]


# Names that a proxy does not ask for, or asks for by name


def test_a_name_without_subscription_is_dropped() -> None:
    state = a_state()
    state.subscriptions[ENDPOINT].names = set()
    assert found(state, ENDPOINT, "a", CHANGED) is None


def test_a_cluster_that_a_client_names_stays_until_it_gives_it_up() -> None:
    state = a_state()
    resources = dict(RUNS.resources[CLUSTER])
    clusters = SotwSubscription(CLUSTER, {"a"}, accepted=resources, sent=dict(resources))
    state.subscriptions[CLUSTER] = clusters
    assert found(state, CLUSTER, "a", GONE, breaking=True) is resources["a"]
    clusters.replace_names(set())
    assert found(state, CLUSTER, "a", GONE, breaking=True) is None


# Endpoints and their clusters


def test_endpoints_wait_for_their_changed_cluster() -> None:
    state = a_state()
    assert found(state, ENDPOINT, "a", CHANGED) is RUNS.resources[ENDPOINT]["a"]
    state.subscriptions[CLUSTER].record_sent({"a": CHANGED.resources[CLUSTER]["a"]}, "1")
    assert found(state, ENDPOINT, "a", CHANGED) is CHANGED.resources[ENDPOINT]["a"]


def test_endpoints_of_a_cluster_that_was_overtaken_go_out_all_the_same() -> None:
    state = a_state()
    state.subscriptions[CLUSTER].record_sent({"b": CHANGED.resources[CLUSTER]["b"]}, "1")
    desired, endpoints = DesiredResources(state), state.subscriptions[ENDPOINT]
    desired.note_overtaken(CHANGED, RUNS)
    assert (
        desired.find_desired(endpoints, ProxyUpdate(RUNS, NOTHING_HELD_BACK))["b"]
        is CHANGED.resources[ENDPOINT]["b"]
    )


def test_a_suspected_cluster_may_wait_for_the_endpoints_of_the_goal() -> None:
    state, newest = a_state(), a_snapshot({"a": 3, "b": 2})
    clusters = state.subscriptions[CLUSTER]
    clusters.record_sent(dict(CHANGED.resources[CLUSTER]), "1")
    clusters.record_nack("one of you")
    assert found(state, ENDPOINT, "a", newest) is newest.resources[ENDPOINT]["a"]
