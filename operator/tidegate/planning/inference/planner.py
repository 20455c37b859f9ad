"""Plan an Inference: compute its objects, the orders for its agents, and its status from an observation."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from pydantic import ValidationError

from tidegate.api.compute_override import ComputeOverride
from tidegate.api.conditions import ConditionType, ObservedCondition, merge_conditions
from tidegate.api.feature_compute import FeatureCompute
from tidegate.api.inference import (
    DynamicBatchingMode,
    FailureStatus,
    Inference,
    InferenceStatus,
    ModelVersions,
    ServedModel,
    SwapProgress,
    TensorMetadata,
    VersionMemoryStatus,
)
from tidegate.api.quantities import parse_quantity
from tidegate.api.reasons import Reason
from tidegate.planning.batch.jobs import JobView
from tidegate.planning.batch.kueue import KueueState
from tidegate.planning.batch.planner import plan_batch
from tidegate.planning.inference.compiled_graph import COMPILE_REQUEUE, describe_graph, is_compiling
from tidegate.planning.inference.deployments import (
    DeploymentView,
    delete_stale,
    find_start_text,
    get_template_source,
)
from tidegate.planning.inference.node_resources import NodeResources
from tidegate.planning.inference.replicas import count_serving_pods, select_serving_pods
from tidegate.planning.inference.rollout import (
    RolloutAttempt,
    RolloutPlan,
    find_rolled_back,
    hash_attempt,
    judge_rollout,
    keep_template,
    plan_rollout,
)
from tidegate.planning.inference.serving_status import (
    POD_FAILURE_REASONS,
    RUNNER_REQUEUE,
    PlanRefusal,
    Verdict,
    format_selector,
    judge_pods,
    judge_runners,
    kstatus_conditions,
    make_condition,
    runner_events,
    suggest_remedy,
)
from tidegate.planning.inference.side_conditions import (
    SIDE_REQUEUE,
    SideInputs,
    drop_side_conditions,
    make_side_conditions,
    make_side_events,
)
from tidegate.planning.inference.stream_plan import StreamPlan, plan_stream
from tidegate.planning.inference.swap_failures import (
    ObservedReplica,
    RecordedFailure,
    VersionProgress,
    is_retryable,
)
from tidegate.planning.inference.version_swap import (
    SwapHistory,
    SwapPlan,
    is_same_order,
    plan_swap,
    serves_target,
)
from tidegate.planning.plan import Event, EventType, ReconcilePlan
from tidegate.planning.pods import PodView
from tidegate.planning.pools.overrides import (
    END_MARGIN,
    find_next_end,
)
from tidegate.planning.pools.placement import PlacementResult
from tidegate.resources.inference import (
    build_inference_objects,
    hash_source,
    make_desired_state,
    make_inference_selector,
)
from tidegate.resources.manifest import Manifest
from tidegate.resources.serving import find_deployment, find_template_hash
from tidegate.resources.settings import ServingSettings
from tidegate.resources.slices import SliceResources
from tidegate_dataplane.contract import AgentReport, DesiredState, FailureReason, VersionFailure

_LOADING_REQUEUE: Final = timedelta(milliseconds=500)
"""Poll agents this often while they fetch or load. A pod that turns ready wakes the reconciler anyway."""
_UNREACHABLE_REQUEUE: Final = timedelta(seconds=3)
_FAILURE_REQUEUE: Final = timedelta(seconds=30)
_FAILURE_REASONS: Final = frozenset(Reason(reason.value) for reason in FailureReason)
_POD_REASONS_FIRST: Final = POD_FAILURE_REASONS | {Reason.DRAINING}
"""Reasons of the pods that explain more than the reason of the model."""


@dataclass(frozen=True, slots=True)
class InferenceObserved:
    """Inputs of `plan_inference`."""

    inference: Inference
    now: datetime
    epoch: int
    pods: Sequence[PodView] = ()
    reports: Mapping[str, AgentReport] = field(default_factory=dict[str, AgentReport])
    """Reports of agents by pod uid; a pod whose agent did not answer is absent."""
    config_maps: Sequence[Mapping[str, Any]] = ()
    """Our ConfigMaps of this Inference, of all sources."""
    deployment: DeploymentView | None = None
    """Our live Deployment; None before it exists."""
    refusal: PlanRefusal | None = None
    """Why a child cannot be applied as planned: a quota, an admission policy, a name that is taken."""
    freest_nodes: Sequence[NodeResources] = ()
    """The nodes with the most free of a resource that an unschedulable pod lacks."""
    placement: PlacementResult | None = None
    """What the pool assigns to it; None if the spec names no pool."""
    overrides: Sequence[ComputeOverride] = ()
    """ComputeOverrides of it that are in force."""
    jobs: Sequence[JobView] = ()
    """Our Jobs of this Inference, earlier runs included."""
    kueue: KueueState | None = None
    """What Kueue reports about the Jobs; None if the spec names no queue."""
    features: FeatureCompute | None = None
    """The FeatureCompute that the batch or the stream names; None if it names none, or none that it may use."""

    @property
    def slice_resources(self) -> SliceResources | None:
        """Return the resources of each pod as its pool defines them; None without a pool."""
        return self.placement.resources if self.placement is not None else None

    @property
    def template_unknown(self) -> bool:
        """Return whether the pod template is unknown, because the pool cannot tell the resources of a slice.

        The pods that run then stay as they are.
        """
        return self.placement is not None and self.placement.resources is None

    @property
    def replicas(self) -> int:
        """Return the desired number of pods, warm spares included."""
        return self.placement.replicas if self.placement is not None else self.inference.spec.replicas

    @property
    def required_pods(self) -> int:
        """Return how many pods must be ready for Ready=True.

        A missing warm spare does not matter, but a rollout is only complete when the spares are replaced too.
        """
        alive = {pod.template for pod in self.pods if not pod.terminating}
        return self.replicas if len(alive) > 1 else count_serving_pods(self.inference, self.replicas)


def plan_inference(observed: InferenceObserved, settings: ServingSettings) -> ReconcilePlan:
    """Return the objects, orders and status that bring an Inference towards its spec."""
    inference = observed.inference
    if inference.spec.batch is not None:
        return plan_batch(observed, inference.spec.batch, settings)
    source = hash_source(inference)
    stream = plan_stream(inference, observed.features, settings.gateway)
    target = make_desired_state(
        inference, settings, epoch=observed.epoch, slices=observed.slice_resources
    ).model_copy(update={"stream": stream.order})
    replicas = tuple(
        ObservedReplica(
            pod, observed.reports.get(pod.uid), memory_limit_outdated=_has_outdated_memory(pod, observed)
        )
        for pod in observed.pods
        if pod.is_reachable and pod.source == source
    )
    text = find_start_text(observed.config_maps, source)
    memory = _read_history(inference, text)
    swap = plan_swap(target, memory, replicas, observed.now)
    # Keep the stored text if only epoch and generation differ: these are there for tracing and change no behaviour.
    unchanged = (
        text is not None and memory.committed is not None and is_same_order(memory.committed, swap.committed)
    )
    start = text if unchanged and text is not None else swap.committed.to_json()
    objects = build_inference_objects(inference, settings, start, observed.slice_resources, observed.replicas)
    rollout = _plan_deployment(observed, objects, swap)
    pods = judge_rollout(inference, observed.pods, rollout, _judge_pods(observed, rollout.template))
    status = _build_status(observed, target, replicas, swap, pods, stream)
    return ReconcilePlan(
        apply=_select_manifests(objects, rollout),
        delete=delete_stale(observed.config_maps, observed.pods, source, rollout.sources),
        orders=swap.orders,
        status=status.dump(),
        events=(
            *_list_events(inference.status, status),
            *runner_events(inference.status.conditions, status.conditions, judge_runners(replicas)),
        ),
        requeue_after=_limit_requeue(_compute_requeue(observed, target, swap, replicas), observed),
    )


def _select_manifests(objects: Sequence[Manifest], rollout: RolloutPlan) -> tuple[Manifest, ...]:
    other_manifests = tuple(manifest for manifest in objects if manifest["kind"] != "Deployment")
    if rollout.deployment is None:
        return other_manifests
    return tuple(rollout.deployment if manifest["kind"] == "Deployment" else manifest for manifest in objects)


def _judge_pods(observed: InferenceObserved, template: str) -> Verdict:
    inference = observed.inference
    selector = make_inference_selector(inference)
    return judge_pods(
        observed.pods,
        observed.required_pods,
        template,
        selector,
        observed.freest_nodes,
        remedy=suggest_remedy(inference),
    )


def _plan_deployment(observed: InferenceObserved, objects: Sequence[Manifest], swap: SwapPlan) -> RolloutPlan:
    """Return the Deployment to apply; a failed rollout is explained by the model's failure, else by the pods."""
    inference = observed.inference
    desired = find_deployment(objects)
    if observed.template_unknown:
        return keep_template(observed.deployment, desired, observed.replicas)
    if swap.failure is not None:
        failure = swap.failure.failure
        problem = Verdict(
            False, Reason(failure.reason.value), f"version {failure.version}: {failure.message}"
        )
    else:
        problem = _judge_pods(observed, find_template_hash(objects))
    attempt = RolloutAttempt(hash_attempt(inference), inference.metadata.generation, problem)
    return plan_rollout(observed.deployment, desired, attempt)


