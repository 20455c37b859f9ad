"""Select the pods of an Inference that get requests: all that can answer, or all but its warm spares."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final

from tidegate.api.inference import Inference
from tidegate.planning.pods import PodView

_NEVER_READY: Final = datetime.min.replace(tzinfo=UTC)


def select_serving_pods(inference: Inference, pods: Iterable[PodView]) -> Sequence[PodView]:
    """Return the pods that get requests now, of those that can answer.

    With warm spares, these are the pods that have been ready for longest, as many as were decided.
    So a serving pod keeps serving while it stays ready; a spare replaces it as soon as it fails, and it is last in line when it
    recovers; a pod of a new template serves once an old one is gone.
    The result depends on the objects alone, so every process selects the same pods.
    """
    available = [pod for pod in pods if pod.ready and pod.is_reachable]
    if not inference.decided_spares:
        return available
    return sorted(available, key=_readiness_key)[: inference.decided_replicas]


def _readiness_key(pod: PodView) -> tuple[datetime, str]:
    """Return the sort key of a pod: the time since which it is ready, then its uid.

    Clocks of kubelets differ and report whole seconds: a spare may once come before a pod that turned ready just before it.
    """
    return pod.ready_since or _NEVER_READY, pod.uid
