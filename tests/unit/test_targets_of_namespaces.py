"""Targets of other namespaces: routed while their owner shares them, and never named, counted or scaled by strangers."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from builders.fleet import a_backend, a_fleet
from builders.inference import an_inference
from builders.model_access import a_model_access, a_route
from tidegate.api.meta import ObjectKey
from tidegate.api.model_access import ModelAccess
from tidegate.api.reasons import Reason
from tidegate.planning.access.backends import build_inference_backend
from tidegate.planning.access.value_classes import index_routes
from tidegate.planning.diagnosis.findings import ObjectSet, find_problems
from tidegate.reports.status import RelatedObjects
from tidegate.reports.status_inference import report_inference
from tidegate.routing.access_index import AccessIndex
from tidegate.routing.access_rules import AccessPlan
from tidegate.routing.envoy_names import cluster_name, parse_cluster_name
from tidegate.routing.fleet import Backend
from tidegate.routing.incremental import IncrementalTranslator
from tidegate.routing.ir import AccessPoolKey, InferenceProtocol, PoolRole
from tidegate.routing.planner import plan_routing
from tidegate.telemetry.expressions import label_inference
from tidegate.telemetry.gateway_traffic import find_inference

CTR = ObjectKey("shop", "ctr")
OBSERVED = {"observedGeneration": 1, "conditions": []}
REFUSAL = (
    "Inference shop/ctr does not exist, or does not share with namespace ads: its owner can add ads to its annotation, with "
    "kubectl annotate inference ctr -n shop tidegate.io/shared-with=ads"
)


def a_shared_backend(*namespaces: str, address: str = "10.0.0.9") -> Backend:
    return replace(a_backend("ctr", address, namespace="shop"), shared_with=namespaces)


def plan(access: ModelAccess, *backends: Backend) -> AccessPlan:
    return plan_routing(a_fleet(access, *backends)).accesses[access.key]


def list_weights(routing: AccessPlan) -> dict[str, int]:
    (route,) = routing.routes
    return {target.inference: target.weight for target in route.targets}


def test_a_shared_target_gets_its_weight_beside_one_of_the_namespace() -> None:
    access = a_model_access(routes=[a_route("default", "ctr", "shop/ctr")])
    routing = plan(access, a_backend("ctr", "10.0.0.1"), a_shared_backend("ads"))

    assert list_weights(routing) == {"ctr": 100, "shop/ctr": 100}
    (rule,) = routing.host.rules
    clusters = [cluster_name(target.backend, InferenceProtocol.GRPC) for target in rule.targets]
    assert clusters == ["inference/ads/ctr/grpc", "inference/shop/ctr/grpc"]
    assert routing.refusals == ()


@pytest.mark.parametrize("namespaces", [(), ("feed",), ("ads2", "ad")])
def test_without_consent_it_is_refused_as_if_it_did_not_exist(namespaces: tuple[str, ...]) -> None:
    access = a_model_access(routes=[a_route("default", "ctr", "shop/ctr")])
    own = a_backend("ctr", "10.0.0.1")

    routing = plan(access, own, a_shared_backend(*namespaces))

    (refusal,) = routing.refusals
    assert (refusal.reason, refusal.part) == (
        Reason.TARGET_NOT_FOUND,
        "spec.routes[default].targets: shop/ctr",
    )
    assert refusal.message == REFUSAL
    assert list_weights(routing) == {"ctr": 100}
    assert routing == plan(access, own)


def test_a_refused_target_leaves_its_requests_to_the_fallback() -> None:
    route = a_route("default", "shop/ctr", fallback={"inference": "small"})
    small = a_backend("small", "10.0.0.2")

    routing = plan(a_model_access(routes=[route]), small, a_shared_backend())
    assert routing.unavailable_reason is None
    (target,) = routing.host.rules[0].targets
    assert str(target.backend) == "Inference ads/small"

    alone = plan(a_model_access(routes=[a_route("default", "shop/ctr")]), a_shared_backend())
    assert "no target of route default has a ready endpoint" in (alone.unavailable_reason or "")


def test_mirror_and_fallback_may_be_of_another_namespace() -> None:
    route = a_route(
        "default",
        "ctr",
        fallback={"inference": "shop/ctr"},
        mirror=[{"inference": "shop/next", "percent": 10}],
    )
    shadow = replace(a_backend("next", "10.0.0.8", namespace="shop"), shared_with=("ads",))
    routing = plan(
        a_model_access(routes=[route]), a_backend("ctr", "10.0.0.1"), a_shared_backend("ads"), shadow
    )

    (planned,) = routing.routes
    assert [mirror.inference for mirror in planned.mirrors] == ["shop/next"]
    assert planned.fallback is not None
    assert planned.fallback.inference == "shop/ctr"
    pools = {cluster_name(pool.backend, InferenceProtocol.GRPC): pool for pool in routing.pools}
    assert set(pools) >= {"access/ads/ctr/ctr+shop/ctr/grpc", "shadow/ads/ctr/shop/next/grpc"}
    assert [pod.address for pod in pools["access/ads/ctr/ctr+shop/ctr/grpc"].fallback] == ["10.0.0.9"]


def test_its_own_namespace_is_not_a_part_of_a_name() -> None:
    access = a_model_access(routes=[a_route("default", "ctr", "ads/ctr")])

    routing = plan(access, a_backend("ctr", "10.0.0.1"))

    (refusal,) = routing.refusals
    assert (refusal.reason, refusal.message) == (
        Reason.INVALID_SPEC,
        "Inference ads/ctr is in the namespace of this object: name it ctr",
    )
    assert list_weights(routing) == {"ctr": 100}


def test_an_access_of_the_owner_needs_no_consent() -> None:
    access = a_model_access(namespace="shop", routes=[a_route("default", "ctr")])
    assert list_weights(plan(access, a_shared_backend())) == {"ctr": 100}


def test_consent_takes_effect_on_the_accesses_that_wait_for_it_and_on_no_other() -> None:
    ads = a_model_access(routes=[a_route("default", "shop/ctr")])
    feed = a_model_access(namespace="feed", routes=[a_route("default", "shop/ctr")])
    other = a_model_access("other", routes=[a_route("default", "own")])
    translator = IncrementalTranslator()

    def list_answering(*namespaces: str) -> dict[str, bool]:
        fleet = a_fleet(ads, feed, other, a_backend("own", "10.0.0.1"), a_shared_backend(*namespaces))
        translator.replace_fleet(fleet)
        change = translator.take_change()
        answers = {
            str(key.object): host.state.answers for key, host in change.hosts.items() if host is not None
        }
        planned = plan_routing(fleet).hosts
        assert all(planned[key] == host for key, host in change.hosts.items())
        return answers

    assert list_answering("ads") == {"ads/ctr": True, "feed/ctr": False, "ads/other": True}
    assert list_answering() == {"ads/ctr": False, "feed/ctr": False}
    assert list_answering("ads", "feed") == {"ads/ctr": True, "feed/ctr": True}


def test_a_pipeline_calls_a_shared_inference_at_the_host_for_its_parts() -> None:
    models = [{"inference": "shop/ctr", "as": "a"}, {"inference": "ctr", "as": "b"}]
    access = a_model_access("scene", routes=[{"name": "home", "pipeline": {"models": models}}])
    own = a_backend("ctr", "10.0.0.1")

    shared = plan(access, own, a_shared_backend("ads"))
    assert shared.parts_host is not None
    assert {rule.name: str(rule.targets[0].backend) for rule in shared.parts_host.rules} == {
        "ctr": "Inference ads/ctr",
        "shop/ctr": "Inference shop/ctr",
    }

    withheld = plan(access, own, a_shared_backend("feed"))
    assert withheld.parts_host is not None
    assert [rule.name for rule in withheld.parts_host.rules] == ["ctr"]
    assert [refusal.message for refusal in withheld.refusals] == [REFUSAL]


def test_a_released_target_of_another_namespace_is_counted_by_its_own_name() -> None:
    targets = [{"inference": "ctr", "weight": 100}, {"inference": "shop/ctr", "weight": 0}]
    check = {"metric": "ErrorRate", "max": "0.01"}
    access = a_model_access(
        routes=[{"name": "default", "targets": targets}],
        release={"route": "default", "target": "shop/ctr", "checks": [check]},
    )
    routing = plan(access, a_backend("ctr", "10.0.0.1"), a_shared_backend("ads"))

    names = {cluster_name(pool.backend, InferenceProtocol.GRPC) for pool in routing.pools}
    assert names == {"release/ads/ctr/ctr/grpc", "release/ads/ctr/shop/ctr/grpc"}
    assert {name: str(find_inference(name)) for name in names} == {
        "release/ads/ctr/ctr/grpc": "ads/ctr",
        "release/ads/ctr/shop/ctr/grpc": "shop/ctr",
    }


@pytest.mark.parametrize("inference", ["ctr", "shop/ctr"])
@pytest.mark.parametrize("fallback", ["", "small", "feed/small"])
def test_names_of_clusters_can_be_read_back(inference: str, fallback: str) -> None:
    key = AccessPoolKey(PoolRole.RELEASE, ObjectKey("ads", "home"), inference, fallback)
    name = cluster_name(key, InferenceProtocol.HTTP)
    assert parse_cluster_name(name) == (key, InferenceProtocol.HTTP)
    assert "." not in name


@pytest.mark.parametrize("name", ["release/ads/home/a/b/c/grpc", "release/ads/home/grpc", "access/ads/grpc"])
def test_other_names_are_not_read(name: str) -> None:
    assert parse_cluster_name(name) is None


def test_requests_of_a_stranger_are_no_demand_for_the_model() -> None:
    route = a_route("default", "ctr", "shop/ctr", value="2")
    access = a_model_access(routes=[route])

    shared = index_routes([access], {CTR: ("ads",)})["access/ads/ctr/default"]
    assert shared.by_inference == {ObjectKey("ads", "ctr"): 0.5, CTR: 0.5}

    for consent in ({}, {CTR: ("feed",)}):
        withheld = index_routes([access], consent)["access/ads/ctr/default"]
        assert withheld.by_inference == {ObjectKey("ads", "ctr"): 1.0}
    alone = a_model_access(routes=[a_route("default", "shop/ctr")])
    assert index_routes([alone])["access/ads/ctr/default"].by_inference == {}


def test_a_stranger_s_fallback_and_pipeline_are_no_demand_either() -> None:
    routes: list[dict[str, Any]] = [
        a_route(
            "a",
            "ctr",
            match={"headers": [{"name": "x-a", "exact": "a"}]},
            value="2",
            fallback={"inference": "shop/ctr", "valuePercent": 50},
        ),
        {"name": "b", "pipeline": {"models": [{"inference": "shop/ctr", "as": "p"}]}},
    ]
    access = a_model_access(routes=routes)

    demands = index_routes([access])
    assert set(demands) == {"access/ads/ctr/a", "access/ads/ctr/b"}
    assert demands["access/ads/ctr/b"].required == frozenset()
    shared = index_routes([access], {CTR: ("ads",)})
    assert shared["access/ads/ctr/a/reduced"].by_inference == {CTR: 1.0}
    assert shared["access/ads/ctr/b"].required == {CTR}


def test_a_changed_inference_wakes_the_accesses_of_other_namespaces() -> None:
    index = AccessIndex()
    access = a_model_access(routes=[a_route("default", "shop/ctr")])
    index.put(access.key, access)
    assert index.accesses_for_inference(CTR) == (access.key,)
    assert index.accesses_for_inference(ObjectKey("ads", "ctr")) == ()


def a_shared_inference(shared_with: str = "ads, feed") -> Any:
    metadata = {"annotations": {"tidegate.io/shared-with": shared_with}}
    return an_inference("ctr", namespace="shop", replicas=2, metadata=metadata, status=OBSERVED)


def test_the_backend_has_the_namespaces_of_the_annotation() -> None:
    assert build_inference_backend(a_shared_inference(), ()).shared_with == ("ads", "feed")
    assert build_inference_backend(an_inference("ctr"), ()).shared_with == ()


def test_status_shows_the_routes_of_other_namespaces_that_it_shares_with() -> None:
    ads = a_model_access(routes=[a_route("default", "shop/ctr")])
    stranger = a_model_access(namespace="blog", routes=[a_route("default", "shop/ctr")])
    same_name = a_model_access("same", routes=[a_route("default", "ctr")])

    related = RelatedObjects(datetime.now(UTC))
    report = report_inference(a_shared_inference(), [ads, stranger, same_name], (), related)
    assert [(route.access, route.route) for route in report.accesses] == [("ads/ctr", "default")]


def test_analyze_finds_a_withheld_target_and_no_false_problem() -> None:
    access = a_model_access(routes=[a_route("default", "shop/ctr")], status=OBSERVED)

    def find(inference: Any, **options: Any) -> list[tuple[str, str]]:
        problems = find_problems(ObjectSet([inference], [access], **options))
        return [(problem.name, problem.message) for problem in problems]

    assert find(a_shared_inference()) == []
    assert (Reason.TARGET_NOT_FOUND.value, f"route default: {REFUSAL}") in find(a_shared_inference("feed"))
    # What was not read is neither missing nor unused.
    assert find_problems(ObjectSet([], [access], namespaces=frozenset({"ads"}))) == ()
    only_shop = ObjectSet([a_shared_inference()], [], namespaces=frozenset({"shop"}))
    assert find_problems(only_shop) == ()


WHOSE = {
    "inference/shop/ctr/grpc": ("shop", "ctr"),
    "release/ads/home/ctr/grpc": ("ads", "ctr"),
    "release/ads/home/ctr+small/http": ("ads", "ctr"),
    "release/ads/home/ctr+feed/small/http": ("ads", "ctr"),
    "release/ads/home/shop/ctr/grpc": ("shop", "ctr"),
    "release/ads/home/shop/ctr+small/grpc": ("shop", "ctr"),
    "release/ads/home/shop/ctr+feed/small/grpc": ("shop", "ctr"),
    "shadow/ads/home/ctr/grpc": None,
    "access/ads/home/shop/ctr/grpc": None,
}


@pytest.mark.parametrize(("cluster", "whose"), WHOSE.items())
def test_queries_of_prometheus_know_the_inference_of_a_cluster(
    cluster: str, whose: tuple[str, str] | None
) -> None:
    patterns = set(re.findall(r'"envoy_cluster_name", "([^"]+)"', label_inference("x")))
    assert len(patterns) == 1
    match = re.fullmatch(patterns.pop(), cluster)
    groups = None if match is None else [group or "" for group in match.groups()]
    # As label_replace does with $1$3$5 and $2$4$6.
    assert (groups and ("".join(groups[0::2]), "".join(groups[1::2]))) == whose
