"""Shared spares in the routing: which pods have them, and what Envoy and gRPC clients get, by value."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from google.protobuf import json_format

from builders.fleet import a_backend, a_fleet
from builders.inference import an_inference
from builders.model_access import a_model_access, a_route
from builders.pods import a_pod
from tidegate.api.meta import ObjectKey
from tidegate.planning.access.backends import build_inference_backend
from tidegate.resources.shared_spare import SpareModel
from tidegate.routing import protos, proxyless
from tidegate.routing.access_pools import add_spares
from tidegate.routing.envoy import clusters, endpoints
from tidegate.routing.fleet import Backend, BackendKey, BackendKind, Endpoint, SparePods
from tidegate.routing.ir import AccessPoolKey, EndpointPool, InferenceProtocol, OutlierEjection, PoolRole
from tidegate.routing.planner import plan_routing

KEY = BackendKey(BackendKind.INFERENCE, "ads", "ctr")
OWN = (Endpoint("10.0.0.1"), Endpoint("10.0.0.2"))
SPARE = Endpoint("10.0.0.9")
SMALL = Endpoint("10.0.0.5")


def a_pool(*own: Endpoint, decided: float = 2, fallback: tuple[Endpoint, ...] = ()) -> EndpointPool:
    backend = Backend(KEY, "ranker", own).with_spares([SPARE], decided)
    return replace(add_spares(EndpointPool(KEY, backend.endpoints), backend), fallback=fallback)


def read_assignment(
    pool: EndpointPool, protocol: InferenceProtocol = InferenceProtocol.GRPC
) -> dict[str, Any]:
    data = endpoints.encode_endpoints("c", pool, protocol)
    return json_format.MessageToDict(protos.decode(endpoints.TYPE, data), preserving_proto_field_name=True)


def addresses_by_priority(assignment: dict[str, Any]) -> dict[int, list[str]]:
    return {
        locality.get("priority", 0): [
            pod["endpoint"]["address"]["socket_address"]["address"] for pod in locality["lb_endpoints"]
        ]
        for locality in assignment["endpoints"]
    }


@pytest.mark.parametrize(
    ("own", "decided", "factor"),
    [
        (OWN, 2, 100),
        (OWN[:1], 2, 50),
        # One spare takes the place of one replica, however many are missing, as in a scale-up.
        (OWN[:1], 3, 50),
        (OWN, 8, 66),
        # A part of one, of what clients send beyond what the pods serve.
        (OWN, 2.5, 80),
        # More pods than decided, as in a rollout; and no number at all.
        (OWN, 1, 100),
        (OWN, 0, 100),
    ],
)
def test_spares_get_the_share_of_the_missing_pods_that_they_can_replace(
    own: tuple[Endpoint, ...], decided: float, factor: int
) -> None:
    assignment = read_assignment(a_pool(*own, decided=decided))
    assert assignment["policy"]["overprovisioning_factor"] == factor
    assert addresses_by_priority(assignment) == {0: [pod.address for pod in own], 1: ["10.0.0.9"]}


def test_with_more_missing_pods_than_ready_ones_spares_are_equals_with_the_weight_of_those_that_they_replace() -> (
    None
):
    backend = Backend(KEY, "ranker", OWN[:1]).with_spares([SPARE, SMALL], 1000)
    pool = replace(
        add_spares(EndpointPool(KEY, backend.endpoints), backend), fallback=(Endpoint("10.0.0.7"),)
    )
    assignment = read_assignment(pool)
    assert addresses_by_priority(assignment) == {0: ["10.0.0.1", "10.0.0.5", "10.0.0.9"], 1: ["10.0.0.7"]}
    weights = [pod["load_balancing_weight"] for pod in assignment["endpoints"][0]["lb_endpoints"]]
    assert weights == [200, 200, 200]
    assert assignment["policy"]["overprovisioning_factor"] == 100_000

    three = Backend(KEY, "ranker", OWN[:1]).with_spares([SPARE, SMALL, Endpoint("10.0.0.8")], 3)
    joined = read_assignment(add_spares(EndpointPool(KEY, three.endpoints), three))["endpoints"][0]
    assert [pod["load_balancing_weight"] for pod in joined["lb_endpoints"]] == [300, 200, 200, 200]


@pytest.mark.parametrize(
    ("ready", "decided", "capacity"), [(2, 2, 2), (1, 2, 2), (1, 4, 2), (0, 2, 1), (2, 1, 2), (2, 2.5, 2.5)]
)
def test_a_spare_adds_the_capacity_of_the_missing_pod_that_it_replaces(
    ready: int, decided: float, capacity: float
) -> None:
    backend = Backend(KEY, "ranker", OWN[:ready]).with_spares([SPARE], decided)
    assert backend.pods_by_capacity == {1.0: capacity}


@pytest.mark.parametrize(
    ("own", "serving", "shared", "is_used"),
    [
        (["s"], "3", SpareModel(3, "s"), True),
        (["s"], "3", SpareModel(2, "s"), False),
        # Another model has the same number since spec.model.uri was changed.
        (["s"], "3", SpareModel(3, "t"), False),
        (["s", "t"], "3", SpareModel(3, "t"), True),
        # Without a pod of its own, nothing says more than the number.
        ([], None, SpareModel(3, "s"), True),
    ],
)
def test_a_spare_serves_only_the_model_that_the_own_pods_serve(
    own: list[str], serving: str | None, shared: SpareModel, is_used: bool
) -> None:
    inference = an_inference(
        "ctr",
        status={"versions": {"serving": serving}},
        placement={"pool": "cpu-a"},
        scaling={"minReplicas": 2, "maxReplicas": 4},
    )
    pods = [a_pod(f"ctr-{number}", source=source) for number, source in enumerate(own)]
    spare = replace(a_pod("spare-0", source=""), address="10.0.0.9", shared_models={"ctr": shared})
    backend = build_inference_backend(inference, pods, [spare])
    used = [*backend.endpoints, *(backend.spares.pods if backend.spares is not None else ())]
    assert ("10.0.0.9" in [pod.address for pod in used]) is is_used


@pytest.mark.parametrize(
    ("mode", "had_spares", "checked"),
    [
        ("Shared", False, True),
        (None, False, False),
        (None, True, True),
        ("Priced", True, False),
        ("Strict", False, False),
    ],
)
def test_pods_are_checked_before_the_first_spare_serves_and_after_the_last(
    mode: str | None, had_spares: bool, checked: bool
) -> None:
    inference = an_inference(
        "ctr",
        placement={"pool": "cpu-a"},
        scaling={"minReplicas": 1, "maxReplicas": 4, **({"nodeLoss": mode} if mode else {})},
    )
    backend = build_inference_backend(inference, [], had_spares=had_spares)
    pool = add_spares(EndpointPool(KEY, ()), backend)
    assert bool(pool.health_path) is checked
    assert pool.spares is None


def test_fallback_comes_after_the_spares_and_without_own_pods_they_are_the_first() -> None:
    behind = read_assignment(a_pool(*OWN, fallback=(SMALL,)))
    assert addresses_by_priority(behind) == {0: ["10.0.0.1", "10.0.0.2"], 1: ["10.0.0.9"], 2: ["10.0.0.5"]}
    alone = a_pool()
    assert (alone.endpoints, alone.answering_pods) == ((), (SPARE,))
    assert addresses_by_priority(read_assignment(alone)) == {0: ["10.0.0.9"]}
    assert "policy" not in read_assignment(alone)


@pytest.mark.parametrize(("decided", "weights"), [(3, [100, 100, 100]), (2.5, [100, 100, 50])])
def test_with_a_fallback_behind_spares_of_missing_pods_are_equals_of_the_own_ones(
    decided: float, weights: list[int]
) -> None:
    assignment = read_assignment(a_pool(*OWN, decided=decided, fallback=(SMALL,)))
    assert addresses_by_priority(assignment) == {0: ["10.0.0.1", "10.0.0.2", "10.0.0.9"], 1: ["10.0.0.5"]}
    assert [pod["load_balancing_weight"] for pod in assignment["endpoints"][0]["lb_endpoints"]] == weights
    assert assignment["policy"]["overprovisioning_factor"] == 100_000


@pytest.mark.parametrize(
    ("decided", "spare", "fallback"), [(4, 200, [300, 300]), (2.5, 200, [150, 150]), (101, 200, [10_000] * 2)]
)
def test_without_own_pods_the_fallback_gets_what_is_more_than_the_spare_replaces(
    decided: float, spare: int, fallback: list[int]
) -> None:
    assignment = read_assignment(a_pool(decided=decided, fallback=(SMALL, Endpoint("10.0.0.6"))))
    [joined] = assignment["endpoints"]
    weights = [pod["load_balancing_weight"] for pod in joined["lb_endpoints"]]
    assert weights == [spare, *fallback]


def test_a_fallback_with_weights_divides_its_rest_by_them() -> None:
    small = (replace(SMALL, weight=100), Endpoint("10.0.0.6", weight=300))
    [joined] = read_assignment(a_pool(decided=3, fallback=small))["endpoints"]
    assert [pod["load_balancing_weight"] for pod in joined["lb_endpoints"]] == [200, 100, 300]


def test_spares_that_replace_every_pod_come_before_the_fallback() -> None:
    assignment = read_assignment(a_pool(decided=1, fallback=(SMALL,)))
    assert addresses_by_priority(assignment) == {0: ["10.0.0.9"], 1: ["10.0.0.5"]}
    assert assignment["policy"]["overprovisioning_factor"] == 100


def test_every_pod_is_asked_for_its_model_on_the_port_of_rest() -> None:
    pool = a_pool(*OWN)
    cluster = json_format.MessageToDict(
        protos.decode(clusters.TYPE, clusters.encode_cluster("c", pool, InferenceProtocol.GRPC)),
        preserving_proto_field_name=True,
    )
    [check] = cluster["health_checks"]
    assert check["http_health_check"] == {"path": "/v2/models/ranker/ready"}
    for protocol in InferenceProtocol:
        for locality in read_assignment(pool, protocol)["endpoints"]:
            for pod in locality["lb_endpoints"]:
                assert pod["endpoint"]["health_check_config"] == {"port_value": 8000}


def test_what_was_sent_to_a_node_that_is_gone_ends_after_the_checks_have_left_it_out() -> None:
    def read_cluster(pool: EndpointPool) -> dict[str, Any]:
        data = clusters.encode_cluster("c", pool, InferenceProtocol.GRPC)
        return json_format.MessageToDict(protos.decode(clusters.TYPE, data), preserving_proto_field_name=True)

    cluster = read_cluster(a_pool(*OWN))
    probes = {"keepalive_probes": 2, "keepalive_time": 2, "keepalive_interval": 1}
    assert cluster["upstream_connection_options"]["tcp_keepalive"] == probes
    [option] = cluster["upstream_bind_config"]["socket_options"]
    assert (option["level"], option["name"], option["int_value"]) == ("6", "18", "4000")
    # Two checks of 1 s with pauses of 0.5 s.
    [check] = cluster["health_checks"]
    assert (check["timeout"], check["interval"], check["unhealthy_threshold"]) == ("1s", "0.500s", 2)
    assert check["no_traffic_interval"] == "5s"
    plain = read_cluster(EndpointPool(KEY, OWN))
    assert "upstream_bind_config" not in plain
    assert plain["upstream_connection_options"]["tcp_keepalive"]["keepalive_time"] == 10


def test_pods_that_fail_all_checks_get_requests_while_no_other_is_healthy() -> None:
    def read_threshold(pool: EndpointPool) -> float:
        data = clusters.encode_cluster("c", pool, InferenceProtocol.GRPC)
        return protos.decode(clusters.TYPE, data).common_lb_config.healthy_panic_threshold.value

    assert read_threshold(a_pool(*OWN)) == 1
    assert read_threshold(EndpointPool(KEY, OWN)) == 0


@pytest.mark.parametrize("protocol", InferenceProtocol)
def test_a_passed_check_does_not_end_the_ejection_of_a_pod_that_fails_requests(
    protocol: InferenceProtocol,
) -> None:
    ejection = OutlierEjection(5, timedelta(seconds=30), all_pods=False)

    def read_detection(pool: EndpointPool) -> dict[str, Any]:
        data = clusters.encode_cluster("c", replace(pool, ejection=ejection), protocol)
        cluster = json_format.MessageToDict(
            protos.decode(clusters.TYPE, data), preserving_proto_field_name=True
        )
        return cluster["outlier_detection"]

    plain = read_detection(EndpointPool(KEY, OWN))
    assert "successful_active_health_check_uneject_host" not in plain
    assert read_detection(a_pool(*OWN)) == {**plain, "successful_active_health_check_uneject_host": False}


def test_without_spares_nothing_is_asked_and_every_byte_is_as_before() -> None:
    plain = EndpointPool(KEY, OWN)
    assert add_spares(plain, Backend(KEY, "ranker", OWN).with_spares([], 2)) == plain
    cluster = protos.decode(clusters.TYPE, clusters.encode_cluster("c", plain, InferenceProtocol.GRPC))
    assert not cluster.health_checks
    assert "policy" not in read_assignment(plain)
    assert all(
        "health_check_config" not in pod["endpoint"]
        for pod in read_assignment(plain)["endpoints"][0]["lb_endpoints"]
    )


def test_pods_are_sorted_and_given_once() -> None:
    later = Endpoint("10.0.1.1")
    backend = Backend(KEY, "ranker", OWN).with_spares([later, SPARE, later], 2)
    assert backend.spares == SparePods((SPARE, later), 2)


def test_clients_without_a_gateway_use_spares_before_the_fallback() -> None:
    pool = replace(
        a_pool(*OWN, fallback=(SMALL,)),
        backend=AccessPoolKey(PoolRole.TARGET, ObjectKey("ads", "ctr"), "ctr", "small"),
    )
    assignment = json_format.MessageToDict(
        protos.decode(endpoints.TYPE, proxyless.encode_endpoints(pool)), preserving_proto_field_name=True
    )
    assert addresses_by_priority(assignment)[1] == ["10.0.0.9"]
    assert addresses_by_priority(assignment)[2] == ["10.0.0.5"]


def test_a_target_with_only_a_spare_keeps_its_route_and_is_not_mirrored_to() -> None:
    route = a_route(
        fallback={"inference": "small"}, mirror=[{"inference": "shadow", "percent": 100}], timeout="1s"
    )
    shadow = a_backend("shadow").with_spares([SPARE], 1)
    ctr = a_backend("ctr").with_spares([SPARE], 2)
    plan = plan_routing(a_fleet(a_model_access(routes=[route]), ctr, shadow, a_backend("small", "10.0.0.5")))
    [host] = plan.ir.hosts
    [rule] = host.rules
    assert rule.unavailable is None
    assert rule.mirrors == ()
    [target] = rule.targets
    pool = plan.pools[target.backend]
    assert pool.answering_pods == (SPARE,)
    assert [pod.address for pod in pool.fallback] == ["10.0.0.5"]
