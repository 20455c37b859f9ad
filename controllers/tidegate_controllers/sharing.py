"""Nodes that share their GPUs under MPS: what is known of each, and what is done to those that failed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import structlog

from tidegate.api.compute_pool import ComputePool
from tidegate.api.meta import ObjectKey
from tidegate.errors import TidegateError
from tidegate.kube.fence import Fence
from tidegate.kube.kinds import NODE, POD
from tidegate.kube.occupancy import Occupancy
from tidegate.kube.port import Cluster, Manifest
from tidegate.kube.store import ObjectStore
from tidegate.planning.node_sharing import (
    SHARING_TAINT,
    HelperPod,
    NodeSharing,
    SlicePod,
    helper_pod,
    slice_pod,
)
from tidegate.planning.nodes import NodeView
from tidegate.planning.pool_slices import PoolSlices
from tidegate.planning.sharing_health import SharingPlan, Suspicion, plan_sharing
from tidegate.planning.sharing_repairs import OrderNode, RemovePod, Step, TaintNode, strays
from tidegate.resources.names import POOL_LABEL, label_value
from tidegate.resources.slices import labels_fit
from tidegate_controllers.node_agents import NodeAgents
from tidegate_controllers.ownership import Ownership
from tidegate_controllers.sharing_metrics import SharingMetrics
from tidegate_controllers.stores import Stores
from tidegate_dataplane.contract.sharing import NodeOrder

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Helpers:
    """The device plugin's pods, and the names of the DaemonSets that make them."""

    pods: ObjectStore
    plugin: str
    daemon: str


