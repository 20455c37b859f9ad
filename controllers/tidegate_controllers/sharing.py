"""Checks the nodes of pools that share GPUs under MPS, and quarantines nodes and restarts MPS daemons as planned."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import structlog

from tidegate.api.compute_pool import ComputePool
from tidegate.api.meta import ObjectKey
from tidegate.errors import TidegateError
from tidegate.exporters.sharing import SharingMetrics
from tidegate.kube.fence import Fence
from tidegate.kube.kinds import NODE, POD
from tidegate.kube.occupancy import NodeOccupancy
from tidegate.kube.port import ClusterApi, Manifest
from tidegate.kube.store import ObjectStore
from tidegate.kube.typed_cache import ViewCache
from tidegate.planning.gpu_sharing.health import (
    FaultSighting,
    SharingAction,
    SharingPlan,
    TaintNode,
    plan_sharing,
)
from tidegate.planning.gpu_sharing.node_sharing import (
    SHARING_TAINT,
    DaemonPod,
    NodeSharing,
    SlicePod,
    parse_daemon_pod,
    parse_slice_pod,
)
from tidegate.planning.pools.pool_slices import PoolSlices
from tidegate.resources.names import POOL_LABEL, to_label_value
from tidegate.resources.slices import is_node_configured
from tidegate_controllers.node_agents import NodeAgents
from tidegate_controllers.ownership import Ownership
from tidegate_controllers.stores import Stores

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class MpsDaemons:
    """The pods in the device plugin's namespace, and the name of the DaemonSet of its MPS control daemon."""

    pods: ObjectStore
    daemon_set: str


