"""One reconcile of a pool whose MPS fails, from caches to writes: their order, and no write when nothing has changed."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from builders.compute_pool import compute_pool_body, node_body, pod_on
from builders.inference import inference_body
from builders.ownership import of_deployment, of_inference
from tidegate.api.compute_override import ComputeOverride
from tidegate.api.compute_pool import ComputePool
from tidegate.api.meta import ObjectKey
from tidegate.errors import ConflictError
from tidegate.exporters.sharing import SharingMetrics
from tidegate.kube import kinds
from tidegate.kube.fence import Fence
from tidegate.kube.kinds import Kind
from tidegate.kube.occupancy import NodeOccupancy
from tidegate.kube.pool_slices_cache import PoolSlicesCache
from tidegate.kube.store import ObjectStore
from tidegate.kube.typed_cache import TypedCache
from tidegate.planning.gpu_sharing.node_sharing import NodeAgentReport
from tidegate.resources.slices import SHARED_GPU
from tidegate_controllers.allocator.reconciler import AllocationResults
from tidegate_controllers.applier import Applier
from tidegate_controllers.node_agents import NodeAgents
from tidegate_controllers.ownership import Ownership
from tidegate_controllers.reconcilers.compute_pool import ComputePoolReconciler
from tidegate_controllers.sharing import GpuSharing, MpsDaemons
from tidegate_controllers.stores import Stores
from tidegate_controllers.typed_caches import OverrideIndex
from tidegate_dataplane.contract.sharing import DaemonState, MpsServer, NodeReport, ServerStatus

POOL = ObjectKey("", "gpu-a")
LABELS = {
    "pool": "a",
    "nvidia.com/gpu.count": "1",
    "nvidia.com/gpu.sharing-strategy": "mps",
    "nvidia.com/device-plugin.config": "mps-4",
}
MPS = {"slicesPerGPU": 4, "cpu": "1", "memory": "1Gi"}


HEALTHY = NodeReport(
    node="gpu-0", daemon=DaemonState.ANSWERS, servers=(MpsServer(pid=1, status=ServerStatus.ACTIVE),)
)
FAULT = HEALTHY.model_copy(update={"servers": (MpsServer(pid=1, status=ServerStatus.FAULT),)})
LOST = NodeReport(node="gpu-0", daemon=DaemonState.GONE, message="Cannot find")
FOREIGN = {"key": "dedicated", "value": "ads", "effect": "NoSchedule"}
OURS = {"key": "tidegate.io/sharing", "value": "Quarantined", "effect": "NoSchedule"}


class FakeAgents:
    """Agents that all report the same."""

    report = HEALTHY

    def last_report(self, node: str) -> NodeAgentReport:
        return NodeAgentReport(self.report.model_copy(update={"node": node}), timedelta())


class Clock:
    def __init__(self) -> None:
        self.at = datetime(2026, 11, 1, tzinfo=UTC)

    def now(self) -> datetime:
        return self.at


class Api:
    """Keeps the pool's status and the node's taints, and the writes in their order."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.calls: list[str] = []
        self.patches: list[Mapping[str, Any]] = []
        self.conflicts: set[str] = set()
        """Nodes that somebody else has just changed."""

    async def get(self, kind: Kind, key: ObjectKey) -> Mapping[str, Any] | None:
        assert kind is kinds.NODE
        return self.world.node if key.name == "gpu-0" else self.world.occupancy._nodes.get(key)

    async def merge(self, kind: Kind, key: ObjectKey, patch: Mapping[str, Any], fence: Fence) -> None:
        assert (kind, fence) == (kinds.NODE, self.world.fence)
        if key.name in self.conflicts:
            message = "the object has been modified"
            raise ConflictError(message)
        self.calls.append(f"taint {key.name}")
        self.patches.append(patch)
        if key.name == "gpu-0":
            self.world.set_node(taints=patch["spec"]["taints"])

    async def delete(self, kind: Kind, key: ObjectKey, *, uid: str, fence: Fence) -> None:
        assert (kind, fence) == (kinds.POD, self.world.fence)
        self.calls.append(f"delete {key.name} {uid}")
        self.world.gone(key)

    async def apply_status(
        self, kind: Kind, key: ObjectKey, status: Mapping[str, Any], *, uid: str, fence: Fence
    ) -> Mapping[str, Any]:
        del key, uid, fence
        assert kind is kinds.COMPUTE_POOL
        self.calls.append("status")
        return self.world.set_pool(status)

    async def create_event(self, note: Any) -> None:
        self.calls.append(f"event {note.reason}")


