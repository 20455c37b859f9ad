"""One pass over a pool whose MPS fails, from caches to writes: in which order, and none when nothing is to be done."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from builders.compute_pool import compute_pool_body, node_body, pod_on
from builders.inference import inference_body
from builders.ownership import of_deployment, of_inference
from tidegate.api.compute_override import ComputeOverride
from tidegate.api.compute_pool import ComputePool
from tidegate.api.meta import ObjectKey
from tidegate.kube import kinds
from tidegate.kube.fence import Fence
from tidegate.kube.kinds import Kind
from tidegate.kube.occupancy import Occupancy
from tidegate.kube.parsed import Parsed
from tidegate.kube.pool_views import PoolViews
from tidegate.kube.store import ObjectStore
from tidegate.planning.node_sharing import SHARING_TAINT, Heard
from tidegate.resources.slices import SHARED_GPU
from tidegate_controllers.allocations import Allocations
from tidegate_controllers.carry_out import Writer
from tidegate_controllers.compute_pool import ComputePoolReconciler
from tidegate_controllers.node_agents import NodeAgents
from tidegate_controllers.overrides import Overrides
from tidegate_controllers.ownership import Ownership
from tidegate_controllers.sharing import Helpers, Sharing
from tidegate_controllers.sharing_metrics import SharingMetrics
from tidegate_controllers.stores import Stores
from tidegate_dataplane.contract.sharing import DaemonState, MpsServer, NodeReport, ServerStatus

POOL = ObjectKey("", "gpu-a")
LABELS = {
    "pool": "a",
    "nvidia.com/gpu.count": "1",
    "nvidia.com/gpu.sharing-strategy": "mps",
    "nvidia.com/device-plugin.config": "mps-4",
}
MPS = {"slicesPerGPU": 4, "cpu": "1", "memory": "1Gi"}


class Told:
    """Agents that say what a test makes them say."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.report = NodeReport(
            node="gpu-0", daemon=DaemonState.ANSWERS, servers=(MpsServer(pid=1, status=ServerStatus.ACTIVE),)
        )

    def ask_again(self, node: str) -> None:
        self.asked.append(node)

    def heard(self, node: str) -> Heard:
        return Heard(self.report.model_copy(update={"node": node}), timedelta())


class Clock:
    def __init__(self) -> None:
        self.at = datetime(2026, 11, 1, tzinfo=UTC)

    def now(self) -> datetime:
        return self.at


class Api:
    """Keeps the pool's status and the node's taints, and what was written in which order."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.calls: list[str] = []

    async def get(self, kind: Kind, key: ObjectKey) -> Mapping[str, Any] | None:
        assert kind is kinds.NODE
        return self.world.node if key.name == "gpu-0" else self.world.occupancy._nodes.get(key)

    async def merge(self, kind: Kind, key: ObjectKey, patch: Mapping[str, Any], fence: Fence) -> None:
        del kind, fence
        self.calls.append(f"taint {key.name}")
        if key.name == "gpu-0":
            self.world.set_node(taints=patch["spec"]["taints"])

    async def delete(self, kind: Kind, key: ObjectKey, *, uid: str, fence: Fence) -> None:
        del fence
        assert kind is kinds.POD
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
    """A pool with one node, a pod on it, and the device plugin's daemon."""

    def __init__(self) -> None:
        self.stores, self.plugin_pods = Stores(), ObjectStore(kinds.POD)
        self.clock, self.agents, self.api = Clock(), Told(), Api(self)
        ownership = Ownership(self.stores)
        self.occupancy = Occupancy(self.stores.pods, ownership.owns_pod)
        self._version = 0
        metrics = SharingMetrics(CollectorRegistry())
        self.sharing = Sharing(
            cast(NodeAgents, self.agents),
            Helpers(self.plugin_pods, "plugin", "daemon"),
            self.stores,
            ownership,
            self.occupancy,
            metrics,
        )
        pools = Parsed(ComputePool, self.stores.pools)
        self.reconciler = ComputePoolReconciler(
            Writer(cast(Any, self.api), self.stores, Fence.unlimited(1)),
            PoolViews(pools, self.occupancy),
            self.occupancy,
            Overrides(Parsed(ComputeOverride, self.stores.overrides)),
            Allocations(lambda _: None),
            self.sharing,
            cast(Any, self.clock),
        )
        self.occupancy.begin()
        for store in (self.occupancy._nodes, self.occupancy._others, self.plugin_pods):
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
        daemon["spec"]["tolerations"] = [{"operator": "Exists"}]
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

    async def look(self, after_s: float = 0) -> list[str]:
        """One pass, some time after the one before; what it wrote."""
        self.clock.at += timedelta(seconds=after_s)
        self.api.calls.clear()
        await self.reconciler.reconcile(POOL)
        return list(self.api.calls)

    @property
    def repairs(self) -> list[Mapping[str, Any]]:
        body = self.stores.pools.get(POOL)
        assert body is not None
        return list(body["status"].get("repairs", ()))


