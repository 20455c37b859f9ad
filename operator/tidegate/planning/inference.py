"""Plan an Inference: compute its objects, the orders for its agents, and its status from an observation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from pydantic import ValidationError

from tidegate.api.compute_override import ComputeOverride
from tidegate.api.conditions import ConditionType, ObservedCondition, merge
from tidegate.api.inference import (
    Failure,
    Inference,
    InferenceStatus,
    ServedModel,
    SwapProgress,
    Tensor,
    VersionMemory,
    Versions,
)
from tidegate.api.quantities import parse_quantity
from tidegate.api.reasons import Reason
from tidegate.planning import nearline, runner_ends, sample_log
from tidegate.planning.batch import plan_batch
from tidegate.planning.config_maps import stale, start_text
from tidegate.planning.deployments import DeploymentView, template_source
from tidegate.planning.jobs import JobView
from tidegate.planning.nearline import stream_conditions, stream_events, without_stream
from tidegate.planning.overrides import (
    JUST_AFTER,
    next_end,
    override_conditions,
    override_events,
    without_overrides,
)
from tidegate.planning.placement import PlacementResult
from tidegate.planning.placement_status import (
    placement_conditions,
    placement_events,
    way_out,
    without_placement,
)
from tidegate.planning.plan import Event, EventType, Plan
from tidegate.planning.pods import PodView
from tidegate.planning.queueing import Queueing
from tidegate.planning.replicas import in_service
from tidegate.planning.rollout import (
    Attempt,
    Rollout,
    attempt_id,
    left_alone,
    plan_rollout,
    rolled_back,
    rollout_verdict,
)
from tidegate.planning.room import NodeRoom
from tidegate.planning.runner_ends import runner_events, runner_verdict
from tidegate.planning.sample_log import sample_conditions, sample_events, without_sample_log
from tidegate.planning.serving_pods import serving_pods
from tidegate.planning.serving_status import (
    PODS_IN_TROUBLE,
    Refusal,
    Verdict,
    condition,
    pods_verdict,
    selector_text,
    standing,
)
from tidegate.planning.swap_failures import KnownFailure, Progress, Replica, may_pass
from tidegate.planning.version_swap import Memory, Swap, plan_swap, same_order, serves
from tidegate.resources.inference import desired_state, inference_objects, inference_selector, source_digest
from tidegate.resources.manifest import Manifest
from tidegate.resources.serving import deployment_of, template_digest
from tidegate.resources.settings import ServingSettings
from tidegate.resources.slices import SliceResources
from tidegate_dataplane.contract import AgentReport, DesiredState, FailureReason, VersionFailure

_LOADING_REQUEUE: Final = timedelta(milliseconds=500)
"""Poll agents this often while they fetch or load. A pod that turns ready wakes the reconciler anyway."""
_UNREACHABLE_REQUEUE: Final = timedelta(seconds=3)
_FAILURE_REQUEUE: Final = timedelta(seconds=30)
_FAILURE_REASONS: Final = frozenset(Reason(reason.value) for reason in FailureReason)
_POD_REASONS_FIRST: Final = PODS_IN_TROUBLE | {Reason.DRAINING}
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
    refusal: Refusal | None = None
    """Why a child cannot be applied as planned: a quota, an admission policy, a name that is taken."""
    rooms: Sequence[NodeRoom] = ()
    """The nodes with the most free of a resource that an unschedulable pod lacks."""
    placement: PlacementResult | None = None
    """What the pool assigns to it; None if the spec names no pool."""
    overrides: Sequence[ComputeOverride] = ()
    """ComputeOverrides of it that are in force."""
    jobs: Sequence[JobView] = ()
    """Our Jobs of this Inference, earlier runs included."""
    queueing: Queueing | None = None
    """What Kueue reports about the Jobs; None if the spec names no queue."""

    @property
    def slice_resources(self) -> SliceResources | None:
        """Return the resources of each pod as its pool defines them; None without a pool."""
        return self.placement.resources if self.placement is not None else None

    @property
    def left_alone(self) -> bool:
        """Return whether the pod template is unknown, because the pool cannot tell the resources of a slice.

        The pods that run then stay as they are.
        """
        return self.placement is not None and self.placement.resources is None

    @property
    def replicas(self) -> int:
        """Return the desired number of pods, warm spares included."""
        return self.placement.replicas if self.placement is not None else self.inference.spec.replicas

    @property
    def needed(self) -> int:
        """Return how many pods must be ready for Ready=True.

        A missing warm spare does not matter, but a rollout is only complete when the spares are replaced too.
        """
        alive = {pod.template for pod in self.pods if not pod.terminating}
        return self.replicas if len(alive) > 1 else in_service(self.inference, self.replicas)


def plan_inference(observed: InferenceObserved, settings: ServingSettings) -> Plan:
    """Return the objects, orders and status that bring an Inference towards its spec."""
    inference = observed.inference
    if inference.spec.batch is not None:
        return plan_batch(observed, inference.spec.batch, settings)
    source = source_digest(inference)
    target = desired_state(inference, settings, epoch=observed.epoch)
    replicas = tuple(
        Replica(pod, observed.reports.get(pod.uid), outgrown=_outgrown(pod, observed))
        for pod in observed.pods
        if pod.reachable and pod.source == source
    )
    text = start_text(observed.config_maps, source)
    memory = _memory(inference, text)
    swap = plan_swap(target, memory, replicas, observed.now)
    # Keep the stored text if only epoch and generation differ: these are there for tracing and change no behaviour.
    unchanged = (
        text is not None and memory.committed is not None and same_order(memory.committed, swap.committed)
    )
    start = text if unchanged and text is not None else swap.committed.to_json()
    objects = inference_objects(inference, settings, start, observed.slice_resources, observed.replicas)
    rollout = _rollout(observed, objects, swap)
    pods = rollout_verdict(inference, observed.pods, rollout, _pods(observed, rollout.template))
    status = _status(observed, target, replicas, swap, pods)
    return Plan(
        apply=_applied(objects, rollout),
        delete=stale(observed.config_maps, observed.pods, source, rollout.sources),
        orders=swap.orders,
        status=status.dump(),
        events=(
            *_events(inference.status, status),
            *runner_events(inference.status.conditions, status.conditions, runner_verdict(replicas)),
        ),
        requeue_after=_sooner(_requeue(observed, target, swap, replicas), observed),
    )


def _applied(objects: Sequence[Manifest], rollout: Rollout) -> tuple[Manifest, ...]:
    other_manifests = tuple(manifest for manifest in objects if manifest["kind"] != "Deployment")
    if rollout.deployment is None:
        return other_manifests
    return tuple(rollout.deployment if manifest["kind"] == "Deployment" else manifest for manifest in objects)


def _pods(observed: InferenceObserved, template: str) -> Verdict:
    inference = observed.inference
    selector = inference_selector(inference)
    return pods_verdict(
        observed.pods, observed.needed, template, selector, observed.rooms, way_out=way_out(inference)
    )


def _rollout(observed: InferenceObserved, objects: Sequence[Manifest], swap: Swap) -> Rollout:
    """Return the Deployment to apply; a failed rollout is explained by the model's failure, else by the pods."""
    inference = observed.inference
    desired = deployment_of(objects)
    if observed.left_alone:
        return left_alone(observed.deployment, desired, observed.replicas)
    if swap.failure is not None:
        failure = swap.failure.failure
        problem = Verdict(
            False, Reason(failure.reason.value), f"version {failure.version}: {failure.message}"
        )
    else:
        problem = _pods(observed, template_digest(objects))
    attempt = Attempt(attempt_id(inference), inference.metadata.generation, problem)
    return plan_rollout(observed.deployment, desired, attempt)


