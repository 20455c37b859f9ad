"""Build the status that all serving kinds share: how many replicas are ready, and what keeps the others."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from tidegate.api.conditions import (
    Condition,
    ConditionStatus,
    ConditionType,
    ObservedCondition,
    merge_conditions,
)
from tidegate.api.inference import Inference
from tidegate.api.reasons import Reason
from tidegate.planning.inference.node_resources import (
    NodeResources,
    find_insufficient_resources,
    format_shortages,
)
from tidegate.planning.inference.swap_failures import ObservedReplica
from tidegate.planning.plan import Event, EventType, ReconcilePlan
from tidegate.planning.pods import PodView

POD_FAILURE_REASONS: Final = frozenset(
    {
        Reason.NO_CAPACITY,
        Reason.UNSCHEDULABLE,
        Reason.POD_FAILING,
        Reason.IMAGE_PULL,
        Reason.OUT_OF_MEMORY,
    }
)
"""Reasons that keep a pod from running at all."""

RUNNER_REQUEUE: Final = timedelta(seconds=5)
"""An agent reports an exit for 15 s, and nothing wakes the reconciler when that time is over."""

SHRINK_OR_ADD_NODES: Final = "lower spec.resources or spec.replicas, or add nodes"
"""What the user can do if no node has enough free resources for a pod."""


def suggest_remedy(inference: Inference) -> str:
    """Return what the user can do if no node has enough free resources for a pod."""
    placement = inference.spec.placement
    if placement is None:
        return SHRINK_OR_ADD_NODES
    return f"lower spec.placement.slices or spec.replicas, or add nodes to ComputePool {placement.pool_names}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Statement about an object: whether it holds, why, and whether only the user can change that."""

    holds: bool
    reason: Reason
    message: str
    stalled: bool = False


@dataclass(frozen=True, slots=True)
class PlanRefusal:
    """Reason why a child cannot be applied as planned: the API server rejects it, or its name is taken."""

    reason: Reason
    message: str
    stalled: bool = True
    """Whether it stays so until the user, or another object, changes."""

    def to_verdict(self) -> Verdict:
        return Verdict(False, self.reason, self.message, stalled=self.stalled)


def judge_pods(
    pods: Sequence[PodView],
    required: int,
    template: str,
    selector: Mapping[str, str],
    freest_nodes: Sequence[NodeResources] = (),
    *,
    remedy: str = SHRINK_OR_ADD_NODES,
) -> Verdict:
    """Return whether `required` ready pods of this template exist; if not, the first problem that keeps them.

    `remedy` is what the user can do if no node has enough free resources.
    """
    if required == 0:
        return Verdict(True, Reason.SCALED_TO_ZERO, "spec.replicas is 0, nothing serves")
    alive = [pod for pod in pods if not pod.terminating]
    current = [pod for pod in alive if pod.template == template]
    ready = sum(pod.ready for pod in current)
    if ready >= required:
        return Verdict(True, Reason.ALL_REPLICAS_READY, f"{ready} of {required} replicas are ready")
    for pod in current:
        if pod.unschedulable:
            return _judge_unschedulable(pod, freest_nodes, remedy)
        if pod.problem:
            return Verdict(False, pod.problem.reason, f"pod {pod.key.name}: {pod.problem.message}")
    reason = Reason.ROLLING_OUT if len(current) < len(alive) else Reason.WAITING_FOR_REPLICAS
    label = ",".join(f"{name}={value}" for name, value in selector.items())
    return Verdict(False, reason, f"{ready} of {required} replicas are ready; see pods with label {label}")


def judge_compilers(pods: Iterable[PodView]) -> Verdict | None:
    """Return what keeps the compiler of graphs from running in the first pod that serves without it; None if there is none."""
    for pod in pods:
        if pod.compiler_problem is not None:
            problem = pod.compiler_problem
            return Verdict(False, problem.reason, f"pod {pod.key.name}: {problem.message}")
    return None


def _judge_unschedulable(pod: PodView, freest_nodes: Sequence[NodeResources], remedy: str) -> Verdict:
    """Return why no node takes the pod: too little of a resource is free, or another constraint."""
    resources = find_insufficient_resources(pod.unschedulable)
    cause = f"pod {pod.key.name}: {pod.unschedulable.rstrip('.')}"
    if not resources:
        return Verdict(False, Reason.UNSCHEDULABLE, cause)
    message = f"{cause}; {format_shortages(pod.requests, resources, freest_nodes)}; {remedy}"
    return Verdict(False, Reason.NO_CAPACITY, message)


def kstatus_conditions(verdict: Verdict, generation: int) -> tuple[Condition, ...]:
    """Return Ready, Reconciling and Stalled, as kstatus interprets them."""
    moving = not verdict.holds and not verdict.stalled
    return (
        make_condition(ConditionType.READY, verdict, generation),
        make_condition(
            ConditionType.RECONCILING,
            Verdict(
                moving, verdict.reason if moving else Reason.RECONCILED, verdict.message if moving else ""
            ),
            generation,
        ),
        make_condition(
            ConditionType.STALLED,
            Verdict(
                verdict.stalled,
                verdict.reason if verdict.stalled else Reason.RECONCILED,
                verdict.message if verdict.stalled else "",
            ),
            generation,
        ),
    )


def make_condition(kind: ConditionType, verdict: Verdict, generation: int) -> Condition:
    """Return a verdict as a condition of this type."""
    return Condition(
        kind, ConditionStatus.from_bool(verdict.holds), verdict.reason, verdict.message, generation
    )


def format_selector(selector: Mapping[str, str]) -> str:
    """Return a label selector in the form that the scale subresource needs."""
    return ",".join(f"{name}={value}" for name, value in sorted(selector.items()))


def judge_runners(
    replicas: Sequence[ObservedReplica], memory: str = "spec.resources.memory"
) -> Verdict | None:
    """Return the first exit that an agent reports; None if there was none lately.

    Kubernetes does not notice an exit: Triton is the container's process, and keeps running.
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


def plan_invalid_spec(body: Mapping[str, Any], message: str, now: datetime) -> ReconcilePlan:
    """Return a plan with Ready=False and Stalled=True for a spec that does not parse; what runs keeps running.

    `message` names the field; the rest of the status stays.
    """
    generation = body["metadata"].get("generation", 0)
    previous = body.get("status") or {}
    conditions = previous.get("conditions") or ()
    verdict = Verdict(False, Reason.INVALID_SPEC, message, stalled=True)
    status = {
        **previous,
        "observedGeneration": generation,
        "conditions": merge_conditions(conditions, kstatus_conditions(verdict, generation), now),
    }
    reported = any(item.get("type") == "Ready" and item.get("message") == message for item in conditions)
    events = () if reported else (Event(EventType.WARNING, Reason.INVALID_SPEC.value, message),)
    return ReconcilePlan(status=status, events=events)