async def test_pool_that_is_well_is_written_once() -> None:
    world = World()
    assert await world.look() == ["status"]
    assert await world.look(60) == []


async def test_attempt_is_written_before_it_is_made_and_recovery_is_told() -> None:
    world = World()
    await world.look()
    world.agents.report = NodeReport(node="gpu-0", daemon=DaemonState.GONE, message="Cannot find")
    assert await world.look(1) == []
    assert world.agents.asked == ["gpu-0"]
    assert await world.look(6) == [
        "status",
        "event DaemonLost",
        "taint gpu-0",
        "delete ctr-0 uid-ctr-0",
        "delete daemon-0 uid-daemon-0",
    ]
    assert (world.repairs[0]["state"], world.repairs[0]["attempts"]) == ("Repairing", 1)

    world.agents.report = Told().report
    wrote = await world.look(3)
    assert wrote[0] == "status"
    assert wrote[-1] == "taint gpu-0"
    assert "event NodeRecovered" in wrote
    assert [each["key"] for each in world.node["spec"]["taints"]] == []
    await world.look(1)  # the node takes pods again
    assert await world.look(1) == []


async def test_leader_that_follows_goes_on_counting() -> None:
    first = World()
    await first.look()
    first.agents.report = NodeReport(node="gpu-0", daemon=DaemonState.GONE, message="Cannot find")
    await first.look(1)
    await first.look(6)

    second = World()
    second.clock.at = first.clock.at
    body = first.stores.pools.get(POOL)
    assert body is not None
    second.set_pool(body["status"])
    second.set_node(taints=[{"key": SHARING_TAINT, "value": "Repairing", "effect": "NoSchedule"}])
    second.agents.report = first.agents.report
    await second.look(1)
    assert second.repairs == first.repairs
    second.make_daemon()
    await second.look(121)
    assert second.repairs[0]["attempts"] == 2


async def test_what_was_suspected_in_an_earlier_term_counts_for_nothing() -> None:
    world = World()
    await world.look()
    world.agents.report = NodeReport(node="gpu-0", daemon=DaemonState.GONE, message="Cannot find")
    await world.look(1)
    world.sharing.clear()
    assert await world.look(600) == []
    assert "taint gpu-0" in await world.look(6)


async def test_taint_is_taken_off_a_node_that_left_its_pool_while_it_was_repaired() -> None:
    world = World()
    ours = {"key": SHARING_TAINT, "value": "Repairing", "effect": "NoSchedule"}
    for name in ("left", "elsewhere", "quarantined"):
        value = "Quarantined" if name == "quarantined" else "Repairing"
        world.has(world.occupancy._nodes, node_body(name, labels={}, taints=[{**ours, "value": value}]))
    repair = {
        "node": "elsewhere",
        "fault": "DaemonLost",
        "state": "Repairing",
        "since": "2026-11-01T00:00:00Z",
    }
    world.has(world.stores.pools, {**compute_pool_body("gpu-b"), "status": {"repairs": [repair]}})
    assert [call for call in await world.look() if call.startswith("taint")] == ["taint left"]


@pytest.mark.parametrize("missing", ["nodes", "plugin"])
async def test_nothing_is_said_before_everything_is_listed(missing: str) -> None:
    world = World()
    store = world.plugin_pods if missing == "plugin" else world.occupancy._nodes
    store.synced.clear()
    assert await world.look() == []
