"""Resolve the desired number of replicas of an Inference, and select the pods that get requests; no other module does."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import Final

from tidegate.api.inference import Inference
from tidegate.planning.batch.remaining_shards import count_useful_pods
from tidegate.planning.pods import PodView
from tidegate.resources.names import to_label_value

_NEVER_READY: Final = datetime.min.replace(tzinfo=UTC)


def resolve_replicas(inference: Inference, running: int | None) -> Inference:
    """Return the Inference with its desired number of pods in `spec.replicas`, warm spares included.

    With spec.scaling it is the number that the allocator has decided; before its first decision, `running`, within the range.
    A batch gets no more pods than shards left, and none when it is complete.
    """
    useful = count_useful_pods(inference)
    if inference.spec.scaling is None and useful is None:
        return inference
    replicas = inference.decided_replicas
    if inference.spec.scaling is not None and inference.status.allocation is None and running is not None:
        replicas = min(max(running, replicas), inference.spec.scaling.max_replicas)
    replicas += inference.decided_spares
    replicas = replicas if useful is None else min(replicas, useful)
    return with_replicas(inference, replicas)


def with_replicas(inference: Inference, replicas: int) -> Inference:
    """Return the Inference with another number in `spec.replicas`."""
    return inference.model_copy(update={"spec": inference.spec.model_copy(update={"replicas": replicas})})


def count_serving_pods(inference: Inference, pods: int) -> int:
    """Return how many of `pods` pods get requests; the others are warm spares."""
    return pods - min(inference.decided_spares, max(pods - inference.decided_replicas, 0))


def select_serving_pods(inference: Inference, pods: Iterable[PodView]) -> Sequence[PodView]:
    """Return the ready and reachable pods that get requests now.

    With warm spares, these are the pods that have been ready for longest, as many as the allocator decided.
    So a serving pod keeps serving while it stays ready; a spare replaces it as soon as it fails, and it is last in line when it
    recovers, with a compiler of graphs when a container has restarted; a pod of a new template serves once an old one is gone.
    The result depends on the objects alone, so every process selects the same pods.
    """
    available = [pod for pod in pods if pod.ready and pod.is_reachable]
    if not inference.decided_spares:
        return available
    ordered = sorted(available, key=_readiness_key)
    if not inference.allocated_pools:
        return ordered[: inference.decided_replicas]
    # Replicas of different pools have different capacities, so each pool has spares of its own.
    decided = {to_label_value(name): pool for name, pool in inference.allocated_pools.items()}
    serving: list[PodView] = []
    for pool, in_pool in groupby(sorted(ordered, key=lambda pod: pod.pool), key=lambda pod: pod.pool):
        share = decided.get(pool)
        serving += list(in_pool)[: share.replicas if share is not None and share.spares else None]
    return serving


def _readiness_key(pod: PodView) -> tuple[datetime, str]:
    """Return the sort key of a pod: the time since which it is ready, then its uid.

    Clocks of kubelets differ and report whole seconds: a spare may come before a pod that became ready just before it.
    """
    return pod.ready_since or _NEVER_READY, pod.uid