def _parse_desired_state(text: str | None) -> DesiredState | None:
    try:
        return DesiredState.model_validate_json(text) if text is not None else None
    except ValidationError:
        return None  # edited by hand; the next apply overwrites it


def _has_outdated_memory(pod: PodView, observed: InferenceObserved) -> bool:
    """Return whether the pod has another memory limit than the spec, so that a rollout is about to replace it.

    After a failed rollout the pod stays, and a version that does not fit into it stays a failure.
    """
    if observed.deployment is not None and observed.deployment.failed_rollout is not None:
        return False
    if observed.template_unknown:
        return False
    resources = observed.slice_resources or observed.inference.spec.own_resources
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
    )


def _read_progress(status: InferenceStatus) -> VersionProgress | None:
    swap = status.swap
    if swap is None or not swap.version.isdigit():
        return None
    return VersionProgress(int(swap.version), swap.replicas, swap.fetching, swap.since)


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


def _build_status(
    observed: InferenceObserved,
    target: DesiredState,
    replicas: Sequence[ObservedReplica],
    swap: SwapPlan,
    pods: Verdict,
    stream: StreamPlan,
) -> InferenceStatus:
    inference = observed.inference
    generation = inference.metadata.generation
    serving = _find_serving_version(observed, replicas, swap)
    model = _judge_model(inference, target, _select_required(observed, target, replicas), swap, serving)
    side_inputs = SideInputs(
        inference, observed.placement, observed.overrides, pods, observed.replicas, replicas, stream.refusal
    )
    ready_inputs = _ReadyInputs(observed, model, pods, replicas, _judge_placement(observed))
    conditions = (
        *kstatus_conditions(_judge_readiness(ready_inputs), generation),
        make_condition(ConditionType.MODEL_LOADED, model, generation),
        *make_side_conditions(side_inputs),
    )
    previous = drop_side_conditions(side_inputs, inference.status.conditions)
    merged = merge_conditions(previous, conditions, observed.now)
    alive = [pod for pod in observed.pods if not pod.terminating]
    return InferenceStatus(
        observed_generation=generation,
        replicas=len(alive),
        ready_replicas=sum(pod.ready for pod in alive),
        spare_replicas=_count_spares(observed),
        selector=format_selector(make_inference_selector(inference)),
        versions=ModelVersions(
            serving=serving,
            loaded=_list_loaded_versions(replicas),
            memory=_list_version_memory(replicas),
            target=str(target.version),
        ),
        model=_describe_model(inference, target, replicas),
        graph=describe_graph(inference, replicas),
        failure=_to_failure_status(swap),
        swap=_to_progress_status(swap),
        conditions=tuple(ObservedCondition.model_validate(item) for item in merged),
    )