class World:
    """A pool with one node, a pod on it, and the MPS daemon's pod."""

    def __init__(self) -> None:
        self.stores, self.plugin_pods = Stores(), ObjectStore(kinds.POD)
        self.clock, self.agents, self.api = Clock(), FakeAgents(), Api(self)
        ownership = Ownership(self.stores)
        self.occupancy = NodeOccupancy(self.stores.pods, ownership.owns_pod)
        self._version = 0
        self.fence, self.registry = Fence.unlimited(1), CollectorRegistry()
        metrics = SharingMetrics(self.registry)
        self.sharing = GpuSharing(
            agents=cast(NodeAgents, self.agents),
            daemons=MpsDaemons(self.plugin_pods, "daemon"),
            stores=self.stores,
            ownership=ownership,
            occupancy=self.occupancy,
            metrics=metrics,
        )
        pools = TypedCache(ComputePool, self.stores.pools)
        self.reconciler = ComputePoolReconciler(
            applier=Applier(cast(Any, self.api), self.stores, self.fence),
            views=PoolSlicesCache(pools, self.occupancy),
            occupancy=self.occupancy,
            overrides=OverrideIndex(TypedCache(ComputeOverride, self.stores.overrides)),
            allocations=AllocationResults(lambda _: None),
            spares=cast(Any, SimpleNamespace(get_status=lambda _, before: before)),
            sharing=self.sharing,
            clock=cast(Any, self.clock),
        )
        self.occupancy.start_watching()
        for store in (self.occupancy._nodes, self.occupancy._foreign_pods, self.plugin_pods):
            store.synced.set()
        self.node: dict[str, Any] = {}
        self.set_node()
        self.set_pool({})
        self.make_pod()
        self.make_daemon()

    def has(self, store: ObjectStore, body: dict[str, Any]) -> dict[str, Any]:
        self._version += 1
        whole = {**body, "metadata": {**body["metadata"], "resourceVersion": str(self._version)}}
        store.observe("MODIFIED", whole)
        return whole

    def make_pod(self) -> None:
        """As the Deployment of an Inference does."""
        labels = {"tidegate.io/inference": "ctr", "tidegate.io/pool": "gpu-a", "tidegate.io/slices": "1"}
        self.has(self.stores.inferences, inference_body("ctr", placement={"pool": "gpu-a", "slices": 1}))
        metadata = {"name": "inf-ctr", "namespace": "ads", "labels": labels, **of_inference("ctr")}
        deployment = {
            "metadata": metadata,
            "spec": {"replicas": 1, "template": {"metadata": metadata, "spec": {}}},
        }
        self.has(self.stores.deployments, deployment)
        pod = pod_on("gpu-0", "ctr-0", pool="gpu-a")
        pod["metadata"] |= of_deployment("inf-ctr", {**labels, **pod["metadata"]["labels"]})
        self.has(self.stores.pods, pod)

    def make_daemon(self) -> None:
        """As its DaemonSet does; it has been ready for long."""
        daemon = pod_on("gpu-0", "daemon-0", managed=False)
        daemon["metadata"]["ownerReferences"] = [{"kind": "DaemonSet", "name": "daemon", "uid": "ds"}]
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-10-01T00:00:00Z"}
        daemon["status"]["conditions"] = [ready]
        self.has(self.plugin_pods, daemon)

    def gone(self, key: ObjectKey) -> None:
        for store in (self.stores.pods, self.plugin_pods):
            body = store.get(key)
            if body is not None:
                store.observe("DELETED", body)

    def set_node(self, *, taints: list[dict[str, str]] | None = None) -> None:
        body = node_body("gpu-0", labels=LABELS, cpu="16", memory="64Gi", taints=taints, **{SHARED_GPU: "4"})
        self.node = self.has(self.occupancy._nodes, body)

    def set_pool(self, status: Mapping[str, Any]) -> Mapping[str, Any]:
        body = compute_pool_body("gpu-a", slice={"cpu": None, "mps": MPS})
        return self.has(self.stores.pools, {**body, "status": dict(status)})

    async def reconcile(self, after_s: float = 0) -> list[str]:
        """Reconcile, some time after the last time; return the writes."""
        self.clock.at += timedelta(seconds=after_s)
        self.api.calls.clear()
        await self.reconciler.reconcile(POOL)
        return list(self.api.calls)

    @property
    def faulty(self) -> list[Mapping[str, Any]]:
        body = self.stores.pools.get(POOL)
        assert body is not None
        return list(body["status"].get("faultyNodes", ()))


async def test_pool_without_faults_is_written_once() -> None:
    world = World()
    assert await world.reconcile() == ["status"]
    assert await world.reconcile(60) == []


async def test_restart_is_counted_in_the_status_before_it_happens_and_recovery_is_an_event() -> None:
    world = World()
    await world.reconcile()
    world.agents.report = LOST
    assert await world.reconcile(1) == ["status"]
    assert await world.reconcile(31) == ["status", "event DaemonLost", "delete daemon-0 uid-daemon-0"]
    assert (world.faulty[0]["state"], world.faulty[0]["restarts"]) == ("Restarting", 1)
    assert world.stores.pods.get(ObjectKey("ads", "ctr-0")) is not None

    world.agents.report = HEALTHY
    assert await world.reconcile(3) == ["status", "event NodeRecovered"]
    assert await world.reconcile(1) == []


