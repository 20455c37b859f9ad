"""What gRPC clients without a proxy get of an access, and what they do without."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, settings

from builders.any_fleet import any_fleet
from builders.fleet import a_backend, a_fleet
from builders.model_access import a_model_access, a_route
from stages.examples import examples
from tidegate.api.meta import ObjectKey
from tidegate.api.model_access import ModelAccess
from tidegate.routing import protos, proxyless
from tidegate.routing.credentials import NamedKey
from tidegate.routing.envoy import listener
from tidegate.routing.fleet import FleetState
from tidegate.routing.guards import KeyGuard
from tidegate.routing.hosts import HostKey, HostKind
from tidegate.routing.incremental import IncrementalTranslator, RoutingChange
from tidegate.routing.planner import plan_routing
from tidegate.xds.proxyless import GrpcSnapshotBuilder, build_placeholder_cluster
from tidegate.xds.resources import Snapshot, TypeUrl

CTR = HostKey(HostKind.ACCESS, ObjectKey("ads", "ctr"))


def built(*fleets: FleetState) -> Snapshot:
    """The snapshot after all of these, one after the other."""
    routing, builder = IncrementalTranslator(), GrpcSnapshotBuilder()
    for fleet in fleets:
        routing.replace_fleet(fleet)
        builder.apply_change(routing.take_change())
    return builder.build_snapshot()


def routes_of(*parts: Any) -> list[Any]:
    """The routes of ads/ctr, as gRPC gets them."""
    host = plan_routing(a_fleet(*parts)).accesses[ObjectKey("ads", "ctr")].host
    described: Any = protos.to_redacted_json(
        protos.encode_any(listener.TYPE, proxyless.encode_listener("ctr.ads.tidegate", host))
    )
    (virtual_host,) = described["api_listener"]["api_listener"]["route_config"]["virtual_hosts"]
    routes: list[Any] = virtual_host["routes"]
    return routes


def test_weights_and_header_tests_are_those_of_the_spec() -> None:
    targets = [{"inference": "a", "weight": 3}, {"inference": "b", "weight": 1}]
    match = {"headers": [{"name": "x-place", "prefix": "de-"}]}
    (route,) = routes_of(
        a_model_access(routes=[a_route("r", targets=targets, match=match)]),
        a_backend("a", "10.0.0.1"),
        a_backend("b", "10.0.0.2"),
    )
    assert route["match"]["headers"] == [{"name": "x-place", "prefix_match": "de-"}]
    weighted = route["route"]["weighted_clusters"]
    assert {one["name"]: one["weight"] for one in weighted["clusters"]} == {
        "inference/ads/a/grpc": 3,
        "inference/ads/b/grpc": 1,
    }
    assert weighted["total_weight"] == 4


def test_intervals_of_users_become_one_share_for_each_target() -> None:
    (route,) = routes_of(
        a_model_access(routes=[a_route("r", "a", "b", "c", sticky={"header": "x-user-id"})]),
        a_backend("a", "10.0.0.1"),
        a_backend("b"),
        a_backend("c", "10.0.0.3"),
    )
    clusters = route["route"]["weighted_clusters"]["clusters"]
    names = [one["name"] for one in clusters]
    assert sorted(names) == sorted(set(names)) == ["inference/ads/a/grpc", "inference/ads/c/grpc"]


def test_what_has_no_effect_is_named() -> None:
    protection = {
        "rateLimit": {"requests": 1, "per": "1s"},
        "maxConcurrent": 5,
        "maxPending": 5,
        "outlier": {"consecutiveFailures": 2},
        "admissionControl": {},
    }
    route = a_route(
        "r",
        "a",
        value="2",
        sticky={"cookie": "u"},
        mirror=[{"inference": "b"}],
        retry={"attempts": 1},
        fallback={"inference": "c"},
    )
    assert proxyless.ignored_fields(a_model_access(routes=[route], protection=protection)) == (
        "protection.rateLimit",
        "protection.maxPending",
        "protection.admissionControl",
        "protection.outlier",
        "routes[r].value",
        "routes[r].timeout",
        "routes[r].sticky",
        "routes[r].mirror",
        "routes[r].retry.budgetPercent",
    )


def test_of_a_plain_access_only_the_timeout_has_no_effect() -> None:
    assert proxyless.ignored_fields(a_model_access(routes=[a_route("r")])) == ("routes[r].timeout",)


def test_an_access_that_checks_its_callers_is_not_there() -> None:
    open_host = plan_routing(a_fleet(a_model_access(), a_backend("ctr", "10.0.0.1"))).hosts[CTR]
    guard = KeyGuard("x-api-key", (NamedKey("alice", "canary"),))
    guarded = replace(open_host, host=replace(open_host.host, guard=guard))
    builder = GrpcSnapshotBuilder()
    builder.apply_change(RoutingChange({CTR: open_host}, {}))
    assert "ctr.ads.tidegate" in builder.build_snapshot().resources[TypeUrl.LISTENER]
    builder.apply_change(RoutingChange({CTR: guarded}, {}))
    assert "ctr.ads.tidegate" not in builder.build_snapshot().resources[TypeUrl.LISTENER]
    for auth in ({"apiKeys": {"secret": "keys"}}, {"mtls": {"identities": ["a.example.com"]}}):
        assert proxyless.ignored_fields(a_model_access(auth=auth)) == ("auth",)


def test_an_access_whose_callers_cannot_be_checked_leads_nowhere() -> None:
    closed = a_model_access(auth={"apiKeys": {"secret": "missing"}})
    (route,) = routes_of(closed, a_backend("ctr", "10.0.0.1"))
    assert "route" not in route


def test_the_list_fits_into_the_status() -> None:
    match = {"headers": [{"name": "x", "exact": "y"}]}
    routes = [a_route(f"r{n}", "a", match=match, sticky={"header": "u"}) for n in range(64)]
    access: ModelAccess = a_model_access(routes=routes)
    assert len(proxyless.ignored_fields(access)) == 64
    assert proxyless.ignored_fields(access)[-1] == "…"


def test_a_placeholder_equals_the_cluster_it_replaces() -> None:
    clusters = built(a_fleet(a_model_access(), a_backend("ctr", "10.0.0.1"))).resources[TypeUrl.CLUSTER]
    assert {name: build_placeholder_cluster(name) for name in clusters} == dict(clusters)
    assert build_placeholder_cluster("foreign") is None


@settings(max_examples=examples(30))
@given(any_fleet(), any_fleet())
def test_a_followed_fleet_is_the_snapshot_of_its_end(before: FleetState, after: FleetState) -> None:
    assert built(before, after).revision == built(after).revision