def _count_spares(observed: InferenceObserved) -> int | None:
    """Return how many pods can answer and get no requests; None if no spares were decided."""
    if not observed.inference.decided_spares:
        return None
    available = sum(pod.ready and pod.is_reachable for pod in observed.pods)
    return available - len(select_serving_pods(observed.inference, observed.pods))


def _select_required(
    observed: InferenceObserved, target: DesiredState, replicas: Sequence[ObservedReplica]
) -> Sequence[ObservedReplica]:
    """Return the replicas that count for ModelLoaded: without starting spares once all required replicas serve."""
    if not observed.inference.decided_spares:
        return replicas
    running = [replica for replica in replicas if replica.pod.ready or serves_target(replica, target)]
    return running if len(running) >= observed.required_pods else replicas


def _to_failure_status(swap: SwapPlan) -> FailureStatus | None:
    if swap.failure is None:
        return None
    failure = swap.failure.failure
    time = swap.failure.time.replace(microsecond=0)
    return FailureStatus(
        version=str(failure.version),
        reason=failure.reason.value,
        message=failure.message,
        time=time,
        attempts=swap.failure.attempts,
    )


def _to_progress_status(swap: SwapPlan) -> SwapProgress | None:
    progress = swap.progress
    if progress is None:
        return None
    return SwapProgress(
        version=str(progress.version),
        replicas=progress.serving,
        fetching=progress.fetching,
        since=progress.since.replace(microsecond=0),
    )


