"""Which pods of an Inference get requests: all that can answer, or all but its warm spares."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final

from tidegate.api.inference import Inference
from tidegate.planning.pods import PodView

_LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)


def serving_pods(inference: Inference, pods: Iterable[PodView]) -> Sequence[PodView]:
    """The pods that are to get requests now, of those that can answer.

    Where there are to be warm spares, those serve that have been ready for longest, as many as were decided.
    So who serves goes on serving while it stays ready; a pod that fails is replaced by a spare as soon as that is seen, and
    is the last one in line when it comes back; a pod of a new template serves when one of the old ones is gone.
    Everybody who asks finds the same pods, since it depends on nothing but the objects.
    """
    able = [pod for pod in pods if pod.ready and pod.reachable]
    if not inference.decided_spares:
        return able
    return sorted(able, key=_age)[: inference.decided_replicas]


def _age(pod: PodView) -> tuple[datetime, str]:
    """Kubelets' clocks differ and say seconds: a spare may come before a pod that turned ready just before it, once."""
    return pod.ready_since or _LONG_AGO, pod.uid
