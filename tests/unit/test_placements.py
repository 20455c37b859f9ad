"""Placements over caches: a slice is given once, from the decision until the last pod that has it is gone."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import permutations
from types import FrameType
from typing import Any

import pytest

from builders.compute_pool import compute_pool_body, node_body
from builders.inference import inference_body
from builders.ownership import of_deployment, of_inference, of_job
from tidegate.api.compute_pool import ComputePool
from tidegate.api.inference import Inference
from tidegate.api.meta import ObjectKey
from tidegate.kube.occupancy import NodeOccupancy
from tidegate.kube.pool_slices_cache import PoolSlicesCache
from tidegate.kube.typed_cache import TypedCache
from tidegate.planning.pools.claims import NodeShare
from tidegate.planning.pools.placement import PlacementResult
from tidegate.planning.pools.pool_slices import PoolSlices
from tidegate_controllers.ownership import Ownership
from tidegate_controllers.placements import Placements, PoolSources
from tidegate_controllers.stores import Stores


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


class World:
    """Two pools of one node with four slices each, and the caches behind them, fed as watches feed them."""

    def __init__(self) -> None:
        self.stores = Stores()
        self.inferences = TypedCache(Inference, self.stores.inferences)
        ownership = Ownership(self.stores)
        self.pools = pools = TypedCache(ComputePool, self.stores.pools)
        self.occupancy = occupancy = NodeOccupancy(self.stores.pods, ownership.owns_pod)
        ownership.subscribe(occupancy.refresh_pod)
        self.views = PoolSlicesCache(pools, occupancy)
        parts = PoolSources(pools, self.views, occupancy, ownership)
        self.placements = Placements(parts, self.inferences, self.stores)
        self.woken: set[str] = set()
        self.placements.subscribe(lambda key: self.woken.add(key.name))
        self._version = 0
        self._nodes = occupancy._nodes
        occupancy.start_watching()
        for name in ("a", "b"):
            self.has(self.stores.pools, compute_pool_body(f"cpu-{name}", nodeSelector={"pool": name}))
            self.node(f"node-{name}")
        self.woken.clear()

    def has(self, store: Any, body: dict[str, Any], *, gone: bool = False) -> None:
        self._version += 1
        metadata = {"uid": f"uid-{body['metadata']['name']}", **body["metadata"]}
        body = {**body, "metadata": {**metadata, "resourceVersion": str(self._version)}}
        store.observe("DELETED" if gone else "MODIFIED", body)

    def node(self, name: str, **facts: Any) -> None:
        """A node as it is now, and then its pool's status, as the pool's reconciler writes it."""
        self.has(self._nodes, node_body(name, **facts, labels={"pool": name[-1]}))
        pool = compute_pool_body(f"cpu-{name[-1]}", nodeSelector={"pool": name[-1]})
        self.has(self.stores.pools, {**pool, "status": {"slices": {"total": self._version}}})

    def inference(self, name: str, pool: str = "cpu-a", *, gone: bool = False, **spec: Any) -> None:
        placement, status = {"pool": pool, "slices": spec.pop("slices", 1)}, spec.pop("status", {})
        body = {
            **inference_body(name, "ads", placement=placement, **{"replicas": 4, **spec}),
            "status": status,
        }
        self.has(self.stores.inferences, body, gone=gone)

    def deployment(
        self,
        inference: str,
        replicas: int,
        pool: str = "cpu-a",
        *,
        name: str = "",
        slices: int = 1,
        gone: bool = False,
    ) -> None:
        labels = {**_labels(inference, pool), "tidegate.io/slices": str(slices)}
        template = {"metadata": {"labels": labels}, "spec": {}}
        metadata = {"name": name or f"inf-{inference}", "namespace": "ads", "labels": labels}
        metadata |= of_inference(inference)
        body = {"metadata": metadata, "spec": {"replicas": replicas, "template": template}}
        self.has(self.stores.deployments, body, gone=gone)

    def job(self, name: str, inference: str) -> None:
        labels = _labels(inference, "cpu-a")
        metadata = {"name": name, "namespace": "ads", "uid": f"uid-{name}", "labels": labels}
        spec = {"parallelism": 0, "template": {"metadata": {"labels": labels}}}
        self.has(self.stores.jobs, {"metadata": {**metadata, **of_inference(inference)}, "spec": spec})

    def forged(self, namespace: str = "tenant-b", **metadata: Any) -> None:
        """A tenant's own pod, with labels of its own choice."""
        labels = {**_labels("ctr", "cpu-a"), "tidegate.io/slices": "999" if namespace != "ads" else "1"}
        own = {"name": "hog", "namespace": namespace, "uid": "uid-hog"}
        own |= {**metadata, "labels": {**labels, **metadata.get("labels", {})}}
        requests = {"cpu": "1", "memory": "1Gi"}
        spec = {"nodeName": "node-a", "containers": [{"name": "c", "resources": {"requests": requests}}]}
        self.has(self.stores.pods, {"metadata": own, "spec": spec, "status": {"phase": "Running"}})

    def slices(self, pool: str) -> PoolSlices:
        found = self.pools.get(ObjectKey("", pool))
        assert found is not None
        return self.views.get_slices(found)

    def pod(self, name: str, number: int, pool: str = "cpu-a", *, cpu: str = "", gone: bool = False) -> None:
        metadata = {"name": f"{name}-{number}", "namespace": "ads"}
        metadata |= of_deployment(f"inf-{name}", _labels(name, pool))
        container = {"name": "triton", "resources": {"requests": {"cpu": cpu} if cpu else {}}}
        body = {
            "metadata": metadata,
            "spec": {"nodeName": f"node-{pool[-1]}", "containers": [container]},
            "status": {"phase": "Running"},
        }
        self.has(self.stores.pods, body, gone=gone)

    def of(self, name: str) -> PlacementResult:
        inference = self.inferences.get(ObjectKey("ads", name))
        assert inference is not None
        result = self.placements.place(inference)
        assert result is not None
        return result


