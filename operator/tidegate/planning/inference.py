"""Inference: its objects, the orders for its agents, and its status, from what was observed."""

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

_WORKING: Final = timedelta(milliseconds=500)
"""How soon to ask agents again while they fetch or load; a pod that turns ready wakes us anyway."""
_UNREACHABLE: Final = timedelta(seconds=3)
_FAILING: Final = timedelta(seconds=30)
_FAILURES: Final = frozenset(Reason(reason.value) for reason in FailureReason)
_PODS_FIRST: Final = PODS_IN_TROUBLE | {Reason.DRAINING}
"""What pods say that explains more than what the model says."""


@dataclass(frozen=True, slots=True)
class InferenceObserved:
    """Everything that planning an Inference needs to know."""

    inference: Inference
    now: datetime
    epoch: int
    pods: Sequence[PodView] = ()
    reports: Mapping[str, AgentReport] = field(default_factory=dict[str, AgentReport])
    """What agents said, by pod uid; a pod whose agent did not answer is absent."""
    config_maps: Sequence[Mapping[str, Any]] = ()
    """Our ConfigMaps of this Inference, of every source."""
    deployment: DeploymentView | None = None
    """Our Deployment as it is; None before there is one."""
    refusal: Refusal | None = None
    """Why a child cannot be as planned (a quota, an admission policy, a name that is taken)."""
    rooms: Sequence[NodeRoom] = ()
    """Where most is free of what a pod lacks that no node takes."""
    placement: PlacementResult | None = None
    """What its pool gives it; None where the spec names no pool."""
    overrides: Sequence[ComputeOverride] = ()
    """ComputeOverrides of it that are in force."""
    jobs: Sequence[JobView] = ()
    """Our Jobs of this Inference, with those of earlier runs."""
    queueing: Queueing | None = None
    """What Kueue says of them; None where the spec names no queue."""

    @property
    def slice_resources(self) -> SliceResources | None:
        """What its pool gives each pod, if there is a pool."""
        return self.placement.resources if self.placement is not None else None

    @property
    def left_alone(self) -> bool:
        """Whether its pool cannot say what a pod should look like, so that those that there are stay."""
        return self.placement is not None and self.placement.resources is None

    @property
    def replicas(self) -> int:
        """Pods that there are to be, warm spares among them."""
        return self.placement.replicas if self.placement is not None else self.inference.spec.replicas

    @property
    def needed(self) -> int:
        """Pods without which it is not ready: spares are not missed, but a rollout is over when they are replaced too."""
        alive = {pod.template for pod in self.pods if not pod.terminating}
        return self.replicas if len(alive) > 1 else in_service(self.inference, self.replicas)


def plan_inference(observed: InferenceObserved, settings: ServingSettings) -> Plan:
    """The objects, orders and status that bring an Inference towards its spec."""
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
    # The text that is there, if it says the same: an order differs by epoch and generation only to be traced.
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
    others = tuple(one for one in objects if one["kind"] != "Deployment")
    if rollout.deployment is None:
        return others
    return tuple(rollout.deployment if one["kind"] == "Deployment" else one for one in objects)


def _pods(observed: InferenceObserved, template: str) -> Verdict:
    inference = observed.inference
    selector = inference_selector(inference)
    return pods_verdict(
        observed.pods, observed.needed, template, selector, observed.rooms, way_out=way_out(inference)
    )


def _rollout(observed: InferenceObserved, objects: Sequence[Manifest], swap: Swap) -> Rollout:
    """What the Deployment is to be; a rollout that is given up is explained by the model's failure, else by the pods."""
    inference = observed.inference
    wanted = deployment_of(objects)
    if observed.left_alone:
        return left_alone(observed.deployment, wanted, observed.replicas)
    if swap.failure is not None:
        failure = swap.failure.failure
        trouble = Verdict(
            False, Reason(failure.reason.value), f"version {failure.version}: {failure.message}"
        )
    else:
        trouble = _pods(observed, template_digest(objects))
    attempt = Attempt(attempt_id(inference), inference.metadata.generation, trouble)
    return plan_rollout(observed.deployment, wanted, attempt)


def _parsed(text: str | None) -> DesiredState | None:
    try:
        return DesiredState.model_validate_json(text) if text is not None else None
    except ValidationError:
        return None  # somebody edited it; it is written anew


def _outgrown(pod: PodView, observed: InferenceObserved) -> bool:
    """Whether the pod was made with another memory limit than the spec's, and is about to be replaced.

    After a rollout that was given up it stays, and what does not fit into it does not fit.
    """
    if observed.deployment is not None and observed.deployment.given_up is not None:
        return False
    if observed.left_alone:
        return False
    resources = observed.slice_resources or observed.inference.spec.own_resources
    return bool(pod.memory_limit) and parse_quantity(pod.memory_limit) != parse_quantity(resources.memory)


