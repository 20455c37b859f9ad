"""The gate by itself: when routes may go out, and when what is behind them may go."""

from __future__ import annotations

from typing import Any

import pytest

from builders.proxy import CLUSTER, CTR, ENDPOINT, LISTENER, SCOPE, a_snapshot
from tidegate.routing.snapshot import Resource, Snapshot, TypeUrl
from tidegate.xds.delta import DeltaSubscription
from tidegate.xds.gate import Gate
from tidegate.xds.holdings import Holdings
from tidegate.xds.standstill import Standstill, refused_hosts, standstill
from tidegate.xds.suspects import Change

OLD = a_snapshot({"old": 1}, routes_to=["old"])
NEW = a_snapshot({"new": 1}, routes_to=["new"])
BOTH = a_snapshot({"old": 1, "new": 1}, routes_to=["new"])


def a_gate(runs: Snapshot, **options: Any) -> Gate:
    """The gate before a proxy that runs all of `runs`."""
    holdings = Holdings()
    for type_url in TypeUrl:
        holdings.subscriptions[type_url] = DeltaSubscription(
            type_url, None, accepted=dict(runs.resources[type_url]), sent=dict(runs.resources[type_url])
        )
    return Gate(holdings, **options)


def tell(gate: Gate, type_url: TypeUrl, change: Change, error: str | None = None) -> None:
    """The proxy is sent `change` and accepts it, or refuses it with `error`."""
    subscription = gate.holdings.subscriptions[type_url]
    subscription.send(change, "1")
    if error is None:
        subscription.accept()
    else:
        subscription.refuse(error)


def of(snapshot: Snapshot, type_url: TypeUrl, name: str) -> Change:
    resource: Resource = snapshot.resources[type_url][name]
    return {name: resource}


def test_routes_wait_for_their_cluster_and_its_endpoints() -> None:
    gate = a_gate(OLD)
    assert not gate.lets_routes_out(NEW, 0, pending=True)
    tell(gate, CLUSTER, of(NEW, CLUSTER, "new"))
    assert not gate.lets_routes_out(NEW, 1, pending=True)
    tell(gate, ENDPOINT, of(NEW, ENDPOINT, "new"))
    assert gate.lets_routes_out(NEW, 2, pending=True)
    assert (gate.opens_at, gate.take_misses()) == (None, 0)


def test_where_no_route_waits_the_gate_is_open() -> None:
    gate = a_gate(OLD)
    assert gate.lets_routes_out(NEW, 0, pending=False)
    assert gate.opens_at is None


def test_silence_opens_the_gate_in_its_time_and_is_counted_once() -> None:
    gate = a_gate(OLD, timeout_s=10)
    assert not gate.lets_routes_out(NEW, 5, pending=True)
    assert gate.opens_at == 15
    assert not gate.lets_routes_out(NEW, 14.9, pending=True)
    assert gate.lets_routes_out(NEW, 15, pending=True)
    assert (gate.take_misses(), gate.take_misses()) == (1, 0)


def test_an_answer_in_time_is_no_miss() -> None:
    gate = a_gate(OLD, timeout_s=10)
    assert not gate.lets_routes_out(NEW, 5, pending=True)
    tell(gate, CLUSTER, of(NEW, CLUSTER, "new"))
    tell(gate, ENDPOINT, of(NEW, ENDPOINT, "new"))
    assert gate.lets_routes_out(NEW, 100, pending=True)
    assert gate.take_misses() == 0


@pytest.mark.parametrize("type_url", [CLUSTER, ENDPOINT])
def test_a_refused_backend_is_not_waited_for(type_url: TypeUrl) -> None:
    gate = a_gate(OLD)
    if type_url is ENDPOINT:
        tell(gate, CLUSTER, of(NEW, CLUSTER, "new"))
    tell(gate, type_url, of(NEW, type_url, "new"), error="no")
    assert gate.lets_routes_out(NEW, 0, pending=True)


