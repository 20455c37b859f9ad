"""Choose the pods that end first when an Inference scales down: those on the nodes that have most of its replicas.

Kubernetes ends pods that are not ready first, then those of the lowest deletion cost, then those on nodes with more pods of the
same ReplicaSet, counted once before all of them. So of four replicas on two nodes, it may end both of one node.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from tidegate.api.inference import Inference
from tidegate.api.meta import ObjectKey
from tidegate.planning.inference.deployments import DeploymentView
from tidegate.planning.pods import find_serving_time, is_ready
from tidegate.planning.pools.pool_slices import PoolSlices
from tidegate.resources.manifest import Manifest
from tidegate.resources.names import TEMPLATE_ANNOTATION

COST_ANNOTATION: Final = "controller.kubernetes.io/pod-deletion-cost"
FIRST_COST: Final = "-1"
"""Other pods have no cost, which counts as 0."""
_NEVER_READY: Final = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class PodCost:
    """Deletion cost to write to a pod; None removes it."""

    key: ObjectKey
    uid: str
    cost: str | None


@dataclass(frozen=True, slots=True)
class EndingCandidate:
    """Pod of the Inference that may end, as its object has it."""

    key: ObjectKey
    uid: str
    node: str
    template: str
    ready_since: datetime | None
    """None if it is not ready."""
    cost: str | None


def read_candidates(bodies: Iterable[Mapping[str, Any]]) -> Sequence[EndingCandidate]:
    """Read the pods of an Inference, without those that terminate or have ended."""
    return tuple(_read_candidate(body) for body in bodies if _is_active(body))


def find_lower_replicas(
    inference: Inference, deployments: Iterable[DeploymentView], objects: Iterable[Manifest]
) -> Mapping[str, int]:
    """Return the replicas of the Deployments among `objects` that have more now, by the label of their pool.

    There are none where the order of ends does not count: only real-time Inferences reserve for the loss of a node.
    """
    if not inference.spec.tier.traits.has_slo:
        return {}
    planned: dict[str, Any] = {
        str(manifest["metadata"]["name"]): manifest["spec"]  # type: ignore[index]  # of any JSON
        for manifest in objects
        if manifest["kind"] == "Deployment"
    }
    return {
        deployment.pool: planned[deployment.name]["replicas"]
        for deployment in deployments
        if deployment.name in planned and planned[deployment.name]["replicas"] < deployment.replicas
    }


def plan_deletion_costs(
    replicas: int, candidates: Sequence[EndingCandidate], slices: PoolSlices
) -> Sequence[PodCost]:
    """Return the costs to write before the Deployment is scaled down to `replicas`.

    There are none during a rollout, in which Kubernetes divides the pods between two ReplicaSets.
    """
    if len({pod.template for pod in candidates}) != 1:
        return ()
    fullness = {
        node.node: sum(node.used.values()) / node.healthy_slices
        for node in slices.nodes
        if node.healthy_slices
    }
    first = choose_first_to_end(candidates, len(candidates) - replicas, fullness)
    desired = {pod.key: FIRST_COST if pod.key in first else None for pod in candidates}
    return tuple(
        PodCost(pod.key, pod.uid, desired[pod.key])
        for pod in sorted(candidates, key=lambda pod: pod.key)
        # A cost that someone else has set is theirs.
        if pod.cost != desired[pod.key] and pod.cost in (None, FIRST_COST)
    )


def choose_first_to_end(
    candidates: Iterable[EndingCandidate], count: int, fullness: Mapping[str, float]
) -> frozenset[ObjectKey]:
    """Return the pods to end, of which `count` end; pods that are not ready end anyway, and are not among them.

    Pod by pod, it is one on the node with most replicas of the Inference, so that the others stay spread; of equal ones on the
    fullest node of the pool (`fullness`, the share of assigned slices; other nodes first), and there the pod that was ready last.
    """
    ready = [pod for pod in candidates if pod.ready_since is not None]
    count -= sum(pod.ready_since is None for pod in candidates)
    replicas = Counter(pod.node for pod in ready)
    chosen: set[ObjectKey] = set()
    for _ in range(min(count, len(ready))):
        pod = max(
            (pod for pod in ready if pod.key not in chosen),
            key=lambda pod: (
                replicas[pod.node],
                fullness.get(pod.node, float("inf")),
                pod.node,
                pod.ready_since or _NEVER_READY,
                pod.uid,
            ),
        )
        chosen.add(pod.key)
        replicas[pod.node] -= 1
    return frozenset(chosen)


def _is_active(body: Mapping[str, Any]) -> bool:
    phase = (body.get("status") or {}).get("phase")
    return "deletionTimestamp" not in body["metadata"] and phase not in ("Succeeded", "Failed")


def _read_candidate(body: Mapping[str, Any]) -> EndingCandidate:
    metadata = body["metadata"]
    annotations = metadata.get("annotations") or {}
    ready_since = (find_serving_time(body) or _NEVER_READY) if is_ready(body) else None
    return EndingCandidate(
        ObjectKey(metadata.get("namespace", ""), metadata["name"]),
        metadata["uid"],
        (body.get("spec") or {}).get("nodeName", ""),
        annotations.get(TEMPLATE_ANNOTATION, ""),
        ready_since,
        annotations.get(COST_ANNOTATION),
    )
