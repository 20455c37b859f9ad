"""Judge whether an Inference is ready: whether its model serves, and what explains that it does not."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tidegate.api.inference import Inference
from tidegate.api.reasons import Reason
from tidegate.planning.inference.observed import InferenceObserved
from tidegate.planning.inference.pool_deployments import DeploymentSet, is_up_to_date
from tidegate.planning.inference.serving_status import POD_FAILURE_REASONS, Verdict, judge_runners
from tidegate.planning.inference.swap_failures import ObservedReplica, is_retryable
from tidegate.planning.inference.version_swap import SwapPlan, is_same_order, serves_target
from tidegate_dataplane.contract import DesiredState, FailureReason

_FAILURE_REASONS: Final = frozenset(Reason(reason.value) for reason in FailureReason)
_POD_REASONS_FIRST: Final = POD_FAILURE_REASONS | {Reason.DRAINING}
"""Reasons of the pods that explain more than the reason of the model."""


def judge_model(
    inference: Inference,
    target: DesiredState,
    replicas: Sequence[ObservedReplica],
    swap: SwapPlan,
    serving: str | None,
) -> Verdict:
    """Return whether the target version serves on every replica, by the reports of the agents.

    `replicas` are those that count, see `_select_required`.
    """
    if swap.failure is not None:
        failure = swap.failure.failure
        suffix = f"; version {serving} keeps serving" if serving and serving != str(failure.version) else ""
        message = f"version {failure.version}: {failure.message}{suffix}"
        return Verdict(False, Reason(failure.reason.value), message, stalled=not is_retryable(failure.reason))
    if inference.spec.replicas == 0:
        return Verdict(False, Reason.SCALED_TO_ZERO, "spec.replicas is 0, no model is loaded")
    serving_count = sum(serves_target(replica, target) for replica in replicas)
    if swap.done or (0 < serving_count == len(replicas) and is_same_order(swap.committed, target)):
        return Verdict(True, Reason.MODEL_LOADED, f"version {target.version} serves on every replica")
    silent = [replica.pod.key.name for replica in replicas if replica.report is None and replica.pod.ready]
    if silent:
        return Verdict(
            False, Reason.AGENT_UNREACHABLE, f"the agent of pod {silent[0]} does not answer on port 8443"
        )
    message = f"version {target.version} serves on {serving_count} of {len(replicas)} replicas{_format_progress(replicas)}"
    swapping = swap.committed.version != target.version
    return Verdict(False, Reason.SWAPPING_VERSION if swapping else Reason.LOADING, message)


def _format_progress(replicas: Sequence[ObservedReplica]) -> str:
    """Return how far the slowest download is, in steps of ten percent so that the status changes rarely."""
    shares = [
        10 * (10 * report.bytes_done // report.bytes_total)
        for replica in replicas
        if (report := replica.report) is not None and report.bytes_total and report.bytes_done is not None
    ]
    return f", {min(shares)} % fetched" if shares else ""


@dataclass(frozen=True, slots=True)
class ReadyInputs:
    """What the sources of Ready judge by; `unplaced` is why the pool does not assign all slices."""

    observed: InferenceObserved
    model: Verdict
    pods: Verdict
    replicas: Sequence[ObservedReplica]
    unplaced: Verdict | None


def _judge_zero_slices(inputs: ReadyInputs) -> Verdict | None:
    return inputs.unplaced if inputs.observed.replicas == 0 else None


def _judge_zero_replicas(inputs: ReadyInputs) -> Verdict | None:
    return inputs.pods if inputs.pods.reason is Reason.SCALED_TO_ZERO else None


def _judge_rollback(inputs: ReadyInputs) -> Verdict | None:
    rolled_back = inputs.pods.reason is Reason.ROLLED_BACK and inputs.observed.refusal is None
    return inputs.pods if rolled_back else None


def _judge_failed_model(inputs: ReadyInputs) -> Verdict | None:
    return inputs.model if inputs.model.reason in _FAILURE_REASONS else None


def _judge_refusal(inputs: ReadyInputs) -> Verdict | None:
    refusal = inputs.observed.refusal
    return None if refusal is None else refusal.to_verdict()


def _judge_failing_pods(inputs: ReadyInputs) -> Verdict | None:
    pods = inputs.pods
    return pods if pods.reason in _POD_REASONS_FIRST or (not pods.holds and not inputs.replicas) else None


READY_SOURCES: Final[Sequence[Callable[[ReadyInputs], Verdict | None]]] = (
    _judge_zero_slices,
    _judge_zero_replicas,
    _judge_rollback,
    _judge_failed_model,
    _judge_refusal,
    lambda inputs: inputs.unplaced,
    _judge_failing_pods,
    lambda inputs: judge_runners(inputs.replicas),
    lambda inputs: None if inputs.model.holds else inputs.model,
    lambda inputs: None if inputs.pods.holds else inputs.pods,
)
"""What can explain Ready=False: the first source that has a verdict decides."""


def judge_readiness(inputs: ReadyInputs) -> Verdict:
    verdicts = (source(inputs) for source in READY_SOURCES)
    ready = Verdict(True, Reason.ALL_REPLICAS_READY, inputs.model.message)
    return next((verdict for verdict in verdicts if verdict is not None), ready)


def judge_placement(observed: InferenceObserved, deployments: DeploymentSet) -> Verdict | None:
    """Return why the pool does not assign all slices; None if it does, or if the pods have them from before."""
    placement = observed.placement
    if placement is None or placement.verdict.holds:
        return None
    inference = observed.inference
    pool_deleted = placement.verdict.reason is Reason.POOL_NOT_FOUND
    # Deleting a pool does not affect pods that run as the spec asks.
    return (
        None
        if pool_deleted
        and is_up_to_date(inference, deployments)
        and placement.replicas == inference.spec.replicas
        else placement.verdict
    )