def _parsed(text: str | None) -> DesiredState | None:
    try:
        return DesiredState.model_validate_json(text) if text is not None else None
    except ValidationError:
        return None  # edited by hand; the next apply overwrites it


def _outgrown(pod: PodView, observed: InferenceObserved) -> bool:
    """Return whether the pod has another memory limit than the spec, so that a rollout is about to replace it.

    After a failed rollout the pod stays, and a version that does not fit into it stays a failure.
    """
    if observed.deployment is not None and observed.deployment.given_up is not None:
        return False
    if observed.left_alone:
        return False
    resources = observed.slice_resources or observed.inference.spec.own_resources
    return bool(pod.memory_limit) and parse_quantity(pod.memory_limit) != parse_quantity(resources.memory)


def _memory(inference: Inference, text: str | None) -> Memory:
    """Return what the ConfigMap and the status record of earlier reconciles; invalid records count as absent."""
    status, serving = inference.status, inference.status.versions.serving
    current = status.observed_generation == inference.metadata.generation
    return Memory(
        committed=_parsed(text),
        failure=_known_failure(inference) if current else None,
        progress=_known_progress(status) if current else None,
        serving=int(serving) if serving is not None and serving.isdigit() else None,
    )


def _known_progress(status: InferenceStatus) -> Progress | None:
    swap = status.swap
    if swap is None or not swap.version.isdigit():
        return None
    return Progress(int(swap.version), swap.replicas, swap.fetching, swap.since)


