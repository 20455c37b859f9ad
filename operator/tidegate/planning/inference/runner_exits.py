"""Report in the status that a process that runs a model exited while it served, and is being restarted.

Kubernetes does not notice it: Triton is the container's process, and keeps running.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from tidegate.api.conditions import ConditionType, ObservedCondition
from tidegate.api.reasons import Reason
from tidegate.planning.inference.serving_status import Verdict
from tidegate.planning.inference.swap_failures import ObservedReplica
from tidegate.planning.plan import Event, EventType

RUNNER_REQUEUE: Final = timedelta(seconds=5)
"""An agent reports an exit for 15 s, and nothing wakes the reconciler when that time is over."""


def judge_runners(
    replicas: Sequence[ObservedReplica], memory: str = "spec.resources.memory"
) -> Verdict | None:
    """Return the first exit that an agent reports; None if there was none lately.

    `memory` is the field of the spec that bounds the runner's memory.
    """
    return next(
        (verdict for replica in replicas if (verdict := _judge_runner(replica, memory)) is not None), None
    )


def runner_events(
    previous: Sequence[ObservedCondition], current: Sequence[ObservedCondition], exit_verdict: Verdict | None
) -> tuple[Event, ...]:
    """Return one event when Ready begins to name an exit."""
    if (
        exit_verdict is None
        or _find_ready_message(current) != exit_verdict.message
        or _find_ready_message(previous) == exit_verdict.message
    ):
        return ()
    return (Event(EventType.WARNING, exit_verdict.reason.value, exit_verdict.message),)


def _find_ready_message(conditions: Sequence[ObservedCondition]) -> str | None:
    return next(
        (condition.message for condition in conditions if condition.type == ConditionType.READY.value), None
    )


def _judge_runner(replica: ObservedReplica, memory: str) -> Verdict | None:
    end = replica.report.ended if replica.report is not None else None
    if end is None:
        return None
    process = f"pod {replica.pod.key.name}: the process that runs version {end.version}"
    if end.killed_for_memory:
        limit = f"limit of {replica.pod.memory_limit}" if replica.pod.memory_limit else "limit"
        return Verdict(
            False,
            Reason.OUT_OF_MEMORY,
            f"{process} was killed at the container's memory {limit} while it served; "
            f"raise {memory}, or send smaller requests",
        )
    return Verdict(
        False,
        Reason.POD_FAILING,
        f"{process} ended while it served, and the model is loaded anew; "
        "the log of container triton may say why",
    )