async def test_a_pod_of_the_device_plugin_that_cannot_be_read_stops_no_pool() -> None:
    world = World()
    odd = pod_on("gpu-0", "odd", managed=False)
    odd["metadata"]["ownerReferences"] = [{"kind": "DaemonSet", "uid": "u"}]
    world.has(world.plugin_pods, odd)
    world.agents.report = LOST
    await world.reconcile()
    assert await world.reconcile(31) == ["status", "event DaemonLost", "delete daemon-0 uid-daemon-0"]
    assert [key.name for key in world.plugin_pods.left_out] == ["odd"]


async def test_quarantined_node_has_the_taint_among_others_until_its_fault_has_gone() -> None:
    world = World()
    world.set_node(taints=[FOREIGN])
    await world.reconcile()
    world.agents.report = FAULT
    assert await world.reconcile(1) == ["status", "event GpuFault"]
    version = world.node["metadata"]["resourceVersion"]
    writes = await world.reconcile(61)
    assert (writes[0], writes[-1]) == ("status", "taint gpu-0")
    assert "event NodeQuarantined" in writes
    # With the version that was read, so that a taint which somebody has just added is not lost.
    assert world.api.patches == [
        {"metadata": {"resourceVersion": version}, "spec": {"taints": [FOREIGN, OURS]}}
    ]
    world.agents.report = HEALTHY
    assert (await world.reconcile(1))[-1] == "taint gpu-0"
    assert world.node["spec"]["taints"] == [FOREIGN]


async def test_taint_that_the_cache_does_not_show_yet_is_not_written_twice() -> None:
    world = World()
    world.agents.report = FAULT
    await world.reconcile()
    before = world.node
    await world.reconcile(61)
    world.node = {**before, "spec": {**before["spec"], "taints": [OURS]}}
    world.occupancy._nodes.observe(
        "MODIFIED", {**before, "metadata": {**before["metadata"], "resourceVersion": "99"}}
    )
    assert "taint gpu-0" not in await world.reconcile(1)


async def test_action_that_fails_is_counted_and_tried_again_and_keeps_no_other_from_being_carried_out() -> (
    None
):
    world = World()
    world.agents.report = FAULT
    await world.reconcile()
    world.has(world.occupancy._nodes, node_body("left", labels={}, taints=[OURS]))
    world.api.conflicts = {"gpu-0"}
    assert (await world.reconcile(61))[-1] == "taint left"
    labels = {"pool": "gpu-a", "action": "TaintNode"}
    assert world.registry.get_sample_value("tidegate_pool_sharing_actions_failed_total", labels) == 1
    world.api.conflicts = set()
    assert "taint gpu-0" in await world.reconcile(1)


async def test_next_leader_continues_the_count_of_restarts() -> None:
    first = World()
    await first.reconcile()
    first.agents.report = LOST
    await first.reconcile(1)
    await first.reconcile(31)

    second = World()
    second.clock.at = first.clock.at
    body = first.stores.pools.get(POOL)
    assert body is not None
    second.set_pool(body["status"])
    second.agents.report = LOST
    await second.reconcile(1)
    assert second.faulty == first.faulty
    await second.reconcile(121)
    assert second.faulty[0]["restarts"] == 2


async def test_faults_seen_in_an_earlier_term_do_not_count() -> None:
    world = World()
    await world.reconcile()
    world.agents.report = LOST
    await world.reconcile(1)
    world.sharing.clear()
    await world.reconcile(600)
    assert world.faulty == []
    assert "delete daemon-0 uid-daemon-0" in await world.reconcile(31)


async def test_taint_is_removed_from_a_node_that_has_left_its_pool() -> None:
    world = World()
    for name in ("left", "elsewhere"):
        world.has(world.occupancy._nodes, node_body(name, labels={}, taints=[OURS]))
    entry = {
        "node": "elsewhere",
        "fault": "GpuFault",
        "state": "Quarantined",
        "since": "2026-11-01T00:00:00Z",
    }
    world.has(world.stores.pools, {**compute_pool_body("gpu-b"), "status": {"faultyNodes": [entry]}})
    assert [call for call in await world.reconcile() if call.startswith("taint")] == ["taint left"]


@pytest.mark.parametrize("missing", ["nodes", "plugin"])
async def test_nothing_is_written_before_everything_is_listed(missing: str) -> None:
    world = World()
    store = world.plugin_pods if missing == "plugin" else world.occupancy._nodes
    store.synced.clear()
    assert await world.reconcile() == []
