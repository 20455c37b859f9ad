"""Placements over caches: a slice is given once, from the decision until the last pod that has it is gone."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import permutations
from types import FrameType
from typing import Any

import pytest

from builders.ownership import of_deployment, of_inference, of_job
from builders.placement_world import PlacementWorld, pool_labels
from tidegate.api.meta import ObjectKey
from tidegate.planning.pools.claims import NodeShare


def lines_run(act: Callable[[], object]) -> int:
    """How many lines of Python `act` runs in this thread, each as often as it is run."""
    lines = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    finally:
        sys.settrace(before)
    return lines


def test_what_was_just_given_is_not_given_to_a_higher_tier_before_it_is_written() -> None:
    world = PlacementWorld()
    world.inference("batch", tier="offline")
    assert world.of("batch").replicas == 4
    world.inference("ctr")
    assert world.of("ctr").replicas == 0

    world.deployment("batch", 4)
    world.placements.forget_assumed(ObjectKey("ads", "batch"))
    assert world.woken == set()
    assert world.of("ctr").replicas == 0


def test_what_was_given_and_refused_is_given_to_those_that_wait() -> None:
    world = PlacementWorld()
    world.inference("batch", tier="offline")
    world.of("batch")
    world.inference("ctr")
    world.of("ctr")
    world.placements.forget_assumed(ObjectKey("ads", "batch"))

    assert "ctr" in world.woken
    assert world.of("ctr").replicas == 4


def test_who_lacks_a_warm_spare_alone_is_woken_when_there_is_room_for_it() -> None:
    world = PlacementWorld()
    placed = {
        "conditions": [
            {
                "type": "Placed",
                "status": "True",
                "reason": "Placed",
                "message": "ComputePool cpu-a gives 1 replicas one slice each",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }
        ]
    }
    ready = {**placed, "allocation": {"replicas": 1, "decision": "cpu-a-1", "epoch": 1}}
    spare = {**placed, "allocation": {"replicas": 1, "spares": 1, "decision": "cpu-a-1", "epoch": 1}}
    scaling = {"scaling": {"minReplicas": 1, "maxReplicas": 2}, "replicas": 1}
    for name, status in (("ctr", spare), ("cvr", ready)):
        world.inference(name, status=status, **scaling)
        world.deployment(name, 1)
    world.inference("leaves", tier="offline", replicas=2)
    world.deployment("leaves", 2)
    world.woken.clear()

    world.deployment("leaves", 1)
    world.inference("leaves", tier="offline", replicas=1)
    assert "ctr" in world.woken
    assert "cvr" not in world.woken


def test_one_that_was_deleted_while_it_was_looked_at_claims_nothing() -> None:
    world = PlacementWorld()
    world.inference("full", tier="offline")
    world.of("full")
    world.inference("gone")
    was = world.inferences.get(ObjectKey("ads", "gone"))
    assert was is not None
    world.inference("gone", gone=True)
    result = world.placements.place(was)
    assert result is not None
    assert result.replicas == 0
    assert [claim.key.name for claim in world.placements.list_claims("cpu-a")] == ["full"]


def test_an_inference_that_waits_for_another_pool_keeps_its_slices_until_its_pods_are_gone() -> None:
    world = PlacementWorld()
    world.inference("full", "cpu-b")
    world.deployment("full", 4, "cpu-b")
    world.deployment("moves", 4)
    for number in range(4):
        world.pod("moves", number)
    world.inference("moves", "cpu-b")
    world.inference("new")
    moving = world.of("moves")
    assert (moving.resources, moving.replicas) == (None, 4)
    assert world.of("new").replicas == 0

    world.deployment("full", 0, "cpu-b", gone=True)
    world.inference("full", "cpu-b", gone=True)
    assert "moves" in world.woken
    assert world.of("moves").resources is not None
    world.deployment("moves", 4, "cpu-b")
    world.placements.forget_assumed(ObjectKey("ads", "moves"))
    assert world.of("new").replicas == 0  # its pods drain

    world.woken.clear()
    world.pod("moves", 0, gone=True)
    assert "new" in world.woken
    assert world.of("new").replicas == 1


def test_a_deleted_inference_keeps_its_slices_while_its_pods_drain() -> None:
    world = PlacementWorld()
    world.inference("old")
    world.deployment("old", 4)
    for number in range(4):
        world.pod("old", number)
    world.inference("new")
    world.inference("old", gone=True)
    assert world.of("new").replicas == 0
    world.deployment("old", 4, gone=True)
    assert world.of("new").replicas == 0
    for number in range(4):
        world.pod("old", number, gone=True)
    assert world.of("new").replicas == 4


def test_a_pod_with_our_labels_takes_no_more_of_a_pool_than_it_asks_its_node_for() -> None:
    world = PlacementWorld()
    world.inference("ctr", replicas=3)
    world.forged()
    assert world.of("ctr").replicas == 3
    (node,) = world.slices("cpu-a").nodes
    assert (node.total, node.used) == (3, {}), "it takes room, as a pod without labels does"


@pytest.mark.parametrize(
    "forgery",
    [
        pytest.param({}, id="no owner"),
        pytest.param(of_inference("ctr"), id="the Inference itself, which makes no pods"),
        pytest.param(of_deployment("inf-none", {}), id="a Deployment that is not there"),
        pytest.param(of_deployment("other", {}), id="a Deployment of another name"),
        pytest.param(of_job("inf-ctr-1", "uid-of-another-job"), id="a Job that was made again"),
        pytest.param(
            of_deployment("inf-ctr", {"tidegate.io/slices": "999"}), id="more slices than were given"
        ),
        pytest.param(of_deployment("inf-ctr", {"tidegate.io/pool": "cpu-b"}), id="another pool"),
        pytest.param(of_deployment("inf-ctr", {"tidegate.io/inference": "cvr"}), id="another Inference"),
    ],
)
def test_owner_references_that_lead_to_no_inference_make_a_pod_nobodys(forgery: dict[str, Any]) -> None:
    world = PlacementWorld()
    for name in ("ctr", "cvr"):
        world.inference(name, replicas=1)
        world.deployment(name, 1)
    world.deployment("ctr", 1, name="other")
    world.job("inf-ctr-1", "ctr")
    world.forged("ads", **forgery)
    assert [claim.all_slices for claim in world.placements.list_claims("cpu-a")] == [1, 1]
    assert [claim.all_slices for claim in world.placements.list_claims("cpu-b")] == []
    assert world.slices("cpu-a").total == 3


def test_a_deployment_that_no_inference_owns_holds_nothing() -> None:
    world = PlacementWorld()
    world.inference("ctr", replicas=4)
    world.deployment("hog", 999)
    assert world.of("ctr").replicas == 4


def test_a_deployment_that_was_edited_holds_no_more_than_its_inference_asks_for() -> None:
    world = PlacementWorld()
    world.inference("ctr", replicas=3)
    world.inference("cvr", replicas=1, metadata={"creationTimestamp": "2026-02-01T00:00:00Z"})
    world.deployment("cvr", 999)
    assert world.of("ctr").replicas == 3
    world.deployment("cvr", 1, slices=999)
    labels = {"tidegate.io/inference": "cvr", "tidegate.io/slices": "999"}
    world.forged("ads", **of_deployment("inf-cvr", labels))
    assert world.of("ctr").replicas == 2, "the pod takes the one that it asks its node for"


@pytest.mark.parametrize("order", list(permutations(("inference", "deployment", "pod"))))
def test_in_whatever_order_they_are_listed_pods_are_their_inferences_own(order: tuple[str, ...]) -> None:
    world = PlacementWorld()
    steps: dict[str, Callable[[], None]] = {
        "inference": lambda: world.inference("old", replicas=1),
        "deployment": lambda: world.deployment("old", 1),
        "pod": lambda: world.pod("old", 0, cpu="1"),
    }
    for step in order:
        steps[step]()
    (claim,) = world.placements.list_claims("cpu-a")
    assert claim.nodes == {"node-a": NodeShare(not_ready=1)}
    (node,) = world.slices("cpu-a").nodes
    assert (node.total, node.used) == (4, {"offline": 1})


def test_pods_that_end_first_are_the_models_own_and_none_without_a_pool() -> None:
    world = PlacementWorld()
    world.inference("ctr", replicas=1)
    world.deployment("ctr", 2)
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    for number in range(2):
        metadata = {"name": f"ctr-{number}", "namespace": "ads"} | of_deployment(
            "inf-ctr", pool_labels("ctr", "cpu-a")
        )
        spec = {"nodeName": "node-a", "containers": []}
        status = {"phase": "Running", "conditions": [ready]}
        world.has(world.stores.pods, {"metadata": metadata, "spec": spec, "status": status})
    # A pod with the model's label and no owner would be more than all others on its node.
    world.forged("ads", name="hog")
    deployments = world.stores.deployment_views.list_all()
    lower = [{"kind": "Deployment", "metadata": {"name": "inf-ctr"}, "spec": {"replicas": 1}}]

    def costs(name: str) -> list[tuple[str, str | None]]:
        inference = world.inferences.get(ObjectKey("ads", name))
        assert inference is not None
        planned = world.placements.plan_deletion_costs(inference, deployments, lower)
        return [(cost.key.name, cost.cost) for cost in planned]

    assert costs("ctr") == [("ctr-1", "-1")]
    inference = world.inferences.get(ObjectKey("ads", "ctr"))
    assert inference is not None
    assert world.placements.plan_deletion_costs(inference, deployments, []) == ()
    world.inference("ctr", "elsewhere", replicas=1)
    assert costs("ctr") == []


def full(waiting: int) -> PlacementWorld:
    """Eight Inferences have a slice each of a pool of two nodes, and so many wait for one."""
    world = PlacementWorld()
    world.node("node-2a")
    names = [f"m{number:05}" for number in range(8 + waiting)]
    for number, name in enumerate(names):
        world.inference(name, replicas=1)
        if number < 8:
            world.deployment(name, 1)
    for name in names:
        world.of(name)
    world.woken.clear()
    return world


def test_a_slice_that_comes_free_in_a_full_pool_wakes_the_one_that_gets_it() -> None:
    world = full(waiting=20)
    world.deployment("m00001", 1, gone=True)
    world.inference("m00001", gone=True)
    assert world.woken == {"m00008"}
    assert world.of("m00008").replicas == 1


def test_those_that_wait_sleep_while_a_full_pool_loses_a_node_and_one_wakes_for_a_new_slice() -> None:
    world = full(waiting=20)
    world.node("node-a", ready=False)
    assert world.woken == set()
    world.node("node-a")
    assert world.woken == set()
    world.node("node-3a", cpu="1")
    assert world.woken == {"m00008"}


def test_what_a_change_of_a_full_pool_costs_hardly_grows_with_those_that_wait() -> None:
    def cost(waiting: int) -> int:
        world = full(waiting)

        def one_comes_and_a_node_goes() -> None:
            world.inference("new", replicas=1)
            assert world.of("new").replicas == 0
            world.node("node-a", ready=False)
            world.deployment("m00002", 0)

        return lines_run(one_comes_and_a_node_goes)

    few, many = cost(100), cost(1600)
    assert many < 2 * few, (few, many)
