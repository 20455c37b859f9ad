"""ComputePool: which nodes belong, how many slices they have, who has them, and what the status says."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from builders.compute_pool import a_compute_pool, node_body, pod_on
from builders.conditions import find_condition
from tidegate.api.compute_pool import ComputePool
from tidegate.planning.plan import ReconcilePlan
from tidegate.planning.pools.compute_pool import PoolObserved, plan_pool
from tidegate.planning.pools.nodes import Occupant, parse_node, parse_occupant
from tidegate.planning.pools.pool_slices import sum_pool_slices

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TAINT = {"key": "dedicated", "value": "ads", "effect": "NoSchedule"}


def planned(
    pool: ComputePool,
    nodes: Sequence[dict[str, Any]] = (),
    pods: Sequence[dict[str, Any]] = (),
    pools: Sequence[ComputePool] = (),
) -> ReconcilePlan:
    found: dict[str, list[Occupant]] = {}
    for pod in pods:
        each = parse_occupant(pod)
        if each is not None:
            found.setdefault(each.node, []).append(each)
    views = [parse_node(node) for node in nodes]
    return plan_pool(PoolObserved(pool, NOW, sum_pool_slices(pool, views, found, pools)))


def counts(plan: ReconcilePlan) -> tuple[int, int, int]:
    slices: Any = plan.status["slices"]
    return slices["total"], slices["healthy"], slices["free"]


def used(plan: ReconcilePlan) -> dict[str, int]:
    tiers: Any = plan.status["tiers"]
    return {each["name"]: each["slices"] for each in tiers}


def test_slices_are_what_fits_on_the_nodes_that_are_selected() -> None:
    plan = planned(
        a_compute_pool(), [node_body(), node_body("small", cpu="1500m"), node_body("other", labels={})]
    )

    assert counts(plan) == (5, 5, 5)
    assert plan.status["nodes"] == 2
    assert (find_condition(plan)["status"], find_condition(plan)["message"]) == (
        "True",
        "5 slices on 2 nodes",
    )


@pytest.mark.parametrize(
    ("pods", "percent"),
    [
        ((), None),
        (("node-0", "node-1"), 0),
        (("node-0",), 100),
        (("node-0", "node-0", "node-0", "node-1"), 50),
        # A cordoned node counts neither with its slices nor with its pods.
        (("node-0", "node-1", "cordoned", "cordoned"), 0),
        (("cordoned",), None),
    ],
)
def test_imbalance_is_how_much_fuller_the_fullest_healthy_node_is(
    pods: tuple[str, ...], percent: int | None
) -> None:
    nodes = [node_body("node-0"), node_body("node-1"), node_body("cordoned", cordoned=True)]
    bodies = [pod_on(node, f"pod-{number}", pool="cpu-a") for number, node in enumerate(pods)]
    assert planned(a_compute_pool(), nodes, bodies).status.get("imbalancePercent") == percent


def test_a_small_node_that_is_full_is_fuller_than_a_large_one_with_as_many_pods() -> None:
    nodes = [node_body("large", cpu="4"), node_body("small", cpu="1500m")]
    bodies = [pod_on(node, node, pool="cpu-a") for node in ("large", "small")]
    plan = planned(a_compute_pool(), nodes, bodies)
    [total, *_] = counts(plan)
    assert plan.status["imbalancePercent"] == round(100 * (1 / (2 / total) - 1))


def test_the_scarcer_resource_decides() -> None:
    assert counts(planned(a_compute_pool(), [node_body(cpu="64", memory="3Gi")])) == (3, 3, 3)
    assert counts(planned(a_compute_pool(), [node_body(cpu="64", memory="64Gi", pods="2")])) == (2, 2, 2)


def test_pods_of_the_pool_take_its_slices_by_tier_and_those_of_others_its_room() -> None:
    pods = [
        pod_on("node-0", "a", pool="cpu-a"),
        pod_on("node-0", "b", pool="cpu-a", tier="offline", cpu="2", memory="2Gi"),
        pod_on("node-0", "c", cpu="100m", memory="64Mi", managed=False),
    ]
    plan = planned(a_compute_pool(), [node_body()], pods)

    assert counts(plan) == (3, 3, 0)
    assert used(plan) == {"realtime": 1, "nearline": 0, "offline": 2}


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(pod_on("node-0", phase="Succeeded", managed=False), id="ended"),
        pytest.param(pod_on("node-0", phase="Failed", pool="cpu-a"), id="failed"),
        pytest.param(pod_on("", managed=False), id="waiting"),
        pytest.param(pod_on("elsewhere", managed=False), id="elsewhere"),
    ],
)
def test_pods_that_take_nothing_of_the_nodes_are_not_counted(pod: dict[str, Any]) -> None:
    assert counts(planned(a_compute_pool(), [node_body()], [pod])) == (4, 4, 4)


def test_a_label_of_somebody_elses_pod_gives_it_no_slice() -> None:
    plan = planned(a_compute_pool(), [node_body()], [pod_on("node-0", pool="cpu-a", managed=False)])

    assert used(plan)["realtime"] == 0
    assert counts(plan) == (3, 3, 3)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"ready": False}, "node node-1 is not ready"),
        ({"cordoned": True}, "node node-1 is cordoned"),
        (
            {"taints": [TAINT]},
            "node node-1 has taint dedicated=ads:NoSchedule, which the pool does not tolerate",
        ),
    ],
)
def test_nodes_that_take_no_pods_are_not_healthy_and_named(fault: dict[str, Any], words: str) -> None:
    pods = [pod_on("node-1", pool="cpu-a")]
    plan = planned(a_compute_pool(), [node_body(), node_body("node-1", **fault)], pods)

    assert counts(plan) == (8, 4, 4)
    assert used(plan)["realtime"] == 1  # what runs there still has its slice
    assert find_condition(plan, "Healthy")["status"] == "False"
    assert words in find_condition(plan, "Healthy")["message"]
    assert find_condition(plan)["status"] == "True"
    assert [event.reason for event in plan.events] == ["NodesUnhealthy"]


@pytest.mark.parametrize(
    "toleration",
    [
        {"key": "dedicated", "value": "ads"},
        {"key": "dedicated", "operator": "Exists"},
        {"key": "dedicated", "operator": "Exists", "effect": "NoSchedule"},
    ],
)
def test_a_taint_that_the_pool_tolerates_is_none(toleration: dict[str, str]) -> None:
    pool = a_compute_pool(tolerations=[toleration])
    assert counts(planned(pool, [node_body(taints=[TAINT])])) == (4, 4, 4)


@pytest.mark.parametrize(
    "toleration",
    [
        {"key": "dedicated", "value": "search"},
        {"key": "dedicated"},
        {"key": "dedicated", "operator": "Exists", "effect": "NoExecute"},
        {"key": "other", "operator": "Exists"},
    ],
)
def test_another_toleration_does_not_help(toleration: dict[str, str]) -> None:
    pool = a_compute_pool(tolerations=[toleration])
    assert counts(planned(pool, [node_body(taints=[TAINT])])) == (4, 0, 0)


def test_taints_that_keep_no_pod_of_ours_away_do_not_count() -> None:
    taints = [
        {"key": "soft", "effect": "PreferNoSchedule"},
        {"key": "node.kubernetes.io/memory-pressure", "effect": "NoSchedule"},
    ]
    assert counts(planned(a_compute_pool(), [node_body(taints=taints)])) == (4, 4, 4)


def test_a_pool_without_nodes_says_how_to_get_one() -> None:
    ready = find_condition(planned(a_compute_pool(), [node_body(labels={})]))

    assert ready["reason"] == "NoNodes"
    assert "kubectl label node <name> pool=a" in ready["message"]


def test_a_pool_whose_nodes_all_take_no_pods_is_not_ready_but_waits() -> None:
    plan = planned(a_compute_pool(), [node_body(ready=False)])

    assert find_condition(plan)["reason"] == "NodesUnhealthy"
    assert find_condition(plan, "Stalled")["status"] == "False"


def test_a_slice_that_fits_nowhere_names_its_size() -> None:
    ready = find_condition(planned(a_compute_pool(slice={"cpu": {"cpu": "6"}}), [node_body()]))

    assert ready["reason"] == "SliceTooLarge"
    assert "cpu 6 and memory 1Gi" in ready["message"]


def test_floors_above_what_is_there_are_named_with_the_figures() -> None:
    pool = a_compute_pool(tiers={"realtime": {"floor": 3}, "nearline": {"floor": 2}})
    ready = find_condition(planned(pool, [node_body()]))

    assert ready["reason"] == "FloorsExceedPool"
    assert "5 slices together (realtime 3, nearline 2, offline 0), the pool has 4" in ready["message"]


def test_a_node_belongs_to_the_older_pool_and_the_newer_one_says_so() -> None:
    old = a_compute_pool("old")
    new = a_compute_pool("new", metadata={"creationTimestamp": "2026-01-02T00:00:00Z"})
    plan = planned(new, [node_body()], pools=[old, new])

    assert find_condition(plan)["reason"] == "NodesOverlap"
    assert "node-0 to ComputePool old" in find_condition(plan)["message"]
    assert counts(plan) == (0, 0, 0)
    assert counts(planned(old, [node_body()], pools=[old, new])) == (4, 4, 4)


def test_of_pools_of_the_same_second_the_name_decides_and_none_is_its_own_rival() -> None:
    a, b = a_compute_pool("a"), a_compute_pool("b")
    assert find_condition(planned(a, [node_body()], pools=[a, b]))["status"] == "True"
    assert find_condition(planned(b, [node_body()], pools=[a, b]))["reason"] == "NodesOverlap"


def test_a_settled_pool_is_told_nothing_new() -> None:
    first = planned(a_compute_pool(), [node_body()])
    again = planned(a_compute_pool(status=dict(first.status)), [node_body()])

    assert again.status == first.status
    assert again.events == ()


def test_health_that_comes_back_is_told_once() -> None:
    sick = planned(a_compute_pool(), [node_body(ready=False)])
    well = planned(a_compute_pool(status=dict(sick.status)), [node_body()])

    assert [event.reason for event in well.events] == ["NodesHealthy"]


def test_pods_from_before_a_smaller_slice_count_as_what_they_hold() -> None:
    pool = a_compute_pool(slice={"cpu": {"cpu": "500m", "memory": "512Mi"}})
    plan = planned(pool, [node_body()], [pod_on("node-0", pool="cpu-a")])

    assert used(plan)["realtime"] == 2
    assert counts(plan) == (8, 8, 6)
