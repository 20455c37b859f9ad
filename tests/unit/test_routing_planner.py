"""The planner: who gets which host, which targets count, and that nobody can spoil another's routes."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders.any_fleet import SECRETS, any_fleet, any_model_access, fuzzed_access
from builders.fleet import a_backend, a_feature_compute, a_fleet, credentials
from builders.model_access import a_model_access, a_route
from stages.examples import examples
from tidegate.api.meta import ObjectKey
from tidegate.api.model_access import ModelAccess
from tidegate.api.reasons import Reason
from tidegate.routing.access_rules import AccessPlan, PlannedTarget
from tidegate.routing.credentials import ClientAuthority
from tidegate.routing.envoy import routes
from tidegate.routing.envoy.listener import ListenerSettings
from tidegate.routing.fleet import Backend, FleetState
from tidegate.routing.ir import RouteRule
from tidegate.routing.planner import RoutingPlan, plan_routing
from tidegate.xds.resources import TypeUrl
from tidegate.xds.snapshot_builder import SnapshotBuilder

CTR = ObjectKey("ads", "ctr")


def planned(*parts: ModelAccess | Backend, key: ObjectKey = CTR) -> AccessPlan:
    """What becomes of one access of the fleet."""
    return plan_routing(a_fleet(*parts)).accesses[key]


def weights(rule: RouteRule) -> dict[str, int]:
    """The weights in effect, by Inference."""
    return {target.backend.name: target.weight for target in rule.targets}


def refused(access: AccessPlan) -> list[tuple[Reason, str]]:
    """Reason and part of each refusal."""
    return [(refusal.reason, refusal.part) for refusal in access.refusals]


# Targets


@pytest.mark.parametrize(
    ("asked", "awake", "expected"),
    [
        ({"a": 80, "b": 20}, "ab", {"a": 80, "b": 20}),
        ({"a": 80, "b": 20}, "a", {"a": 80, "b": 0}),
        ({"a": 80, "b": 20}, "b", {"a": 0, "b": 20}),
        ({"a": 100, "b": 0}, "ab", {"a": 100, "b": 0}),
        ({"a": 100, "b": 0}, "a", {"a": 100, "b": 0}),
    ],
)
def test_a_sleeping_target_takes_no_share(
    asked: dict[str, int], awake: str, expected: dict[str, int]
) -> None:
    targets = [{"inference": name, "weight": weight} for name, weight in asked.items()]
    backends = [a_backend(name, *(["10.0.0.1"] if name in awake else [])) for name in asked]
    (rule,) = planned(a_model_access(routes=[a_route(targets=targets)]), *backends).host.rules
    assert weights(rule) == expected
    assert rule.unavailable is None


@pytest.mark.parametrize(("asked", "awake"), [({"a": 1, "b": 1}, ""), ({"a": 100, "b": 0}, "b")])
def test_without_an_awake_target_of_some_weight_the_route_says_so(asked: dict[str, int], awake: str) -> None:
    targets = [{"inference": name, "weight": weight} for name, weight in asked.items()]
    backends = [a_backend(name, *(["10.0.0.1"] if name in awake else [])) for name in asked]
    access = planned(a_model_access(routes=[a_route(targets=targets)]), *backends)
    assert access.host.rules[0].unavailable == (
        "ModelAccess ads/ctr: no target of route default has a ready endpoint; "
        "see kubectl -n ads describe modelaccess ctr"
    )
    assert not access.refusals


def test_the_status_shows_weights_in_effect_and_endpoints() -> None:
    access = planned(
        a_model_access(routes=[a_route("default", "b", "a")]),
        a_backend("a", "10.0.0.1", "10.0.0.2"),
        a_backend("b"),
    )
    assert access.routes[0].targets == (PlannedTarget("a", 100, 2), PlannedTarget("b", 0, 0))


def test_a_missing_target_is_refused_and_left_out() -> None:
    access = planned(
        a_model_access(routes=[a_route("default", "here", "gone")]), a_backend("here", "10.0.0.1")
    )
    assert refused(access) == [(Reason.TARGET_NOT_FOUND, "spec.routes[default].targets: gone")]
    assert weights(access.host.rules[0]) == {"here": 100}


def test_a_target_in_another_namespace_does_not_exist() -> None:
    access = planned(a_model_access(), a_backend("ctr", "10.0.0.1", namespace="other"))
    assert refused(access) == [(Reason.TARGET_NOT_FOUND, "spec.routes[default].targets: ctr")]


def test_a_feature_compute_is_no_target() -> None:
    access = planned(a_model_access(), a_feature_compute("ctr", "10.0.0.1"))
    assert refused(access) == [(Reason.TARGET_NOT_FOUND, "spec.routes[default].targets: ctr")]


def test_a_target_that_serves_another_name_is_refused() -> None:
    access = planned(
        a_model_access(routes=[a_route("default", "first", "second")]),
        a_backend("first", "10.0.0.1", model_name="ctr"),
        a_backend("second", "10.0.0.2", model_name="cvr"),
    )
    assert refused(access) == [(Reason.SERVED_NAME_MISMATCH, "spec.routes[default].targets: second")]
    assert weights(access.host.rules[0]) == {"first": 100}


# Hosts


def test_the_older_access_has_the_host() -> None:
    newer = a_model_access("newer", hosts=["x.com"], metadata={"creationTimestamp": "2026-02-01T00:00:00Z"})
    older = a_model_access("older", hosts=["x.com"], metadata={"creationTimestamp": "2026-01-01T00:00:00Z"})
    result = plan_routing(a_fleet(newer, older)).accesses
    assert "x.com" in result[older.key].host.hosts
    assert "x.com" not in result[newer.key].host.hosts
    (refusal,) = result[newer.key].refusals[:1]
    assert (refusal.reason, refusal.part) == (Reason.HOST_CONFLICT, "spec.hosts: x.com")
    assert "ads/older" in refusal.message
    assert "newer.ads.tidegate works meanwhile" in refusal.message


def test_of_two_as_old_the_first_by_name_has_the_host() -> None:
    a, b = a_model_access("a", hosts=["x.com"]), a_model_access("b", hosts=["x.com"])
    assert "x.com" in plan_routing(a_fleet(b, a)).accesses[a.key].host.hosts


def test_one_without_an_age_wins_over_nobody() -> None:
    unborn = a_model_access("a", hosts=["x.com"], metadata={"creationTimestamp": None})
    stored = a_model_access("b", hosts=["x.com"])
    assert "x.com" in plan_routing(a_fleet(unborn, stored)).accesses[stored.key].host.hosts


def test_features_and_accesses_never_share_a_name() -> None:
    result = plan_routing(
        a_fleet(
            a_model_access("ctr", "ads"),
            a_model_access("ads", "features"),
            a_feature_compute("ctr", "10.0.0.1"),
        )
    )
    domains = [domain for host in result.ir.hosts for domain in host.hosts]
    assert len(domains) == len(set(domains))


# Clusters


def test_a_fallback_answers_while_no_target_exists() -> None:
    """Whoever deletes the target must not take the fallback along."""
    access = a_model_access(routes=[a_route("default", "gone", fallback={"inference": "small"})])

    found = plan_routing(a_fleet(access, a_backend("small", "10.0.0.1"))).accesses[access.key]

    assert found.unavailable_reason is None
    assert [refusal.reason for refusal in found.refusals] == [Reason.TARGET_NOT_FOUND]


def test_a_fallback_of_another_name_is_refused_while_a_target_exists() -> None:
    access = a_model_access(routes=[a_route("default", "ctr", fallback={"inference": "small"})])
    fleet = a_fleet(access, a_backend("ctr"), a_backend("small", "10.0.0.1", model_name="other"))

    found = plan_routing(fleet).accesses[access.key]

    assert found.unavailable_reason is not None
    assert [refusal.reason for refusal in found.refusals] == [Reason.SERVED_NAME_MISMATCH]


def test_retries_that_end_at_the_fallback_have_its_routes_budget() -> None:
    retry = {"attempts": 5, "budgetPercent": 5}
    access = a_model_access(routes=[a_route("default", "gone", retry=retry, fallback={"inference": "small"})])

    result = plan_routing(a_fleet(access, a_backend("small", "10.0.0.1")))

    assert [pool.retry_budget_percent for pool in result.ir.pools if pool.endpoints] == [5]


def test_the_largest_retry_budget_of_all_routes_counts() -> None:
    result = plan_routing(
        a_fleet(
            a_model_access("a", routes=[a_route(retry={"attempts": 1, "budgetPercent": 10})]),
            a_model_access("b", routes=[a_route(retry={"attempts": 2, "budgetPercent": 30})]),
            a_model_access("c", routes=[a_route(retry={"attempts": 0, "budgetPercent": 90})]),
            a_backend("ctr", "10.0.0.1"),
        )
    )
    assert [pool.retry_budget_percent for pool in result.ir.pools] == [30]


def test_every_backend_has_clusters_whether_routed_to_or_not() -> None:
    """So that swapping a target is a change of routes alone."""
    before, after = (
        SnapshotBuilder(ListenerSettings()).build_snapshot(
            plan_routing(
                a_fleet(
                    a_model_access(routes=[a_route("default", target)]),
                    a_backend("a", "10.0.0.1"),
                    a_backend("b", "10.0.0.2"),
                )
            )
        )
        for target in ("a", "b")
    )
    changed = [kind for kind in TypeUrl if before.resources[kind].version != after.resources[kind].version]
    assert changed == [TypeUrl.SCOPE]


# Properties


def built(result: RoutingPlan) -> SnapshotBuilder:
    """A builder that has built this before."""
    builder = SnapshotBuilder(ListenerSettings())
    builder.build_snapshot(result)
    return builder


@settings(max_examples=examples(60))
@given(any_fleet(), st.randoms())
def test_the_order_of_the_objects_changes_nothing(fleet: FleetState, random: Any) -> None:
    accesses, backends = list(fleet.accesses), list(fleet.backends.items())
    random.shuffle(accesses)
    random.shuffle(backends)
    shuffled = FleetState(accesses, dict(backends), fleet.credentials)
    one = SnapshotBuilder(ListenerSettings()).build_snapshot(plan_routing(fleet))
    other = SnapshotBuilder(ListenerSettings()).build_snapshot(plan_routing(shuffled))
    assert one.revision == other.revision
    assert one.resources == other.resources
    assert one.refusals == other.refusals


@settings(max_examples=examples(60))
@given(any_fleet(), any_fleet())
def test_what_a_builder_remembers_changes_nothing(before: FleetState, after: FleetState) -> None:
    fresh = SnapshotBuilder(ListenerSettings()).build_snapshot(plan_routing(after))
    assert built(plan_routing(before)).build_snapshot(plan_routing(after)).resources == fresh.resources


@settings(max_examples=examples(60))
@given(any_fleet(), any_model_access(name="intruder"))
def test_one_access_never_changes_the_bytes_of_another(fleet: FleetState, intruder: ModelAccess) -> None:
    """But for the hosts that the older takes from the newer."""
    without = plan_routing(fleet)
    with_it = plan_routing(FleetState([*fleet.accesses, intruder], fleet.backends, fleet.credentials))
    taken = set(with_it.accesses[intruder.key].host.hosts)
    for key, access in without.accesses.items():
        after = with_it.accesses[key].host
        if set(access.host.hosts) & taken:
            assert set(access.host.hosts) - set(after.hosts) <= taken
            assert after.rules == access.host.rules
        else:
            assert routes.encode_host(after) == routes.encode_host(access.host)


@settings(max_examples=examples(60))
@given(any_fleet())
def test_no_route_leads_to_a_cluster_that_is_not_there_or_is_empty(fleet: FleetState) -> None:
    result = plan_routing(fleet)
    awake = {pool.backend for pool in result.ir.pools if pool.endpoints}
    known = {pool.backend for pool in result.ir.pools}
    for host in result.ir.hosts:
        for rule in host.rules:
            assert {target.backend for target in rule.targets} <= known
            assert {mirror.backend for mirror in rule.mirrors} <= awake
            live = {target.backend for target in rule.targets if target.weight}
            if rule.counted:
                # A release: when no stable target has a pod their share stays with them, and is not the canary's.
                assert rule.unavailable is not None or live & awake
            else:
                assert rule.unavailable is not None or (live and live <= awake)


def test_thousands_of_fuzzed_accesses_change_nothing_of_each_other() -> None:
    """Every other one gets another spec or goes; what becomes of the rest stays as it is, down to their clusters."""
    random = Random(20_261)
    backends = [
        a_backend(name, *(["10.0.0.1"] if name != "d" else []), namespace=namespace, model_name=model)
        for namespace in ("ads", "shop")
        for name, model in (("a", "ctr"), ("b", "ctr"), ("c", "cvr"), ("d", "ctr"))
    ]
    accesses = [fuzzed_access(random, f"a{number}") for number in range(examples(6_000))]
    secrets = credentials(SECRETS, client_authority=ClientAuthority.USABLE)
    result = plan_routing(a_fleet(*accesses, *backends, secrets))

    known = {pool.backend for pool in result.ir.pools}
    assert len(known) == len(result.ir.pools)
    for host in result.ir.hosts:
        for rule in host.rules:
            assert {part.backend for part in (*rule.targets, *rule.mirrors)} <= known
            assert sum(target.weight for target in rule.targets) < 1 << 32

    stay = accesses[::2]
    others = [fuzzed_access(random, access.key.name) for access in accesses[1::4]]
    after = plan_routing(a_fleet(*stay, *others, *backends, secrets))
    assert all(after.accesses[access.key] == result.accesses[access.key] for access in stay)


@settings(max_examples=examples(60))
@given(any_fleet())
def test_every_name_leads_to_one_access(fleet: FleetState) -> None:
    domains = [domain for host in plan_routing(fleet).ir.hosts for domain in host.hosts]
    assert len(domains) == len(set(domains))
