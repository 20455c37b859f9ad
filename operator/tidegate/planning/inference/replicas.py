"""Resolve the desired number of replicas of an Inference; no other module does."""

from tidegate.api.inference import Inference
from tidegate.planning.batch.remaining_shards import count_useful_pods
from tidegate.planning.inference.deployments import LiveWorkload


def resolve_replicas(inference: Inference, live: LiveWorkload | None) -> Inference:
    """Return the Inference with its desired number of pods in `spec.replicas`, warm spares included.

    With a range it is what the allocator has decided; before its first decision, the running number, within the range.
    A batch gets no more than it has work for, and none when it is complete.
    """
    useful = count_useful_pods(inference)
    if inference.spec.scaling is None and useful is None:
        return inference
    replicas = inference.decided_replicas
    if inference.spec.scaling is not None and inference.status.allocation is None and live is not None:
        replicas = min(max(live.replicas, replicas), inference.spec.scaling.max_replicas)
    replicas += inference.decided_spares
    replicas = replicas if useful is None else min(replicas, useful)
    return inference.model_copy(update={"spec": inference.spec.model_copy(update={"replicas": replicas})})


def count_serving_pods(inference: Inference, pods: int) -> int:
    """Return how many of `pods` pods get requests; the others are warm spares."""
    return pods - min(inference.decided_spares, max(pods - inference.decided_replicas, 0))