def _find_serving_version(
    observed: InferenceObserved, replicas: Sequence[ObservedReplica], swap: SwapPlan
) -> str | None:
    """Return the version that answers: during a swap the committed one, until every replica has left it."""
    versions = {
        replica.report.serving
        for replica in replicas
        if replica.report is not None and replica.report.serving is not None
    }
    if versions:
        return str(swap.committed.version if swap.committed.version in versions else max(versions))
    silent = any(replica.report is None for replica in replicas)
    replica_uids = {replica.pod.uid for replica in replicas}
    predecessors = any(
        pod.ready and not pod.terminating for pod in observed.pods if pod.uid not in replica_uids
    )
    # No report names a serving version: the last status is the best information.
    return observed.inference.status.versions.serving if silent or predecessors else None


def _list_loaded_versions(replicas: Sequence[ObservedReplica]) -> tuple[str, ...]:
    """Return the versions that every serving replica has loaded.

    A pod that still starts has none and is left out, so that it removes no version from the list.
    """
    reports = [replica.report for replica in replicas if replica.report is not None]
    loaded = [set(report.loaded) for report in reports if report.serving is not None]
    return tuple(str(version) for version in sorted(set.intersection(*loaded))) if loaded else ()


def _list_version_memory(replicas: Sequence[ObservedReplica]) -> tuple[VersionMemoryStatus, ...]:
    """Return the most memory that each version takes on any replica, rounded so that status changes rarely."""
    largest: dict[int, int] = {}
    for replica in replicas:
        for usage in replica.report.memory if replica.report is not None else ():
            largest[usage.version] = max(largest.get(usage.version, 0), usage.bytes)
    return tuple(
        VersionMemoryStatus(version=str(version), bytes=_round_up(bytes_used))
        for version, bytes_used in sorted(largest.items())
    )