def _known_failure(inference: Inference) -> KnownFailure | None:
    failure = inference.status.failure
    if failure is None or failure.time is None:
        return None
    if failure.reason not in set(FailureReason) or not failure.version.isdigit():
        return None
    version_failure = VersionFailure(
        version=int(failure.version), reason=FailureReason(failure.reason), message=failure.message
    )
    return KnownFailure(version_failure, failure.time, failure.attempts)


def _status(
    observed: InferenceObserved,
    target: DesiredState,
    replicas: Sequence[Replica],
    swap: Swap,
    pods: Verdict,
) -> InferenceStatus:
    inference = observed.inference
    generation = inference.metadata.generation
    serving = _serving(observed, replicas, swap)
    model = _model_verdict(inference, target, _missed(observed, target, replicas), swap, serving)
    conditions = (
        *standing(_ready_verdict(observed, model, pods, replicas), generation),
        condition(ConditionType.MODEL_LOADED, model, generation),
        *placement_conditions(observed.placement, pods, generation),
        *sample_conditions(inference, replicas),
        *stream_conditions(inference, observed.replicas, replicas),
        *override_conditions(observed.overrides, generation, effective=inference.spec.scaling is not None),
    )
    previous = without_sample_log(inference, inference.status.conditions)
    previous = without_placement(inference, without_stream(inference, previous))
    previous = without_overrides(observed.overrides, previous)
    merged = merge(previous, conditions, observed.now)
    alive = [pod for pod in observed.pods if not pod.terminating]
    return InferenceStatus(
        observed_generation=generation,
        replicas=len(alive),
        ready_replicas=sum(pod.ready for pod in alive),
        spare_replicas=_spares(observed),
        selector=selector_text(inference_selector(inference)),
        versions=Versions(
            serving=serving, loaded=_loaded(replicas), memory=_taken(replicas), target=str(target.version)
        ),
        model=_model(inference, target, replicas),
        failure=_failure(swap),
        swap=_progress_status(swap),
        conditions=tuple(ObservedCondition.model_validate(item) for item in merged),
    )


def _spares(observed: InferenceObserved) -> int | None:
    """Return how many pods can answer and get no requests; None if no spares were decided."""
    if not observed.inference.decided_spares:
        return None
    available = sum(pod.ready and pod.reachable for pod in observed.pods)
    return available - len(serving_pods(observed.inference, observed.pods))


def _missed(
    observed: InferenceObserved, target: DesiredState, replicas: Sequence[Replica]
) -> Sequence[Replica]:
    """Return the replicas that count for ModelLoaded: without starting spares once all required replicas serve."""
    if not observed.inference.decided_spares:
        return replicas
    running = [replica for replica in replicas if replica.pod.ready or serves(replica, target)]
    return running if len(running) >= observed.needed else replicas


def _failure(swap: Swap) -> Failure | None:
    if swap.failure is None:
        return None
    failure = swap.failure.failure
    time = swap.failure.time.replace(microsecond=0)
    return Failure(
        version=str(failure.version),
        reason=failure.reason.value,
        message=failure.message,
        time=time,
        attempts=swap.failure.attempts,
    )