def test_a_suspect_is_waited_for_until_it_is_known_who_is_to_blame() -> None:
    gate = a_gate(OLD)
    two = a_snapshot({"old": 1, "new": 1, "bad": 1}, routes_to=["old"])
    tell(gate, CLUSTER, {**of(two, CLUSTER, "new"), **of(two, CLUSTER, "bad")}, error="one of you")
    assert not gate.lets_routes_out(two, 0, pending=True)


def test_routes_are_settled_once_the_proxy_runs_them() -> None:
    gate = a_gate(OLD)
    assert not gate.routes_settled(BOTH, Standstill())
    tell(gate, SCOPE, of(BOTH, SCOPE, CTR))
    assert gate.routes_settled(BOTH, Standstill())


def test_a_refused_route_is_settled_and_keeps_what_it_leads_to_as_the_proxy_runs_it() -> None:
    goal = a_snapshot({"new": 1}, routes_to=["new"], others={"other": []})
    gate = a_gate(a_snapshot({"old": 1, "idle": 1, "new": 1}, routes_to=["old"], others={"other": []}))
    tell(gate, SCOPE, of(goal, SCOPE, CTR), error="bad route")
    still = standstill(gate.holdings, goal)
    assert still.scopes == {CTR: "bad route"}
    assert gate.routes_settled(goal, still)
    assert (still.keeps("old"), still.keeps("idle")) == (True, False)
    assert gate.holdings.differing(CLUSTER, goal) == {"old", "idle"}
    assert not gate.settled(CLUSTER, goal, still)
    tell(gate, CLUSTER, {"idle": None})
    assert gate.settled(CLUSTER, goal, still)


def test_what_an_unknown_route_leads_to_is_kept_whatever_it_is() -> None:
    """The proxy came back with a version of it that this process has never seen, and refuses the present one."""
    gate = a_gate(OLD)
    gate.holdings.subscriptions[SCOPE] = DeltaSubscription.first(SCOPE, frozenset(), {CTR: "of old"})
    tell(gate, SCOPE, of(NEW, SCOPE, CTR), error="bad route")
    assert standstill(gate.holdings, NEW).keeps("anything")


def test_a_route_to_a_refused_cluster_stands_still_in_the_words_about_that() -> None:
    gate = a_gate(OLD)
    goal = a_snapshot({"old": 1, "bad": 1}, routes_to=["bad"], others={"other": ["old"]})
    tell(gate, CLUSTER, of(goal, CLUSTER, "bad"), error="bad cluster")
    still = standstill(gate.holdings, goal)
    assert still.scopes == {CTR: "bad cluster"}
    assert {str(host): words for host, words in refused_hosts(gate.holdings, goal, still).items()} == {
        CTR: "bad cluster"
    }


def test_a_route_to_a_cluster_that_stays_as_it_was_goes_on_and_its_object_says_why_it_waits() -> None:
    gate = a_gate(OLD)
    goal = a_snapshot({"old": 2}, routes_to=["old"], others={"other": []})
    tell(gate, CLUSTER, of(goal, CLUSTER, "old"), error="bad cluster")
    still = standstill(gate.holdings, goal)
    assert still.scopes == {}
    assert {str(host): words for host, words in refused_hosts(gate.holdings, goal, still).items()} == {
        CTR: "bad cluster"
    }


def test_a_refused_first_listener_is_everybodys() -> None:
    gate = a_gate(OLD)
    gate.holdings.subscriptions[LISTENER] = DeltaSubscription(LISTENER, None)
    goal = a_snapshot({"old": 1}, routes_to=["old"], others={"other": ["old"]})
    (listener,) = goal.resources[LISTENER].values()
    tell(gate, LISTENER, {listener.name: listener}, error="bad listener")
    still = standstill(gate.holdings, goal)
    assert set(refused_hosts(gate.holdings, goal, still)) == set(goal.hosts)