def _round_up(count: int) -> int:
    """Round up to the next number with four significant binary digits: by an eighth at most."""
    step = 1 << max(count.bit_length() - 4, 0)
    return -(-count // step) * step


def _describe_model(
    inference: Inference, target: DesiredState, replicas: Sequence[ObservedReplica]
) -> ServedModel | None:
    for replica in replicas:
        if replica.report is not None and replica.report.serving == target.version:
            inputs, outputs = (
                tuple(TensorMetadata.model_validate(spec.model_dump()) for spec in specs)
                for specs in (replica.report.inputs, replica.report.outputs)
            )
            return ServedModel(name=inference.served_name, inputs=inputs, outputs=outputs)
    return inference.status.model


def _judge_model(
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
class _ReadyInputs:
    """What the sources of Ready judge by; `unplaced` is why the pool does not assign all slices."""

    observed: InferenceObserved
    model: Verdict
    pods: Verdict
    replicas: Sequence[ObservedReplica]
    unplaced: Verdict | None


def _judge_zero_slices(inputs: _ReadyInputs) -> Verdict | None:
    return inputs.unplaced if inputs.observed.replicas == 0 else None


def _judge_zero_replicas(inputs: _ReadyInputs) -> Verdict | None:
    return inputs.pods if inputs.pods.reason is Reason.SCALED_TO_ZERO else None


def _judge_rollback(inputs: _ReadyInputs) -> Verdict | None:
    rolled_back = inputs.pods.reason is Reason.ROLLED_BACK and inputs.observed.refusal is None
    return inputs.pods if rolled_back else None


def _judge_failed_model(inputs: _ReadyInputs) -> Verdict | None:
    return inputs.model if inputs.model.reason in _FAILURE_REASONS else None


def _judge_refusal(inputs: _ReadyInputs) -> Verdict | None:
    refusal = inputs.observed.refusal
    return None if refusal is None else refusal.to_verdict()


def _judge_failing_pods(inputs: _ReadyInputs) -> Verdict | None:
    pods = inputs.pods
    return pods if pods.reason in _POD_REASONS_FIRST or (not pods.holds and not inputs.replicas) else None


READY_SOURCES: Final[Sequence[Callable[[_ReadyInputs], Verdict | None]]] = (
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


def _judge_readiness(inputs: _ReadyInputs) -> Verdict:
    verdicts = (source(inputs) for source in READY_SOURCES)
    ready = Verdict(True, Reason.ALL_REPLICAS_READY, inputs.model.message)
    return next((verdict for verdict in verdicts if verdict is not None), ready)


def _judge_placement(observed: InferenceObserved) -> Verdict | None:
    """Return why the pool does not assign all slices; None if it does, or if the pods have them from before."""
    placement, live = observed.placement, observed.deployment
    if placement is None or placement.verdict.holds:
        return None
    inference = observed.inference
    up_to_date = live is not None and get_template_source(live.template) == hash_source(inference)
    pool_deleted = placement.verdict.reason is Reason.POOL_NOT_FOUND
    # Deleting a pool does not affect pods that run as the spec asks.
    return (
        None
        if pool_deleted and up_to_date and placement.replicas == inference.spec.replicas
        else placement.verdict
    )


def _list_events(previous: InferenceStatus, current: InferenceStatus) -> tuple[Event, ...]:
    events: list[Event] = []
    failure, previous_failure = current.failure, previous.failure
    if failure is not None and (
        previous_failure is None
        or (failure.version, failure.message) != (previous_failure.version, previous_failure.message)
    ):
        events.append(
            Event(EventType.WARNING, failure.reason, f"Version {failure.version}: {failure.message}")
        )
    rolled_back_condition = find_rolled_back(current.conditions)
    if rolled_back_condition is not None and find_rolled_back(previous.conditions) is None:
        events.append(Event(EventType.WARNING, rolled_back_condition.reason, rolled_back_condition.message))
    events += make_side_events(previous.conditions, current.conditions)
    serving = current.versions.serving
    if serving is not None and serving != previous.versions.serving:
        events.append(Event(EventType.NORMAL, "VersionServing", f"Version {serving} serves"))
    return tuple(events)


def _get_poll_interval(inference: Inference, replicas: Sequence[ObservedReplica]) -> timedelta | None:
    """Return when to poll settled agents for changes that wake no reconcile."""
    if is_compiling(inference, replicas):
        return COMPILE_REQUEUE
    consumes = inference.spec.nearline is not None and replicas
    adapts = inference.spec.batching.mode is DynamicBatchingMode.ADAPTIVE
    changes = consumes or adapts or inference.spec.has_engine
    return SIDE_REQUEUE if changes or inference.spec.logging is not None else None


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
        return _get_poll_interval(observed.inference, replicas)
    if swap.failure is not None and not swap.orders and not swap.retrying:
        return _FAILURE_REQUEUE
    working = any(replica.report is not None and not serves_target(replica, target) for replica in replicas)
    return _LOADING_REQUEUE if working else _UNREACHABLE_REQUEUE