def _labels(name: str, pool: str) -> dict[str, str]:
    return {
        "app.kubernetes.io/managed-by": "tidegate",
        "tidegate.io/inference": name,
        "tidegate.io/pool": pool,
        "tidegate.io/slices": "1",
        "tidegate.io/tier": "offline",
    }


def test_what_was_just_given_is_not_given_to_a_higher_tier_before_it_is_written() -> None:
    world = World()
    world.inference("batch", tier="offline")
    assert world.of("batch").replicas == 4
    world.inference("ctr")
    assert world.of("ctr").replicas == 0

    world.deployment("batch", 4)
    world.placements.forget_assumed(ObjectKey("ads", "batch"))
    assert world.woken == set()
    assert world.of("ctr").replicas == 0


def test_what_was_given_and_refused_is_given_to_those_that_wait() -> None:
    world = World()
    world.inference("batch", tier="offline")
    world.of("batch")
    world.inference("ctr")
    world.of("ctr")
    world.placements.forget_assumed(ObjectKey("ads", "batch"))

    assert "ctr" in world.woken
    assert world.of("ctr").replicas == 4


def test_who_lacks_a_warm_spare_alone_is_woken_when_there_is_room_for_it() -> None:
    world = World()
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
    world = World()
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
    world = World()
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
    world = World()
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
    world = World()
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
    world = World()
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
    world = World()
    world.inference("ctr", replicas=4)
    world.deployment("hog", 999)
    assert world.of("ctr").replicas == 4


def test_a_deployment_that_was_edited_holds_no_more_than_its_inference_asks_for() -> None:
    world = World()
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
    world = World()
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


def full(waiting: int) -> World:
    """Eight Inferences have a slice each of a pool of two nodes, and so many wait for one."""
    world = World()
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