class GpuSharing:
    """Checks the nodes of a pool, and acts on them. It exists only where node agents run."""

    def __init__(
        self,
        *,
        agents: NodeAgents,
        daemons: MpsDaemons,
        stores: Stores,
        ownership: Ownership,
        occupancy: NodeOccupancy,
        metrics: SharingMetrics,
    ) -> None:
        self._pools = stores.pools
        self._agents = agents
        self._daemons = ViewCache(daemons.pods, lambda body: _parse_daemon(body, daemons.daemon_set))
        self._pods = stores.pods
        self._ownership = ownership
        self._occupancy = occupancy
        self._metrics = metrics
        self._first_seen: dict[ObjectKey, Mapping[str, FaultSighting]] = {}

    @property
    def synced(self) -> bool:
        """Return whether the device plugin's pods have been listed."""
        return self._daemons.store.synced.is_set()

    def subscribe(self, subscriber: Callable[[str], None]) -> None:
        """Call `subscriber` when something changes that a pool's sharing depends on."""
        self._agents.subscribe(subscriber)

        def pod_changed(key: ObjectKey) -> None:
            pod = parse_slice_pod(self._pods.get(key) or {"metadata": {}})
            if pod is not None and pod.refused_at is not None:
                subscriber(pod.node)

        def daemon_changed(_: ObjectKey) -> None:
            subscriber("")

        # The occupancy reports running pods. A refused pod occupies nothing and matters only here.
        self._pods.subscribe(pod_changed)
        self._daemons.store.subscribe(daemon_changed)

    def clear(self) -> None:
        """Forget since when faults are seen: what an earlier term saw may have gone meanwhile."""
        self._first_seen.clear()

    def plan(self, pool: ComputePool, slices: PoolSlices, now: datetime) -> SharingPlan | None:
        """Plan what to do about the nodes of `pool`; return None if it is a pool of CPUs."""
        mps = pool.spec.slice.mps
        if mps is None:
            return None
        views = self._observe_nodes(pool, slices, mps.slices_per_gpu)
        plan = plan_sharing(pool, views, self._first_seen.get(pool.key, {}), now)
        self._first_seen[pool.key] = plan.first_seen
        return replace(plan, actions=(*plan.actions, *self._release_strays(pool, views)))

    async def apply(self, pool: ComputePool, plan: SharingPlan, cluster: ClusterApi, fence: Fence) -> None:
        """Execute every action. A failed action is counted, and does not stop the others."""
        self._metrics.count_changes(pool.metadata.name, plan.changes)
        for action in plan.actions:
            log.info("sharing_action", pool=pool.metadata.name, action=str(action))
            try:
                await _apply_action(action, cluster, fence)
            except TidegateError as error:
                log.warning("sharing_action_failed", action=str(action), error=str(error))
                self._metrics.failed_actions.labels(pool.metadata.name, type(action).__name__).inc()

    def _release_strays(self, pool: ComputePool, views: tuple[NodeSharing, ...]) -> tuple[TaintNode, ...]:
        """Return actions that remove our taint from nodes that have left their pool."""
        listed = {view.node.name for view in views} | {
            entry["node"]
            for body in self._pools
            if body["metadata"]["name"] != pool.metadata.name
            for entry in (body.get("status") or {}).get("faultyNodes") or ()
        }
        return tuple(
            TaintNode(node.name, quarantined=False)
            for node in self._occupancy.list_nodes()
            if node.name not in listed and any(taint.key == SHARING_TAINT for taint in node.taints)
        )

    def _observe_nodes(
        self, pool: ComputePool, slices: PoolSlices, slices_per_gpu: int
    ) -> tuple[NodeSharing, ...]:
        pods: dict[str, list[SlicePod]] = {}
        for body in self._pods.by_label(POOL_LABEL, to_label_value(pool.metadata.name)):
            pod = parse_slice_pod(body)
            if pod is not None and self._ownership.owns_pod(body):
                pods.setdefault(pod.node, []).append(pod)
        daemons = self._find_daemons()
        nodes = (self._occupancy.get_node(item.node) for item in slices.nodes)
        return tuple(
            NodeSharing(
                node=node,
                configured=is_node_configured(node.labels, slices_per_gpu),
                agent=self._agents.last_report(node.name),
                pods=tuple(pods.get(node.name, ())),
                pod_uids=frozenset(occupant.uid for occupant in self._occupancy.list_occupants(node.name)),
                daemon=daemons.get(node.name),
            )
            for node in nodes
            if node is not None
        )

    def _find_daemons(self) -> Mapping[str, DaemonPod]:
        """Return the daemon's pod by node; of two, the one that is not terminating."""
        daemons: dict[str, DaemonPod] = {}
        for node, pod in self._daemons.list_all():
            if node and pod is not None and (node not in daemons or daemons[node].terminating):
                daemons[node] = pod
        return daemons


def _parse_daemon(body: Manifest, daemon_set: str) -> tuple[str, DaemonPod | None]:
    """Return the node of a pod, empty before it has one, and the pod; None if another DaemonSet owns it."""
    return (body.get("spec") or {}).get("nodeName") or "", parse_daemon_pod(body, daemon_set)


async def _apply_action(action: SharingAction, cluster: ClusterApi, fence: Fence) -> None:
    if isinstance(action, TaintNode):
        await _set_taint(action, cluster, fence)
    else:
        await cluster.delete(POD, action.pod, uid=action.uid, fence=fence)


async def _set_taint(action: TaintNode, cluster: ClusterApi, fence: Fence) -> None:
    key = ObjectKey("", action.node)
    node = await cluster.get(NODE, key)
    if node is None:
        return
    before: list[Mapping[str, Any]] = list((node.get("spec") or {}).get("taints") or ())
    after = [taint for taint in before if taint["key"] != SHARING_TAINT]
    if (len(after) < len(before)) is action.quarantined:
        return
    if action.quarantined:
        after.append({"key": SHARING_TAINT, "value": "Quarantined", "effect": "NoSchedule"})
    # A merge patch replaces the whole list, so it must not overwrite a taint that somebody has added meanwhile.
    version = node["metadata"]["resourceVersion"]
    patch: Manifest = {"metadata": {"resourceVersion": version}, "spec": {"taints": after}}
    await cluster.merge(NODE, key, patch, fence)
