"""The pods of shared spares: their objects, what they serve, whose they are, and the slices that are reserved for them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from builders.compute_pool import a_compute_pool, compute_pool_body
from builders.desired import a_desired_state
from builders.ownership import of_deployment
from builders.placement_world import PlacementWorld
from builders.rollout_world import SETTINGS
from tidegate.api.meta import ObjectKey
from tidegate.planning.allocator.spare_plan import PlannedSpare, PoolSparePlan
from tidegate.planning.plan import ObjectDeletion
from tidegate.planning.pods import parse_pod
from tidegate.planning.pools.spare_pods import (
    SpareDeployment,
    SpareState,
    build_spares_status,
    find_stale_objects,
    judge_spare,
    list_live_spares,
    plan_spare_objects,
    read_deployment,
    read_order,
    select_orders,
)
from tidegate_controllers.ownership import Ownership
from tidegate_controllers.shared_spares import SharedSpares
from tidegate_dataplane.contract import (
    AgentPhase,
    AgentReport,
    EngineMode,
    EngineOrder,
    FailureReason,
    ModelFormat,
    SharedReports,
    VersionFailure,
)

SPARE = PlannedSpare("spare-cpu-a-0", "ads", 0, "node-a", 1, ("ctr", "cvr"), "because")
PLAN = PoolSparePlan((SPARE,), {"ads/rank": "no room"}, frozenset({"ads/ctr", "ads/cvr"}))
POOL = ObjectKey("", "cpu-a")


def objects(plan: PoolSparePlan = PLAN) -> tuple[Any, ...]:
    pool = a_compute_pool()
    return tuple(body for spare in plan.spares for body in plan_spare_objects(pool, spare, SETTINGS))


def spare_pod(number: int = 0, node: str = "node-a", ready: str = "True", **metadata: Any) -> dict[str, Any]:
    """The pod of a spare as Kubernetes makes it of the Deployment."""
    _, deployment = objects(PoolSparePlan((replace(SPARE, number=number, name=f"spare-cpu-a-{number}"),)))
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    name = deployment["metadata"]["name"]
    own = {
        "name": f"{name}-x",
        "namespace": "ads",
        "uid": f"uid-{name}-x",
        **of_deployment(name, labels),
        **metadata,
    }
    requests = {"cpu": "1", "memory": "1Gi"}
    return {
        "metadata": own,
        "spec": {"nodeName": node, "containers": [{"name": "triton", "resources": {"requests": requests}}]},
        "status": {
            "podIP": "10.0.0.9",
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": ready}],
        },
    }


def report(version: int, phase: AgentPhase = AgentPhase.READY, **more: Any) -> AgentReport:
    return AgentReport(pod="p", epoch=1, generation=1, phase=phase, serving=version, **more)


def test_a_spare_is_a_deployment_of_the_pool_on_its_node_that_another_model_does_not_replace() -> None:
    config_map, deployment = objects()
    assert deployment["metadata"]["name"] == "spare-cpu-a-0"
    assert deployment["metadata"]["namespace"] == config_map["metadata"]["namespace"] == "ads"
    [owner] = deployment["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("ComputePool", "uid-cpu-a")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert (
        labels.items()
        >= {
            "tidegate.io/pool": "cpu-a",
            "tidegate.io/slices": "1",
            "tidegate.io/tier": "realtime",
            "tidegate.io/shared-spare": "0",
        }.items()
    )
    assert "tidegate.io/inference" not in labels
    spec = deployment["spec"]["template"]["spec"]
    terms = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    [term] = terms["nodeSelectorTerms"]
    assert term["matchFields"] == [{"key": "metadata.name", "operator": "In", "values": ["node-a"]}]
    [agent] = spec["initContainers"]
    assert {"name": "TIDEGATE_AGENT_SHARED_MODELS", "value": "64"} in agent["env"]
    # A pod on a node that is gone does not keep its successor waiting.
    assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}

    _, waiting = objects(PoolSparePlan((replace(SPARE, starts=False),)))
    assert (deployment["spec"]["replicas"], waiting["spec"]["replicas"]) == (1, 0)
    [live] = list_live_spares(
        [read_deployment(waiting | {"metadata": {**waiting["metadata"], "uid": "u"}}, [])]
    )
    assert live.planned == replace(SPARE, reason="", starts=False)
    problem = judge_spare(replace(SPARE, starts=False), None, {}, None).problem
    assert problem == "it starts as soon as node node-a has 1 slice free"

    _, other = objects(PoolSparePlan((replace(SPARE, models=("rank",)),)))
    assert other["spec"] == deployment["spec"]
    assert other["metadata"]["annotations"]["tidegate.io/shared-models"] == "rank"


def test_what_is_planned_is_read_back_from_the_objects_and_the_rest_is_deleted() -> None:
    config_map, deployment = ({**body, "metadata": {**body["metadata"], "uid": "u"}} for body in objects())
    pod = parse_pod(spare_pod(annotations={"tidegate.io/shared-models": "ctr=3@s,odd,cvr=x@s,rank=3"}))
    live = read_deployment(deployment, [pod])
    [found] = list_live_spares([live])
    assert (found.planned, found.serving, found.is_placed) == (replace(SPARE, reason=""), {"ctr": 3}, True)
    assert found.is_ready
    [unready] = list_live_spares([replace(live, pods=(replace(pod, ready=False),))])
    assert (unready.serving, unready.is_placed, unready.is_ready) == ({}, True, False)
    [elsewhere] = list_live_spares([replace(live, pods=(replace(pod, node="node-b"),))])
    assert (elsewhere.serving, elsewhere.is_placed) == ({}, False)
    evicted = spare_pod(ready="False")
    evicted["status"]["phase"] = "Failed"
    [gone] = list_live_spares([replace(live, pods=(parse_pod(evicted),))])
    assert (gone.serving, gone.is_placed) == ({}, False)
    assert (
        list_live_spares(
            [read_deployment({**deployment, "metadata": {**deployment["metadata"], "labels": {}}}, ())]
        )
        == ()
    )

    assert find_stale_objects(PLAN, [live], [config_map]) == ()
    key = ObjectKey("ads", config_map["metadata"]["name"])
    assert find_stale_objects(PoolSparePlan(), [live], [config_map]) == (
        ObjectDeletion("Deployment", ObjectKey("ads", "spare-cpu-a-0"), "u"),
        ObjectDeletion("ConfigMap", key, "u"),
    )


def test_a_shared_pod_takes_committed_orders_without_what_it_lacks() -> None:
    engine = EngineOrder(engine=EngineMode.OPENVINO, rows=(), lengths=())
    order = read_order(a_desired_state(graph_passes=True, engine=engine, keep_versions=3).to_json())
    assert order is not None
    assert (order.graph_passes, order.engine, order.keep_versions) == (False, None, 1)
    assert read_order(None) is None
    assert read_order("{}") is None
    assert read_order(a_desired_state(format=ModelFormat.PYTHON).to_json()) is None


def test_orders_of_another_owner_and_a_second_one_for_a_model_are_left_out() -> None:
    keys = {name: ObjectKey("ads", name) for name in SPARE.models}
    ctr, cvr = (a_desired_state(owner=f"ads/{name}", model=name) for name in SPARE.models)
    assert select_orders(SPARE, {keys["ctr"]: ctr, keys["cvr"]: cvr}) == {"ctr": ctr, "cvr": cvr}
    stranger = cvr.model_copy(update={"owner": "ads/rank"})
    assert select_orders(SPARE, {keys["ctr"]: ctr, keys["cvr"]: stranger}) == {"ctr": ctr}
    same = cvr.model_copy(update={"model": "ctr"})
    assert select_orders(SPARE, {keys["ctr"]: ctr, keys["cvr"]: same}) == {"ctr": ctr}
    assert select_orders(SPARE, {ObjectKey("shop", "ctr"): ctr}) == {}


ORDERS = {name: a_desired_state(owner=f"ads/{name}", model=name, version=3) for name in SPARE.models}
LIVE = SpareDeployment("spare-cpu-a-0", "ads", "u", None)


@pytest.mark.parametrize(
    ("reports", "served", "problem"),
    [
        ({"ctr": report(3), "cvr": report(3)}, ["ctr", "cvr"], ""),
        # The version before is none that the replicas serve.
        ({"ctr": report(2), "cvr": report(3)}, ["cvr"], "ctr: version 3 is Ready"),
        ({"ctr": report(3), "cvr": report(3, AgentPhase.LOADING)}, ["ctr"], "cvr: version 3 is Loading"),
        ({"ctr": report(3)}, ["ctr"], "cvr: version 3 is not ordered yet"),
        (
            {
                "ctr": report(3),
                "cvr": AgentReport(
                    pod="p",
                    epoch=1,
                    generation=1,
                    phase=AgentPhase.FAILED,
                    failure=VersionFailure(
                        version=3, reason=FailureReason.LOAD_FAILED, message="no such file"
                    ),
                ),
            },
            ["ctr"],
            "cvr: version 3: no such file",
        ),
    ],
)
def test_a_spare_serves_a_model_once_it_has_the_committed_version(
    reports: dict[str, AgentReport], served: list[str], problem: str
) -> None:
    [live] = [
        read_deployment(
            {**objects()[1], "metadata": {**objects()[1]["metadata"], "uid": "u"}}, [parse_pod(spare_pod())]
        )
    ]
    answer = SharedReports(pod="p", epoch=1, reports={f"ads/{name}": item for name, item in reports.items()})
    assert judge_spare(SPARE, live, ORDERS, answer) == SpareState(dict.fromkeys(served, 3), problem)
    assert judge_spare(SPARE, live, ORDERS, None).served == {}
    assert judge_spare(SPARE, live, {}, answer).problem.count("committed no version") == 2


def test_the_status_names_models_reasons_and_problems() -> None:
    assert build_spares_status(PoolSparePlan(), {}) is None
    status = build_spares_status(
        PLAN, {"ads/spare-cpu-a-0": SpareState({"ctr": 3}, "cvr: version 3 is Loading")}
    )
    assert status is not None
    assert status.model_dump(mode="json", by_alias=True, exclude_defaults=True) == {
        "slices": 1,
        "spares": [
            {
                "name": "spare-cpu-a-0",
                "namespace": "ads",
                "node": "node-a",
                "slices": 1,
                "models": [{"inference": "ctr", "version": "3"}, {"inference": "cvr"}],
                "reason": "because",
                "problem": "cvr: version 3 is Loading",
            }
        ],
        "uncovered": [{"inference": "ads/rank", "reason": "no room"}],
    }
    waiting = judge_spare(
        SPARE,
        replace(
            LIVE, pods=(replace(parse_pod(spare_pod()), node="", address=None, unschedulable="no room"),)
        ),
        ORDERS,
        None,
    )
    assert waiting == SpareState(problem="pod spare-cpu-a-0-x waits: no room", is_asked=False)
    assert judge_spare(SPARE, None, ORDERS, None).problem == "it has no pod yet"


class SpareWorld(PlacementWorld):
    """The same with shared spares in cpu-a."""

    def __init__(self) -> None:
        super().__init__()
        self.ownership = Ownership(self.stores)
        self.ownership.subscribe(self.occupancy.refresh_pod)
        self.spares = SharedSpares(self.stores, self.ownership, self.placements)
        self.wakes: list[ObjectKey] = []
        self.spares.subscribe_pools(self.wakes.append)

    def create(self, plan: PoolSparePlan = PLAN, *, gone: bool = False, **metadata: Any) -> None:
        for body in objects(plan):
            if body["kind"] == "Deployment":
                whole: Any = {**body, "metadata": {**body["metadata"], **metadata}}  # type: ignore[dict-item]
                self.has(self.stores.deployments, whole, gone=gone)

    def count_room(self) -> int:
        """How many replicas of an offline Inference get slices beside the spares."""
        self.inference("rest", tier="offline", replicas=9)
        return self.of("rest").replicas


def test_planned_slices_are_reserved_at_once_and_those_of_a_spare_that_goes_until_its_pod_is_gone() -> None:
    world = SpareWorld()
    assert world.count_room() == 4
    world.spares.put_plan(POOL, PLAN)
    assert world.wakes == [POOL]
    world.placements.forget_assumed(ObjectKey("ads", "rest"))
    assert world.count_room() == 3
    world.create()
    world.has(world.stores.pods, spare_pod())
    assert [live.planned.models for live in world.spares.list_live(POOL)] == [("ctr", "cvr")]
    world.placements.forget_assumed(ObjectKey("ads", "rest"))
    # The pod has what was reserved, and not one slice more; it counts as the pool's.
    assert world.count_room() == 3
    assert world.slices("cpu-a").used_by_tier == {"realtime": 1}

    world.spares.put_plan(POOL, PoolSparePlan())
    world.create(gone=True)
    world.placements.forget_assumed(ObjectKey("ads", "rest"))
    assert world.count_room() == 3
    world.has(world.stores.pods, spare_pod(), gone=True)
    world.placements.forget_assumed(ObjectKey("ads", "rest"))
    assert world.count_room() == 4


def test_slices_are_reserved_on_healthy_nodes_only() -> None:
    world = SpareWorld()
    world.node("other-a")
    world.spares.put_plan(POOL, PLAN)
    world.create()
    world.has(world.stores.pods, spare_pod())
    assert world.count_room() == 7
    world.placements.forget_assumed(ObjectKey("ads", "rest"))
    # What the spare has on a cordoned node is no slice that a replica could have had.
    world.node("node-a", cordoned=True)
    assert world.count_room() == 4
    world.placements.forget_assumed(ObjectKey("ads", "rest"))
    # A dead node keeps the pod of a spare that is not planned any more.
    world.spares.put_plan(POOL, PoolSparePlan())
    world.create(gone=True)
    assert world.count_room() == 4
    world.placements.forget_assumed(ObjectKey("ads", "rest"))
    world.node("node-a")
    assert world.count_room() == 7


def test_spares_of_an_earlier_term_are_reserved_before_the_first_plan() -> None:
    world = SpareWorld()
    world.create()
    assert world.count_room() == 3
    world.spares.put_plan(POOL, PLAN)
    world.spares.forget_plans()
    assert world.spares.get_plan(POOL) is None
    assert [live.planned.name for live in world.spares.list_live(POOL)] == ["spare-cpu-a-0"]


def test_spares_whose_pool_comes_after_them_are_reserved_as_well() -> None:
    world = SpareWorld()
    pool = compute_pool_body("cpu-a", nodeSelector={"pool": "a"})
    world.has(world.stores.pools, pool, gone=True)
    world.create()
    world.has(world.stores.pods, spare_pod())
    world.node("node-a")
    assert world.slices("cpu-a").used_by_tier == {"realtime": 1}
    assert world.count_room() == 3
    # Nothing is wrong with one whose pod has not come yet.
    other = SpareWorld()
    other.has(other.stores.pools, pool, gone=True)
    other.create()
    other.node("node-a")
    assert other.count_room() == 3


def test_only_a_spare_or_a_pool_checks_refused_pods_of_spares_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world, asked = SpareWorld(), list[str]()
    world.has(world.stores.pods, spare_pod())
    stranger = {**spare_pod(1), "metadata": {**spare_pod(1)["metadata"], "labels": {}}}
    world.has(world.stores.pods, stranger)
    decide = world.ownership.owns_pod

    def count(body: Any) -> bool:
        asked.append(body["metadata"]["name"])
        return decide(body)

    monkeypatch.setattr(world.ownership, "owns_pod", count)
    [_, deployment] = objects()
    plain = {**deployment, "metadata": {"name": "web", "namespace": "ads", "labels": {}}}
    for _ in range(3):
        world.has(world.stores.deployments, plain)
    assert asked == []
    world.create()
    assert set(asked) == {"spare-cpu-a-0-x"}
    asked.clear()
    # It is the pool's now, and need not be checked again.
    world.has(world.stores.deployments, plain)
    assert asked == []


@pytest.mark.parametrize(
    "metadata",
    [
        {"ownerReferences": []},
        {"name": "spare-cpu-a-1"},
        {
            "ownerReferences": [
                {
                    "apiVersion": "tidegate.io/v1alpha1",
                    "kind": "ComputePool",
                    "name": "cpu-a",
                    "uid": "another",
                    "controller": True,
                }
            ]
        },
    ],
)
def test_a_deployment_that_is_not_the_pools_reserves_nothing(metadata: dict[str, Any]) -> None:
    world = SpareWorld()
    world.create(**metadata)
    world.has(world.stores.pods, spare_pod())
    assert world.spares.list_live(POOL) == ()
    assert world.slices("cpu-a").used_by_tier == {}
    # Its pod takes its room as any pod does.
    assert world.count_room() == 3


def test_a_change_of_an_inference_wakes_the_pool_whose_spare_has_its_model() -> None:
    world = SpareWorld()
    world.spares.put_plan(POOL, PLAN)
    world.wakes.clear()
    world.inference("other")
    assert world.wakes == []
    world.inference("ctr")
    assert world.wakes == [POOL]
    world.spares.put_plan(POOL, PoolSparePlan())
    world.wakes.clear()
    world.inference("ctr", replicas=3)
    assert world.wakes == []