def _memory(inference: Inference, text: str | None) -> Memory:
    """What the ConfigMap and the status remember; a forged status is no memory."""
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
    known = VersionFailure(
        version=int(failure.version), reason=FailureReason(failure.reason), message=failure.message
    )
    return KnownFailure(known, failure.time, failure.attempts)


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
    said = (
        *standing(_ready_verdict(observed, model, pods, replicas), generation),
        condition(ConditionType.MODEL_LOADED, model, generation),
        *placement_conditions(observed.placement, pods, generation),
        *sample_conditions(inference, replicas),
        *stream_conditions(inference, observed.replicas, replicas),
        *override_conditions(observed.overrides, generation, effective=inference.spec.scaling is not None),
    )
    before = without_sample_log(inference, inference.status.conditions)
    before = without_placement(inference, without_stream(inference, before))
    before = without_overrides(observed.overrides, before)
    merged = merge(before, said, observed.now)
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
    """Pods that answer and get no requests; None where there are to be none."""
    if not observed.inference.decided_spares:
        return None
    able = sum(pod.ready and pod.reachable for pod in observed.pods)
    return able - len(serving_pods(observed.inference, observed.pods))


def _missed(
    observed: InferenceObserved, target: DesiredState, replicas: Sequence[Replica]
) -> Sequence[Replica]:
    """The replicas without spares that still start: whatever these say, all that is to get requests may be there."""
    if not observed.inference.decided_spares:
        return replicas
    there = [each for each in replicas if each.pod.ready or serves(each, target)]
    return there if len(there) >= observed.needed else replicas