def _progress_status(swap: Swap) -> SwapProgress | None:
    progress = swap.progress
    if progress is None:
        return None
    return SwapProgress(
        version=str(progress.version),
        replicas=progress.there,
        fetching=progress.fetching,
        since=progress.since.replace(microsecond=0),
    )


def _serving(observed: InferenceObserved, replicas: Sequence[Replica], swap: Swap) -> str | None:
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


def _loaded(replicas: Sequence[Replica]) -> tuple[str, ...]:
    """Return the versions that every serving replica has loaded.

    A pod that still starts has none and is left out, so that it removes no version from the list.
    """
    reports = [replica.report for replica in replicas if replica.report is not None]
    loaded = [set(report.loaded) for report in reports if report.serving is not None]
    return tuple(str(version) for version in sorted(set.intersection(*loaded))) if loaded else ()


def _taken(replicas: Sequence[Replica]) -> tuple[VersionMemory, ...]:
    """Return the most memory that each version takes on any replica, rounded so that status changes rarely."""
    largest: dict[int, int] = {}
    for replica in replicas:
        for usage in replica.report.memory if replica.report is not None else ():
            largest[usage.version] = max(largest.get(usage.version, 0), usage.bytes)
    return tuple(
        VersionMemory(version=str(version), bytes=_rounded_up(bytes_used))
        for version, bytes_used in sorted(largest.items())
    )


