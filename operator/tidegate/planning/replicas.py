"""How many replicas an Inference is to have: the only place where that is said, whoever decided it."""

from tidegate.api.inference import Inference
from tidegate.planning.deployments import DeploymentView


def settled(inference: Inference, live: DeploymentView | None) -> Inference:
    """The Inference with the number of replicas that it is to have in `spec.replicas`.

    With a range that is what the allocator has decided; before it has decided, as many as run, within the range.
    """
    if inference.spec.scaling is None:
        return inference
    replicas = inference.decided_replicas
    if inference.status.allocation is None and live is not None:
        replicas = min(max(live.replicas, replicas), inference.spec.scaling.max_replicas)
    return inference.model_copy(update={"spec": inference.spec.model_copy(update={"replicas": replicas})})