def _failure(swap: Swap) -> Failure | None:
    if swap.failure is None:
        return None
    known = swap.failure.failure
    time = swap.failure.time.replace(microsecond=0)
    return Failure(
        version=str(known.version),
        reason=known.reason.value,
        message=known.message,
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
    """The version that answers: during a swap the committed one, until every replica has left it."""
    said = {r.report.serving for r in replicas if r.report is not None and r.report.serving is not None}
    if said:
        return str(swap.committed.version if swap.committed.version in said else max(said))
    silent = any(replica.report is None for replica in replicas)
    asked = {replica.pod.uid for replica in replicas}
    predecessors = any(pod.ready and not pod.terminating for pod in observed.pods if pod.uid not in asked)
    # Nobody who was asked serves: what was true a moment ago is the best that is known.
    return observed.inference.status.versions.serving if silent or predecessors else None


def _loaded(replicas: Sequence[Replica]) -> tuple[str, ...]:
    """Those that every serving replica has; a pod that still starts has none and takes nothing away."""
    reports = [replica.report for replica in replicas if replica.report is not None]
    loaded = [set(report.loaded) for report in reports if report.serving is not None]
    return tuple(str(version) for version in sorted(set.intersection(*loaded))) if loaded else ()


def _taken(replicas: Sequence[Replica]) -> tuple[VersionMemory, ...]:
    """The most that a version takes on any replica, rounded so that one replica more changes nothing."""
    most: dict[int, int] = {}
    for replica in replicas:
        for each in replica.report.memory if replica.report is not None else ():
            most[each.version] = max(most.get(each.version, 0), each.bytes)
    return tuple(
        VersionMemory(version=str(version), bytes=_rounded_up(taken))
        for version, taken in sorted(most.items())
    )


def _rounded_up(count: int) -> int:
    """The next number of four binary digits: at most an eighth more."""
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
    """Whether the target version serves on every replica, in the agents' own words; `replicas` are those that matter."""
    if swap.failure is not None:
        failure = swap.failure.failure
        rest = f"; version {serving} keeps serving" if serving and serving != str(failure.version) else ""
        message = f"version {failure.version}: {failure.message}{rest}"
        return Verdict(False, Reason(failure.reason.value), message, stalled=not may_pass(failure.reason))
    if inference.spec.replicas == 0:
        return Verdict(False, Reason.SCALED_TO_ZERO, "spec.replicas is 0, no model is loaded")
    there = sum(serves(replica, target) for replica in replicas)
    if swap.done or (0 < there == len(replicas) and same_order(swap.committed, target)):
        return Verdict(True, Reason.MODEL_LOADED, f"version {target.version} serves on every replica")
    silent = [replica.pod.key.name for replica in replicas if replica.report is None and replica.pod.ready]
    if silent:
        return Verdict(
            False, Reason.AGENT_UNREACHABLE, f"the agent of pod {silent[0]} does not answer on port 8443"
        )
    message = f"version {target.version} serves on {there} of {len(replicas)} replicas{_progress(replicas)}"
    swapping = swap.committed.version != target.version
    return Verdict(False, Reason.SWAPPING_VERSION if swapping else Reason.LOADING, message)


def _progress(replicas: Sequence[Replica]) -> str:
    """How far the slowest download is, in steps of ten percent so that status does not flicker."""
    shares = [
        10 * (10 * report.bytes_done // report.bytes_total)
        for replica in replicas
        if (report := replica.report) is not None and report.bytes_total and report.bytes_done is not None
    ]
    return f", {min(shares)} % fetched" if shares else ""


def _ready_verdict(
    observed: InferenceObserved, model: Verdict, pods: Verdict, replicas: Sequence[Replica]
) -> Verdict:
    """The first of these that applies: nothing wanted, the model failed, pods cannot run, a swap goes on."""
    unplaced = _unplaced(observed)
    if unplaced is not None and observed.replicas == 0:
        return unplaced
    if pods.reason is Reason.SCALED_TO_ZERO:
        return pods
    if pods.reason is Reason.ROLLED_BACK and observed.refusal is None:
        return pods
    if model.reason in _FAILURES:
        return model
    if observed.refusal is not None:
        return observed.refusal.verdict()
    if unplaced is not None:
        return unplaced
    if pods.reason in _PODS_FIRST or (not pods.holds and not replicas):
        return pods
    ended = runner_verdict(replicas)
    if ended is not None:
        return ended
    if not model.holds:
        return model
    return Verdict(True, Reason.ALL_REPLICAS_READY, model.message) if pods.holds else pods


def _unplaced(observed: InferenceObserved) -> Verdict | None:
    """Why its pool does not give it what it wants; None when it has all of that, from its pool or from before."""
    placement, live = observed.placement, observed.deployment
    if placement is None or placement.verdict.holds:
        return None
    inference = observed.inference
    as_wanted = live is not None and template_source(live.template) == source_digest(inference)
    gone = placement.verdict.reason is Reason.POOL_NOT_FOUND
    # A pool that is gone takes nothing from what runs as its spec asks.
    return None if gone and as_wanted and placement.replicas == inference.spec.replicas else placement.verdict


def _events(before: InferenceStatus, after: InferenceStatus) -> tuple[Event, ...]:
    events: list[Event] = []
    failure, known = after.failure, before.failure
    if failure is not None and (
        known is None or (failure.version, failure.message) != (known.version, known.message)
    ):
        events.append(
            Event(EventType.WARNING, failure.reason, f"Version {failure.version}: {failure.message}")
        )
    given_up = rolled_back(after.conditions)
    if given_up is not None and rolled_back(before.conditions) is None:
        events.append(Event(EventType.WARNING, given_up.reason, given_up.message))
    events += placement_events(before.conditions, after.conditions)
    events += sample_events(before.conditions, after.conditions)
    events += stream_events(before.conditions, after.conditions)
    events += override_events(before.conditions, after.conditions)
    serving = after.versions.serving
    if serving is not None and serving != before.versions.serving:
        events.append(Event(EventType.NORMAL, "VersionServing", f"Version {serving} serves"))
    return tuple(events)


def _look_again(inference: Inference, replicas: Sequence[Replica]) -> timedelta | None:
    """When to ask settled agents again for what nothing wakes us for."""
    if inference.spec.nearline is not None and replicas:
        return nearline.LOOK_AGAIN
    return sample_log.LOOK_AGAIN if inference.spec.logging is not None else None


def _sooner(again: timedelta | None, observed: InferenceObserved) -> timedelta | None:
    """Or when an override ends, if that is earlier."""
    ends = next_end(observed.overrides)
    if ends is None:
        return again
    left = max(ends - observed.now, timedelta()) + JUST_AFTER
    return left if again is None else min(again, left)


def _requeue(
    observed: InferenceObserved, target: DesiredState, swap: Swap, replicas: Sequence[Replica]
) -> timedelta | None:
    if observed.refusal is not None:
        return _FAILING  # whose name is taken, or whose quota is full, is not among the objects that wake us
    if swap.retry_after is not None:
        return max(swap.retry_after, timedelta(seconds=1))
    if runner_verdict(replicas) is not None:
        return runner_ends.LOOK_AGAIN
    if swap.done or not replicas:
        return _look_again(observed.inference, replicas)
    if swap.failure is not None and not swap.orders and not swap.retrying:
        return _FAILING
    at_work = any(replica.report is not None and not serves(replica, target) for replica in replicas)
    return _WORKING if at_work else _UNREACHABLE
