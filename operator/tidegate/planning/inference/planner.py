"""Plan an Inference: compute its objects, the orders for its agents, and its status from an observation."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from pydantic import ValidationError

from tidegate.api.inference import DynamicBatchingMode, Inference, InferenceStatus
from tidegate.api.quantities import parse_quantity
from tidegate.planning.batch.planner import plan_batch
from tidegate.planning.inference.compiled_graph import COMPILE_REQUEUE, find_comparison_pause, is_compiling
from tidegate.planning.inference.deployments import delete_stale, find_start_text
from tidegate.planning.inference.observed import InferenceObserved
from tidegate.planning.inference.pool_deployments import (
    DeploymentSet,
    PoolDeployment,
    match_deployments,
    plan_deployments,
)
from tidegate.planning.inference.serving_status import RUNNER_REQUEUE, judge_runners, runner_events
from tidegate.planning.inference.side_conditions import SIDE_REQUEUE
from tidegate.planning.inference.status import StatusInputs, build_status, list_events
from tidegate.planning.inference.stream_plan import plan_stream
from tidegate.planning.inference.swap_failures import ObservedReplica, RecordedFailure, VersionProgress
from tidegate.planning.inference.version_swap import (
    SwapHistory,
    SwapPlan,
    is_same_order,
    plan_swap,
    serves_target,
)
from tidegate.planning.plan import ReconcilePlan
from tidegate.planning.pods import PodView
from tidegate.planning.pools.overrides import END_MARGIN, find_next_end
from tidegate.resources.inference import (
    hash_source,
    make_desired_state,
    make_inference_workload,
)
from tidegate.resources.serving import build_config_map, build_disruption_budgets
from tidegate.resources.settings import ServingSettings
from tidegate_dataplane.contract import DesiredState, FailureReason, VersionFailure

_LOADING_REQUEUE: Final = timedelta(milliseconds=500)
"""Poll agents this often while they fetch or load. A pod that turns ready wakes the reconciler anyway."""
_UNREACHABLE_REQUEUE: Final = timedelta(seconds=3)
_FAILURE_REQUEUE: Final = timedelta(seconds=30)


def plan_inference(observed: InferenceObserved, settings: ServingSettings) -> ReconcilePlan:
    """Return the objects, orders and status that bring an Inference towards its spec."""
    inference = observed.inference
    if inference.spec.batch is not None:
        return plan_batch(observed, inference.spec.batch, settings)
    source, deployments = hash_source(inference), match_deployments(observed)
    text = find_start_text(observed.config_maps, source)
    memory = _read_history(inference, text)
    stream = plan_stream(inference, observed.features, settings.gateway, memory.committed)
    target = make_desired_state(
        inference, settings, epoch=observed.epoch, slices=observed.slice_resources
    ).model_copy(update={"stream": stream.order})
    replicas = _list_replicas(observed, deployments, source)
    swap = plan_swap(target, memory, replicas, observed.now)
    # Keep the stored text if only epoch and generation differ: these are there for tracing and change no behaviour.
    unchanged = (
        text is not None and memory.committed is not None and is_same_order(memory.committed, swap.committed)
    )
    start = text if unchanged and text is not None else swap.committed.to_json()
    workload = make_inference_workload(inference, start)
    plan = plan_deployments(observed, deployments, settings, start, swap)
    status = build_status(
        StatusInputs(observed, deployments, target, replicas, swap, plan.verdict, stream.refusal)
    )
    return ReconcilePlan(
        apply=(build_config_map(workload, settings), *plan.apply, *build_disruption_budgets(workload)),
        delete=(
            *delete_stale(observed.config_maps, observed.pods, source, plan.sources),
            *plan.delete,
        ),
        orders=swap.orders,
        status=status.dump(),
        events=(
            *list_events(inference.status, status),
            *runner_events(inference.status.conditions, status.conditions, judge_runners(replicas)),
        ),
        requeue_after=_limit_requeue(_compute_requeue(observed, target, swap, replicas), observed),
    )


def _list_replicas(
    observed: InferenceObserved, deployments: DeploymentSet, source: str
) -> tuple[ObservedReplica, ...]:
    """Return the pods of this source that agents answer for, in all pools."""
    by_pod = deployments.index_by_pod()
    return tuple(
        ObservedReplica(
            pod,
            observed.reports.get(pod.uid),
            memory_limit_outdated=_has_outdated_memory(pod, observed.inference, by_pod.get(pod.uid)),
        )
        for pod in observed.pods
        if pod.is_reachable and pod.source == source
    )


def _parse_desired_state(text: str | None) -> DesiredState | None:
    try:
        return DesiredState.model_validate_json(text) if text is not None else None
    except ValidationError:
        return None  # edited by hand; the next apply overwrites it


def _has_outdated_memory(pod: PodView, inference: Inference, deployment: PoolDeployment | None) -> bool:
    """Return whether the pod has another memory limit than the spec, so that a rollout is about to replace it.

    After a failed rollout the pod stays, and a version that does not fit into it stays a failure.
    """
    if deployment is None or deployment.template_unknown:
        return False
    if deployment.live is not None and deployment.live.failed_rollout is not None:
        return False
    resources = deployment.slice_resources or inference.spec.own_resources
    return bool(pod.memory_limit) and parse_quantity(pod.memory_limit) != parse_quantity(resources.memory)


def _read_history(inference: Inference, text: str | None) -> SwapHistory:
    """Return what the ConfigMap and the status record of earlier reconciles; invalid records count as absent."""
    status, serving = inference.status, inference.status.versions.serving
    current = status.observed_generation == inference.metadata.generation
    return SwapHistory(
        committed=_parse_desired_state(text),
        failure=_read_failure(inference) if current else None,
        progress=_read_progress(status) if current else None,
        serving=int(serving) if serving is not None and serving.isdigit() else None,
        tried_before=inference.spec.model.version
        in {record.version for record in (status.swap, status.failure) if record is not None},
    )


def _read_progress(status: InferenceStatus) -> VersionProgress | None:
    swap = status.swap
    if swap is None or not swap.version.isdigit():
        return None
    return VersionProgress(int(swap.version), swap.replicas, swap.fetching, swap.since, swap.started)


def _read_failure(inference: Inference) -> RecordedFailure | None:
    failure = inference.status.failure
    if failure is None or failure.time is None:
        return None
    if failure.reason not in set(FailureReason) or not failure.version.isdigit():
        return None
    version_failure = VersionFailure(
        version=int(failure.version), reason=FailureReason(failure.reason), message=failure.message
    )
    return RecordedFailure(version_failure, failure.time, failure.attempts)


def _get_poll_interval(
    inference: Inference, replicas: Sequence[ObservedReplica], now: datetime
) -> timedelta | None:
    """Return when to poll settled agents for changes that wake no reconcile."""
    if is_compiling(inference, replicas):
        return COMPILE_REQUEUE
    consumes = inference.spec.nearline is not None and replicas
    adapts = inference.spec.batching.mode is DynamicBatchingMode.ADAPTIVE
    if consumes or adapts or inference.spec.has_engine or inference.spec.logging is not None:
        return SIDE_REQUEUE
    return find_comparison_pause(inference, replicas, now)


def _limit_requeue(requeue_after: timedelta | None, observed: InferenceObserved) -> timedelta | None:
    """Return the earlier of `requeue_after` and the end of the next override."""
    ends = find_next_end(observed.overrides)
    if ends is None:
        return requeue_after
    until_end = max(ends - observed.now, timedelta()) + END_MARGIN
    return until_end if requeue_after is None else min(requeue_after, until_end)


def _compute_requeue(
    observed: InferenceObserved, target: DesiredState, swap: SwapPlan, replicas: Sequence[ObservedReplica]
) -> timedelta | None:
    if observed.refusal is not None:
        return _FAILURE_REQUEUE  # the object that holds the name or the quota does not wake us
    if swap.retry_after is not None:
        return max(swap.retry_after, timedelta(seconds=1))
    if judge_runners(replicas) is not None:
        return RUNNER_REQUEUE
    if swap.done or not replicas:
        return _get_poll_interval(observed.inference, replicas, observed.now)
    if swap.failure is not None and not swap.orders and not swap.retrying:
        return _FAILURE_REQUEUE
    working = any(replica.report is not None and not serves_target(replica, target) for replica in replicas)
    return _LOADING_REQUEUE if working else _UNREACHABLE_REQUEUE
