"""The claims of Inferences on pools, and the slices that they hold until the last of their pods is gone."""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from statistics import median
from typing import Any, Final

from tidegate.api.inference import ArtefactFormat, Inference, PoolShare, Tier
from tidegate.api.meta import ObjectKey
from tidegate.planning.inference.deployments import LiveWorkload
from tidegate.planning.pods import find_ready_time, is_ready
from tidegate.resources.names import POOL_LABEL, TIER_LABEL, parse_slices, to_label_value

MAX_REPLICA_TIME_S: Final = 900.0
"""A longer load or drain time is not counted: it contains something else, like a time without a leader."""
_ENDED: Final = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True, slots=True)
class AssignedPod:
    """A pod of ours that has a node, and slices of a pool there."""

    pool: str
    """The pool, as a label has it."""
    node: str
    slices: int
    tier: str
    ready: bool = False
    """Whether it is ready, and not terminating."""
    load_s: float | None = None
    """Seconds from its creation until it was ready; None before, and once a container has been restarted."""


@dataclass(frozen=True, slots=True)
class NodeShare:
    """Slices of one node that an Inference's pods have."""

    ready: int = 0
    not_ready: int = 0
    """Slices of pods that start, fail or terminate."""

    @property
    def slices(self) -> int:
        """Return the slices of all pods."""
        return self.ready + self.not_ready