def _rounded_up(count: int) -> int:
    """Round up to the next number with four significant binary digits: by an eighth at most."""
    step = 1 << max(count.bit_length() - 4, 0)
    return -(-count // step) * step


def _model(inference: Inference, target: DesiredState, replicas: Sequence[Replica]) -> ServedModel | None:
    for replica in replicas:
        if replica.report is not None and replica.report.serving == target.version:
            inputs, outputs = (
                tuple(Tensor.model_validate(spec.model_dump()) for spec in specs)
                for specs in (replica.report.inputs, replica.report.outputs)
            )
            return ServedModel(name=inference.served_name, inputs=inputs, outputs=outputs)
    return inference.status.model


def _model_verdict(
    inference: Inference,
    target: DesiredState,
    replicas: Sequence[Replica],
    swap: Swap,
    serving: str | None,
) -> Verdict:
    """Return whether the target version serves on every replica, by the reports of the agents.

    `replicas` are those that count, see `_select_required`.
    """
    if swap.failure is not None:
        failure = swap.failure.failure
        suffix = f"; version {serving} keeps serving" if serving and serving != str(failure.version) else ""
        message = f"version {failure.version}: {failure.message}{suffix}"
        return Verdict(False, Reason(failure.reason.value), message, stalled=not may_pass(failure.reason))
    if inference.spec.replicas == 0:
        return Verdict(False, Reason.SCALED_TO_ZERO, "spec.replicas is 0, no model is loaded")
    serving_count = sum(serves(replica, target) for replica in replicas)
    if swap.done or (0 < serving_count == len(replicas) and same_order(swap.committed, target)):
        return Verdict(True, Reason.MODEL_LOADED, f"version {target.version} serves on every replica")
    silent = [replica.pod.key.name for replica in replicas if replica.report is None and replica.pod.ready]
    if silent:
        return Verdict(
            False, Reason.AGENT_UNREACHABLE, f"the agent of pod {silent[0]} does not answer on port 8443"
        )
    message = (
        f"version {target.version} serves on {serving_count} of {len(replicas)} replicas{_progress(replicas)}"
    )
    swapping = swap.committed.version != target.version
    return Verdict(False, Reason.SWAPPING_VERSION if swapping else Reason.LOADING, message)


def _progress(replicas: Sequence[Replica]) -> str:
    """Return how far the slowest download is, in steps of ten percent so that the status changes rarely."""
    shares = [
        10 * (10 * report.bytes_done // report.bytes_total)
        for replica in replicas
        if (report := replica.report) is not None and report.bytes_total and report.bytes_done is not None
    ]
    return f", {min(shares)} % fetched" if shares else ""


def _ready_verdict(
    observed: InferenceObserved, model: Verdict, pods: Verdict, replicas: Sequence[Replica]
) -> Verdict:
    """Return the verdict of Ready: the first of these that applies.

    No pods desired, rolled back, model failed, child refused, no slices, pods cannot run, runner exited, swap in progress.
    """
    unplaced = _unplaced(observed)
    if unplaced is not None and observed.replicas == 0:
        return unplaced
    if pods.reason is Reason.SCALED_TO_ZERO:
        return pods
    if pods.reason is Reason.ROLLED_BACK and observed.refusal is None:
        return pods
    if model.reason in _FAILURE_REASONS:
        return model
    if observed.refusal is not None:
        return observed.refusal.verdict()
    if unplaced is not None:
        return unplaced
    if pods.reason in _POD_REASONS_FIRST or (not pods.holds and not replicas):
        return pods
    exit_verdict = runner_verdict(replicas)
    if exit_verdict is not None:
        return exit_verdict
    if not model.holds:
        return model
    return Verdict(True, Reason.ALL_REPLICAS_READY, model.message) if pods.holds else pods


def _unplaced(observed: InferenceObserved) -> Verdict | None:
    """Return why the pool does not assign all slices; None if it does, or if the pods have them from before."""
    placement, live = observed.placement, observed.deployment
    if placement is None or placement.verdict.holds:
        return None
    inference = observed.inference
    up_to_date = live is not None and template_source(live.template) == source_digest(inference)
    pool_deleted = placement.verdict.reason is Reason.POOL_NOT_FOUND
    # Deleting a pool does not affect pods that run as the spec asks.
    return (
        None
        if pool_deleted and up_to_date and placement.replicas == inference.spec.replicas
        else placement.verdict
    )


def _events(before: InferenceStatus, after: InferenceStatus) -> tuple[Event, ...]:
    events: list[Event] = []
    failure, previous_failure = after.failure, before.failure
    if failure is not None and (
        previous_failure is None
        or (failure.version, failure.message) != (previous_failure.version, previous_failure.message)
    ):
        events.append(
            Event(EventType.WARNING, failure.reason, f"Version {failure.version}: {failure.message}")
        )
    rolled_back_condition = rolled_back(after.conditions)
    if rolled_back_condition is not None and rolled_back(before.conditions) is None:
        events.append(Event(EventType.WARNING, rolled_back_condition.reason, rolled_back_condition.message))
    events += placement_events(before.conditions, after.conditions)
    events += sample_events(before.conditions, after.conditions)
    events += stream_events(before.conditions, after.conditions)
    events += override_events(before.conditions, after.conditions)
    serving = after.versions.serving
    if serving is not None and serving != before.versions.serving:
        events.append(Event(EventType.NORMAL, "VersionServing", f"Version {serving} serves"))
    return tuple(events)


def _look_again(inference: Inference, replicas: Sequence[Replica]) -> timedelta | None:
    """Return when to poll settled agents for changes that wake no reconcile."""
    if inference.spec.nearline is not None and replicas:
        return nearline.LOOK_AGAIN
    return sample_log.LOOK_AGAIN if inference.spec.logging is not None else None


def _sooner(again: timedelta | None, observed: InferenceObserved) -> timedelta | None:
    """Return the earlier of `requeue_after` and the end of the next override."""
    ends = next_end(observed.overrides)
    if ends is None:
        return again
    until_end = max(ends - observed.now, timedelta()) + JUST_AFTER
    return until_end if again is None else min(again, until_end)


def _requeue(
    observed: InferenceObserved, target: DesiredState, swap: Swap, replicas: Sequence[Replica]
) -> timedelta | None:
    if observed.refusal is not None:
        return _FAILURE_REQUEUE  # the object that holds the name or the quota does not wake us
    if swap.retry_after is not None:
        return max(swap.retry_after, timedelta(seconds=1))
    if runner_verdict(replicas) is not None:
        return runner_ends.LOOK_AGAIN
    if swap.done or not replicas:
        return _look_again(observed.inference, replicas)
    if swap.failure is not None and not swap.orders and not swap.retrying:
        return _FAILURE_REQUEUE
    working = any(replica.report is not None and not serves(replica, target) for replica in replicas)
    return _LOADING_REQUEUE if working else _UNREACHABLE_REQUEUE