class Sharing:
    """Looks at the nodes of a pool, and acts on them. There is none where no node agents run."""

    def __init__(
        self,
        agents: NodeAgents,
        helpers: Helpers,
        stores: Stores,
        ownership: Ownership,
        occupancy: Occupancy,
        metrics: SharingMetrics,
    ) -> None:
        self._pools = stores.pools
        self.agents = agents
        self._helpers = helpers
        self._pods = stores.pods
        self._ownership = ownership
        self._occupancy = occupancy
        self._metrics = metrics
        self._suspicions: dict[ObjectKey, Mapping[str, Suspicion]] = {}

    @property
    def known(self) -> bool:
        """Whether the device plugin's pods have been listed: without them no repair can be judged."""
        return self._helpers.pods.synced.is_set()

    def subscribe(self, subscriber: Callable[[str], None]) -> None:
        """Calls `subscriber` with a node about which MPS or the kubelet says something else."""
        self.agents.subscribe(subscriber)

        def changed(key: ObjectKey) -> None:
            pod = slice_pod(self._pods.get(key) or {"metadata": {}})
            if pod is not None and pod.refused:
                subscriber(pod.node)

        def helper_changed(_: ObjectKey) -> None:
            subscriber("")

        # Of running pods the occupancy tells; one that was refused takes nothing, and is of interest here alone.
        self._pods.subscribe(changed)
        self._helpers.pods.subscribe(helper_changed)

    def clear(self) -> None:
        """Forgets what was suspected: nobody has looked since this process last led."""
        self._suspicions.clear()

    def plan(self, pool: ComputePool, slices: PoolSlices, now: datetime) -> SharingPlan | None:
        """What is wrong with the nodes of `pool`; None where they do not share GPUs by the device plugin."""
        mps = pool.spec.slice.mps
        if mps is None:
            return None
        views = self._views(pool, slices)
        plan = plan_sharing(pool, views, self._suspicions.get(pool.key, {}), now)
        self._suspicions[pool.key] = plan.suspicions
        for node in plan.doubted:
            self.agents.ask_again(node)
        repaired = self._repaired_elsewhere(pool) | {each.node for each in plan.repairs}
        left = (step for step in strays(self._occupancy.nodes(), repaired) if step not in plan.steps)
        return replace(plan, steps=(*plan.steps, *left))

    def _repaired_elsewhere(self, pool: ComputePool) -> set[str]:
        return {
            each["node"]
            for body in self._pools
            if body["metadata"]["name"] != pool.metadata.name
            for each in (body.get("status") or {}).get("repairs") or ()
        }

    async def carry_out(self, pool: ComputePool, plan: SharingPlan, cluster: Cluster, fence: Fence) -> None:
        """Takes every step; what could not be taken is counted, and is due again at the next look."""
        self._metrics.count(pool.metadata.name, plan.turns)
        for step in plan.steps:
            try:
                await self._take(step, cluster, fence)
            except TidegateError as error:
                log.warning("repair_step_failed", pool=pool.metadata.name, step=str(step), error=str(error))
                self._metrics.failed_steps.labels(pool.metadata.name, type(step).__name__).inc()

    def _views(self, pool: ComputePool, slices: PoolSlices) -> tuple[NodeSharing, ...]:
        pods: dict[str, list[SlicePod]] = {}
        for body in self._pods.by_label(POOL_LABEL, label_value(pool.metadata.name)):
            pod = slice_pod(body)
            if pod is not None and self._ownership.owns_pod(body):
                pods.setdefault(pod.node, []).append(pod)
        daemons, plugins = self._helpers_of(self._helpers.daemon), self._helpers_of(self._helpers.plugin)
        nodes = (self._occupancy.node(each.node) for each in slices.nodes)
        return tuple(
            self._view(pool, node, pods.get(node.name, ()), daemons, plugins)
            for node in nodes
            if node is not None
        )

    def _view(
        self,
        pool: ComputePool,
        node: NodeView,
        pods: Sequence[SlicePod],
        daemons: Mapping[str, HelperPod],
        plugins: Mapping[str, HelperPod],
    ) -> NodeSharing:
        mps = pool.spec.slice.mps
        return NodeSharing(
            node=node,
            configured=mps is not None and labels_fit(node.labels, mps.slices_per_gpu),
            heard=self.agents.heard(node.name),
            pods=tuple(pods),
            present=frozenset(each.uid for each in self._occupancy.occupants(node.name)),
            daemon=daemons.get(node.name),
            plugin=plugins.get(node.name),
        )

    def _helpers_of(self, daemon_set: str) -> Mapping[str, HelperPod]:
        """By node; of two, the one that stays."""
        found: dict[str, HelperPod] = {}
        for body in self._helpers.pods:
            node, pod = (body.get("spec") or {}).get("nodeName"), helper_pod(body, daemon_set)
            if node and pod is not None and (node not in found or found[node].leaving):
                found[node] = pod
        return found

    async def _take(self, step: Step, cluster: Cluster, fence: Fence) -> None:
        log.info("repair_step", step=str(step))
        if isinstance(step, RemovePod):
            await cluster.delete(POD, step.key, uid=step.uid, fence=fence)
        elif isinstance(step, OrderNode):
            fence.check()
            order = NodeOrder(
                id=step.id, epoch=fence.epoch, action=step.action, server=step.server, client=step.client
            )
            await self.agents.send(step.node, order)
        else:
            await _taint(step, cluster, fence)


async def _taint(step: TaintNode, cluster: Cluster, fence: Fence) -> None:
    """The taints of a node are one list, so that it is changed as a whole, or not at all when another was faster."""
    key = ObjectKey("", step.node)
    node = await cluster.get(NODE, key)
    if node is None:
        return
    before = list((node.get("spec") or {}).get("taints") or ())
    after: list[Mapping[str, Any]] = [each for each in before if each["key"] != SHARING_TAINT]
    if step.value is not None:
        after.append({"key": SHARING_TAINT, "value": step.value.value, "effect": "NoSchedule"})
    if _plain(before) == _plain(after):
        return
    version = node["metadata"]["resourceVersion"]
    patch: Manifest = {"metadata": {"resourceVersion": version}, "spec": {"taints": after}}
    await cluster.merge(NODE, key, patch, fence)


def _plain(taints: Sequence[Mapping[str, Any]]) -> set[tuple[str, str, str]]:
    return {(each["key"], each.get("value", ""), each["effect"]) for each in taints}