@dataclass(frozen=True, slots=True)
class PoolClaim:
    """What one Inference asks of a pool, and what it has there."""

    key: ObjectKey
    tier: Tier
    slices: int
    """Slices of each replica."""
    replicas: int
    """Pods that it asks for; none if it asks for another pool, or is being deleted."""
    assigned: int
    """Slices of its Deployment in this pool."""
    created: str
    """Creation time, in a form that sorts."""
    model: ArtefactFormat = ArtefactFormat.ONNX
    scaled: bool = False
    """Whether the allocator decided `replicas`, within a range."""
    pods: Mapping[str, int] = field(default_factory=dict[str, int])
    """Slices of its pods by node, if they are more than `assigned` because some pods are terminating."""
    spares: int = 0
    """How many of `replicas` are warm spares, which may be missing."""
    assumed: int = 0
    """Slices that it has been given just now, while its Deployment is being written."""
    ready: int = 0
    """Its pods in this pool that are ready."""
    nodes: Mapping[str, NodeShare] = field(default_factory=dict[str, NodeShare])
    """Slices that its pods have in this pool, by node."""
    load_s: float | None = None
    """Seconds that its present pods in this pool took to load, in the median; None if none shows it."""
    spilled: int = 0
    """How many of `replicas` a pool that comes before in the Inference's list is to make room for."""
    relative_capacity: float = 1.0
    """Capacity of a replica here, as a multiple of the Inference's."""
    demand_share: float = 1.0
    """Share of the requests that its replicas here answer."""

    @property
    def kept_replicas(self) -> int:
        """Replicas that it keeps."""
        return min(self.replicas, self.assigned // self.slices)

    @property
    def all_slices(self) -> int:
        """Slices that it has, whatever it asks for now."""
        return max(self.assigned, sum(self.pods.values()), self.assumed)

    def count_slices(self, replicas: int, nodes: Container[str]) -> int:
        """Return the slices that it has with this many replicas; pods outside `nodes` do not count."""
        of_pods = sum(slices for node, slices in self.pods.items() if node in nodes)
        return max(replicas * self.slices, self.assigned, of_pods, self.assumed)


def read_assigned_pod(body: Mapping[str, Any]) -> AssignedPod | None:
    """Read a pod of ours, whose labels can be trusted; None if it has no node, has ended, or has no slices."""
    labels, spec = body["metadata"].get("labels") or {}, body.get("spec") or {}
    slices = parse_slices(labels)
    ended = (body.get("status") or {}).get("phase") in _ENDED
    if ended or not spec.get("nodeName") or not slices or POOL_LABEL not in labels:
        return None
    ready = "deletionTimestamp" not in body["metadata"] and is_ready(body)
    return AssignedPod(
        labels[POOL_LABEL],
        spec["nodeName"],
        slices,
        labels.get(TIER_LABEL, ""),
        ready=ready,
        load_s=_measure_load(body) if ready else None,
    )


def _measure_load(body: Mapping[str, Any]) -> float | None:
    """Return the seconds from a ready pod's creation until it was ready.

    A pod whose readiness was lost for a while looks as if it had loaded ever since.
    """
    ready_since, created = find_ready_time(body), body["metadata"].get("creationTimestamp")
    statuses = (body.get("status") or {}).get("containerStatuses") or ()
    if ready_since is None or not created or any(item.get("restartCount") for item in statuses):
        return None
    seconds = (ready_since - datetime.fromisoformat(created)).total_seconds()
    return seconds if 0 <= seconds <= MAX_REPLICA_TIME_S else None


def find_median_load(pods: Iterable[AssignedPod]) -> float | None:
    """Return the median of the load times of pods, in seconds; None if none shows one."""
    measured = [pod.load_s for pod in pods if pod.load_s is not None]
    return median(measured) if measured else None


def make_claim(
    inference: Inference,
    share: PoolShare,
    live: LiveWorkload | None,
    pods: Sequence[AssignedPod] = (),
    assumed: int = 0,
    *,
    replicas: int | None = None,
) -> PoolClaim:
    """Make the claim of an Inference on one pool; `pods` are its pods in every pool.

    `replicas` is what it asks for here; by default, what its spec asks for.
    """
    pool = to_label_value(share.name)
    desired = inference.spec.replicas if replicas is None else replicas
    created, nodes = inference.metadata.creation_timestamp, _sum_by_node(pool, pods)
    # Anyone may edit a Deployment, until we write it again: so count what it has beyond the spec only if pods have it.
    live_slices = live.replicas * live.slices if live is not None and live.pool == pool else 0
    assigned = min(live_slices, desired * share.slices)
    return PoolClaim(
        key=inference.key,
        tier=inference.spec.tier,
        slices=share.slices,
        replicas=desired,
        assigned=assigned,
        created=created.isoformat() if created is not None else "",
        model=inference.spec.model.format,
        scaled=inference.spec.scaling is not None,
        pods=_find_pods_beyond(assigned, nodes),
        spares=inference.decided_spares,
        assumed=assumed,
        ready=sum(pod.ready for pod in pods if pod.pool == pool),
        nodes=nodes,
        load_s=find_median_load(pod for pod in pods if pod.pool == pool),
        relative_capacity=share.relative_capacity,
    )


def make_remaining_claims(
    key: ObjectKey,
    workloads: Iterable[LiveWorkload],
    pods: Sequence[AssignedPod],
    desired_pools: Container[str] = (),
    replicas: int = 0,
) -> Mapping[str, PoolClaim]:
    """Make the claims, by pool, of an Inference where it has slices and asks for none.

    It was deleted, or names `desired_pools` now, for `replicas` in all: until its pods are gone, no other Inference can have
    their slices.
    """
    tiers = {pod.pool: pod.tier for pod in pods}
    live_pools = {workload.pool: workload for workload in workloads if workload.pool}
    tiers |= {pool: workload.tier for pool, workload in live_pools.items()}
    claims: dict[str, PoolClaim] = {}
    for pool, label in tiers.items():
        if pool not in desired_pools:
            tier = next((tier for tier in Tier if tier.value == label), Tier.REALTIME)
            nodes = _sum_by_node(pool, pods)
            # Anyone may scale a Deployment: what it has beyond the spec counts only if pods have it.
            live = live_pools.get(pool)
            assigned = min(live.replicas, replicas) * live.slices if live is not None else 0
            claims[pool] = PoolClaim(key, tier, 1, 0, assigned, "", pods=_find_pods_beyond(assigned, nodes))
    return claims


def _sum_by_node(pool: str, pods: Iterable[AssignedPod]) -> Mapping[str, NodeShare]:
    nodes: dict[str, NodeShare] = {}
    for pod in pods:
        if pod.pool == pool:
            before = nodes.get(pod.node, NodeShare())
            ready, not_ready = (pod.slices, 0) if pod.ready else (0, pod.slices)
            nodes[pod.node] = NodeShare(before.ready + ready, before.not_ready + not_ready)
    return nodes


def _find_pods_beyond(assigned: int, nodes: Mapping[str, NodeShare]) -> Mapping[str, int]:
    """Return the slices of pods by node, if they are more than those of the Deployment."""
    slices = {node: share.slices for node, share in nodes.items()}
    return slices if sum(slices.values()) > assigned else {}
