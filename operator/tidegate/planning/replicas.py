"""How many replicas an Inference is to have: the only place where that is said, whoever decided it."""

from tidegate.api.inference import Inference
from tidegate.planning.deployments import LiveWorkload
from tidegate.planning.shards_left import useful_pods


def settled(inference: Inference, live: LiveWorkload | None) -> Inference:
    """The Inference with the number of pods that it is to have in `spec.replicas`, warm spares among them.

    With a range that is what the allocator has decided; before it has decided, as many as run, within the range.
    A batch has no more than are of use, and none when it is complete.
    """
    useful = useful_pods(inference)
    if inference.spec.scaling is None and useful is None:
        return inference
    replicas = inference.decided_replicas
    if inference.spec.scaling is not None and inference.status.allocation is None and live is not None:
        replicas = min(max(live.replicas, replicas), inference.spec.scaling.max_replicas)
    replicas += inference.decided_spares
    replicas = replicas if useful is None else min(replicas, useful)
    return inference.model_copy(update={"spec": inference.spec.model_copy(update={"replicas": replicas})})


def in_service(inference: Inference, pods: int) -> int:
    """How many of so many pods are to get requests; the rest are warm spares."""
    return pods - min(inference.decided_spares, max(pods - inference.decided_replicas, 0))
