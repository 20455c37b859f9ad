"""An Inference with a batch: one Job a run, which goes on where an earlier one was, and what its status says."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from tidegate.api.batch import Batch, BatchProgress
from tidegate.api.conditions import ConditionType, ObservedCondition, merge
from tidegate.api.inference import InferenceStatus, Versions
from tidegate.api.reasons import Reason
from tidegate.planning.config_maps import stale
from tidegate.planning.jobs import JobView
from tidegate.planning.overrides import override_conditions, override_events, without_overrides
from tidegate.planning.placement_status import (
    placement_conditions,
    placement_events,
    way_out,
    without_placement,
)
from tidegate.planning.plan import Deletion, Event, EventType, Plan
from tidegate.planning.queueing import queue_verdict
from tidegate.planning.serving_status import (
    PODS_IN_TROUBLE,
    Verdict,
    condition,
    pods_verdict,
    selector_text,
    standing,
)
from tidegate.planning.swap_failures import may_pass
from tidegate.resources.batch import batch_objects
from tidegate.resources.batch_run import run_folder, run_name
from tidegate.resources.inference import inference_selector
from tidegate.resources.manifest import Manifest
from tidegate.resources.names import SOURCE_LABEL
from tidegate.resources.serving import template_hash
from tidegate.resources.settings import ServingSettings

if TYPE_CHECKING:
    from tidegate.planning.inference import InferenceObserved

_LOOK_AGAIN: Final = timedelta(seconds=15)
"""Nothing wakes us when an agent cannot fetch its model."""
_GOES_ON: Final = timedelta(seconds=1)
"""Of a run that had ended: how many pods it is to have follows from the status that is written now."""
_FAILING: Final = timedelta(seconds=30)
_STEPS: Final = 20
"""Of more shards than that, so many figures are written in the course of a run."""
_DEADLINE: Final = "DeadlineExceeded"
_TOLD: Final = frozenset(
    {Reason.BATCH_COMPLETE, Reason.SHARDS_FAILED, Reason.DEADLINE_EXCEEDED, Reason.EVICTED}
)
"""What is an event too: ends, and what is not of our doing."""


@dataclass(frozen=True, slots=True)
class _Run:
    """The run that the spec asks for, and its Job."""

    name: str
    batch: Batch
    before: BatchProgress | None
    """What the status said of this run."""
    job: JobView | None
    """The Job as it is to be, whether it is there."""
    others: Sequence[JobView]
    """Jobs of earlier runs, or of this one with another template."""

    @property
    def jobs(self) -> Sequence[JobView]:
        """All Jobs of this run, whatever their template."""
        return [each for each in (self.job, *self.others) if each is not None and each.run == self.name]

    @property
    def completed_at(self) -> datetime | None:
        """When the last shard was done; remembered, since nobody has to keep the Job."""
        if self.before is not None and self.before.completed_at is not None:
            return self.before.completed_at
        return next((each.completed for each in self.jobs if each.complete), None)

    @property
    def complete(self) -> bool:
        """Whether every shard is done."""
        return self.completed_at is not None

    @property
    def done(self) -> int:
        """Shards that are done, by the Job that has most of them."""
        return self.batch.shards if self.complete else max((len(each.done) for each in self.jobs), default=0)


def plan_batch(observed: "InferenceObserved", batch: Batch, settings: ServingSettings) -> Plan:
    """The Job and the status that bring a run to its end; a run that is complete needs nothing."""
    inference = observed.inference
    objects = batch_objects(inference, batch, settings, observed.slice_resources, observed.replicas)
    job: Any = objects[-1]
    run = _run(observed, batch, job["metadata"]["name"])
    status = _status(observed, run, template_hash(job["spec"]["template"]))
    return Plan(
        apply=_applied(observed, run, objects),
        delete=_deleted(observed, run, job["metadata"]["labels"][SOURCE_LABEL]),
        status=status.dump(),
        events=_events(inference.status, status),
        requeue_after=_requeue(observed, run),
    )


def _run(observed: "InferenceObserved", batch: Batch, wanted: str) -> _Run:
    inference = observed.inference
    name, known = run_name(inference, batch), inference.status.batch
    mine = next((one for one in observed.jobs if one.key.name == wanted and not one.deleting), None)
    return _Run(
        name=name,
        batch=batch,
        before=known if known is not None and known.run == name else None,
        job=mine,
        others=tuple(one for one in observed.jobs if one is not mine),
    )


def _applied(observed: "InferenceObserved", run: _Run, objects: Sequence[Manifest]) -> tuple[Manifest, ...]:
    if run.complete or observed.left_alone or _without_kueue(observed):
        return ()
    # The next Job waits until the one before it is gone with its pods: their slices are its own.
    ready = not run.others and not (run.job is not None and run.job.finished)
    return tuple(objects) if ready else tuple(objects[:-1])


def _without_kueue(observed: "InferenceObserved") -> bool:
    """Whether nobody would ever let its Job begin."""
    return observed.queueing is not None and not observed.queueing.installed


def _deleted(observed: "InferenceObserved", run: _Run, source: str) -> tuple[Deletion, ...]:
    if run.complete or observed.left_alone:
        return ()
    jobs = tuple(Deletion("Job", one.key, one.uid) for one in run.others if not one.deleting)
    return (*jobs, *stale(observed.config_maps, observed.pods, source))


def _status(observed: "InferenceObserved", run: _Run, template: str) -> InferenceStatus:
    inference, generation = observed.inference, observed.inference.metadata.generation
    selector = inference_selector(inference)
    pods = pods_verdict(
        observed.pods, observed.replicas, template, selector, observed.rooms, way_out=way_out(inference)
    )
    verdict = _verdict(observed, run, pods)
    said = (
        *standing(_ready(observed, run, verdict), generation),
        condition(ConditionType.COMPLETE, verdict, generation),
        *placement_conditions(observed.placement, pods, generation),
        *override_conditions(observed.overrides, generation, effective=inference.spec.scaling is not None),
    )
    before = without_placement(inference, inference.status.conditions)
    merged = merge(without_overrides(observed.overrides, before), said, observed.now)
    alive = [pod for pod in observed.pods if not pod.terminating]
    return InferenceStatus(
        observed_generation=generation,
        replicas=len(alive),
        ready_replicas=sum(pod.ready for pod in alive),
        selector=selector_text(selector),
        versions=Versions(target=inference.spec.model.version),
        batch=_progress(observed, run),
        conditions=tuple(ObservedCondition.model_validate(item) for item in merged),
    )


def _progress(observed: "InferenceObserved", run: _Run) -> BatchProgress:
    inference, job, before = observed.inference, run.job, run.before
    started = job.started if job is not None else None
    return BatchProgress(
        run=run.name,
        output=run_folder(inference, run.batch),
        shards=run.batch.shards,
        done=_bucketed(run.done, run.batch.shards),
        failed=len(job.failed) if job is not None else 0,
        # The first Job's: another one may have taken the run over.
        started_at=before.started_at if before is not None and before.started_at is not None else started,
        ended_at=_ended_at(observed, run),
        completed_at=run.completed_at,
    )


def _ended_at(observed: "InferenceObserved", run: _Run) -> datetime | None:
    """When the run ended, well or not; a run that gave up is one that goes on as soon as its Job is another one."""
    if run.complete:
        return run.completed_at
    if observed.left_alone:
        # Which Job it would be depends on the resources that its pool gives.
        return run.before.ended_at if run.before is not None else None
    return run.job.ended if run.job is not None and run.job.gave_up else None


def _bucketed(done: int, shards: int) -> int:
    step = max(shards // _STEPS, 1) if shards > _STEPS else 1
    return done if done == shards else done // step * step


def _verdict(observed: "InferenceObserved", run: _Run, pods: Verdict) -> Verdict:
    """The first of these that applies: complete, cannot be as planned, given up, no room, paused, no model, at work."""
    shards, folder = run.batch.shards, run_folder(observed.inference, run.batch)
    if run.complete:
        message = f"all {shards} shards of run {run.name} are done; the results are in {folder}"
        return Verdict(True, Reason.BATCH_COMPLETE, message)
    if observed.refusal is not None:
        return observed.refusal.verdict()
    so_far = f"{_bucketed(run.done, shards)} of {shards} shards of run {run.name} are done"
    if run.job is not None and run.job.gave_up:
        return _given_up(observed, run.job, so_far)
    placement = observed.placement
    if placement is not None and not placement.verdict.holds and observed.replicas == 0:
        return placement.verdict
    if observed.replicas == 0 and run.done < shards:
        return Verdict(False, Reason.SCALED_TO_ZERO, f"spec.replicas is 0; {so_far}, and the rest waits")
    queued = _queued(observed, run)
    if queued is not None:
        return replace(queued, message=f"{queued.message}; {so_far}")
    failures = [each.failure for each in observed.reports.values() if each.failure is not None]
    if failures:
        first = failures[0]
        said = f"version {first.version}: {first.message}; {so_far}"
        return Verdict(False, Reason(first.reason.value), said, stalled=not may_pass(first.reason))
    if pods.reason in PODS_IN_TROUBLE:
        return pods
    said = _last_words(observed, run.job)
    return Verdict(False, Reason.SCORING, f"{so_far}; {said}" if said else so_far)


def _queued(observed: "InferenceObserved", run: _Run) -> Verdict | None:
    """Why Kueue does not let its Job run; None where it does, or is not asked."""
    if run.batch.queue_name is None or observed.queueing is None:
        return None
    namespace = observed.inference.metadata.namespace
    return queue_verdict(run.batch.queue_name, namespace, observed.queueing, run.job)


def _ready(observed: "InferenceObserved", run: _Run, verdict: Verdict) -> Verdict:
    """Whether all is well: a run takes hours, and nobody is to be woken for that."""
    if verdict.reason is Reason.SCALED_TO_ZERO:
        return Verdict(True, verdict.reason, verdict.message)
    if verdict.reason is not Reason.SCORING:
        return verdict
    begun = run.done > 0 or any(pod.ready and not pod.terminating for pod in observed.pods)
    if not begun:
        return Verdict(False, Reason.WAITING_FOR_REPLICAS, f"no pod is ready yet; {verdict.message}")
    return Verdict(True, verdict.reason, verdict.message)


def _given_up(observed: "InferenceObserved", job: JobView, so_far: str) -> Verdict:
    if job.gave_up == _DEADLINE:
        said = f"the run took longer than spec.batch.deadline; {so_far}; raise it and delete Job {job.key.name} to go on"
        return Verdict(False, Reason.DEADLINE_EXCEEDED, said, stalled=True)
    words = _last_words(observed, job) or f"{job.said}; see the logs of Job {job.key.name}"
    return Verdict(False, Reason.SHARDS_FAILED, f"{so_far}; {words}", stalled=True)


def _last_words(observed: "InferenceObserved", job: JobView | None) -> str:
    """What pods said that failed, of shards that are not done since."""
    if job is None:
        return ""
    said = {
        pod.shard: pod.last_words
        for pod in sorted(observed.pods, key=lambda pod: pod.key)
        if pod.last_words and pod.shard is not None and pod.shard not in job.done and pod.job == job.key.name
    }
    if not said:
        return ""
    # A shard that has failed for good explains more than one that is tried again.
    shard = min(said, key=lambda one: (one not in job.failed, one))
    more = f" ({len(said) - 1} other shards failed too)" if len(said) > 1 else ""
    return f"shard {shard} failed{more}: {said[shard]}"


def _events(before: InferenceStatus, after: InferenceStatus) -> tuple[Event, ...]:
    events: list[Event] = []
    was, now = _complete(before), _complete(after)
    same = before.batch is not None and after.batch is not None and before.batch.run == after.batch.run
    if (
        now is not None
        and now.reason in _TOLD
        and not (same and was is not None and was.reason == now.reason)
    ):
        kind = EventType.NORMAL if now.reason == Reason.BATCH_COMPLETE else EventType.WARNING
        events.append(Event(kind, now.reason, now.message))
    events += placement_events(before.conditions, after.conditions)
    events += override_events(before.conditions, after.conditions)
    return tuple(events)


def _complete(status: InferenceStatus) -> ObservedCondition | None:
    return next((one for one in status.conditions if one.type == ConditionType.COMPLETE.value), None)


def _requeue(observed: "InferenceObserved", run: _Run) -> timedelta | None:
    if (observed.refusal is not None or _without_kueue(observed)) and not run.complete:
        return _FAILING
    if run.complete or (run.job is not None and run.job.finished):
        return None
    if run.before is not None and run.before.ended_at is not None:
        return _GOES_ON
    return _LOOK_AGAIN
