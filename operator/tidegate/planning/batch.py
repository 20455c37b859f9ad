"""Plan an Inference with a batch: one Job per run, which continues where an earlier one stopped, and the status."""

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

_POLL_INTERVAL: Final = timedelta(seconds=15)
"""Nothing wakes the reconciler when an agent cannot fetch its model."""
_RESUMED_REQUEUE: Final = timedelta(seconds=1)
"""Of a resumed run: its number of pods follows from the status that is written now."""
_FAILURE_REQUEUE: Final = timedelta(seconds=30)
_PROGRESS_STEPS: Final = 20
"""With more shards than this, the status changes this often in the course of a run."""
_DEADLINE: Final = "DeadlineExceeded"
_EVENT_REASONS: Final = frozenset(
    {Reason.BATCH_COMPLETE, Reason.SHARDS_FAILED, Reason.DEADLINE_EXCEEDED, Reason.EVICTED}
)
"""Reasons that are Events too: ends of a run, and evictions by Kueue."""


@dataclass(frozen=True, slots=True)
class _Run:
    """Run that the spec asks for, and its Jobs."""

    name: str
    batch: Batch
    before: BatchProgress | None
    """What the status records of this run."""
    job: JobView | None
    """The Job with the planned name; None if it does not exist or is being deleted."""
    others: Sequence[JobView]
    """Jobs of earlier runs, or of this one with another template."""

    @property
    def jobs(self) -> Sequence[JobView]:
        """Return all Jobs of this run, with any template."""
        return [job for job in (self.job, *self.others) if job is not None and job.run == self.name]

    @property
    def completed_at(self) -> datetime | None:
        """Return when the last shard was done; the status keeps it, because the Job may be deleted."""
        if self.before is not None and self.before.completed_at is not None:
            return self.before.completed_at
        return next((job.completed for job in self.jobs if job.complete), None)

    @property
    def complete(self) -> bool:
        """Return whether every shard is done."""
        return self.completed_at is not None

    @property
    def done(self) -> int:
        """Return how many shards are done, by the Job that has most of them."""
        return self.batch.shards if self.complete else max((len(job.done) for job in self.jobs), default=0)


def plan_batch(observed: "InferenceObserved", batch: Batch, settings: ServingSettings) -> Plan:
    """Return the Job and the status that bring a run to its end; a complete run needs no Job."""
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
    name, progress = run_name(inference, batch), inference.status.batch
    current = next((job for job in observed.jobs if job.key.name == wanted and not job.deleting), None)
    return _Run(
        name=name,
        batch=batch,
        before=progress if progress is not None and progress.run == name else None,
        job=current,
        others=tuple(job for job in observed.jobs if job is not current),
    )


def _applied(observed: "InferenceObserved", run: _Run, objects: Sequence[Manifest]) -> tuple[Manifest, ...]:
    if run.complete or observed.left_alone or _without_kueue(observed):
        return ()
    # The next Job waits until the previous one and its pods are deleted: it needs their slices.
    ready = not run.others and not (run.job is not None and run.job.finished)
    return tuple(objects) if ready else tuple(objects[:-1])


def _without_kueue(observed: "InferenceObserved") -> bool:
    """Return whether the spec names a queue and Kueue is not installed, so that no Job would ever start."""
    return observed.queueing is not None and not observed.queueing.installed


def _deleted(observed: "InferenceObserved", run: _Run, source: str) -> tuple[Deletion, ...]:
    if run.complete or observed.left_alone:
        return ()
    jobs = tuple(Deletion("Job", job.key, job.uid) for job in run.others if not job.deleting)
    return (*jobs, *stale(observed.config_maps, observed.pods, source))


def _status(observed: "InferenceObserved", run: _Run, template: str) -> InferenceStatus:
    inference, generation = observed.inference, observed.inference.metadata.generation
    selector = inference_selector(inference)
    pods = pods_verdict(
        observed.pods, observed.replicas, template, selector, observed.rooms, way_out=way_out(inference)
    )
    verdict = _verdict(observed, run, pods)
    conditions = (
        *standing(_ready(observed, run, verdict), generation),
        condition(ConditionType.COMPLETE, verdict, generation),
        *placement_conditions(observed.placement, pods, generation),
        *override_conditions(observed.overrides, generation, effective=inference.spec.scaling is not None),
    )
    previous = without_placement(inference, inference.status.conditions)
    merged = merge(without_overrides(observed.overrides, previous), conditions, observed.now)
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
        # Keep the start of the first Job: another one may have resumed the run.
        started_at=before.started_at if before is not None and before.started_at is not None else started,
        ended_at=_ended_at(observed, run),
        completed_at=run.completed_at,
    )


def _ended_at(observed: "InferenceObserved", run: _Run) -> datetime | None:
    """Return when the run completed or failed; None while it runs.

    A failed run resumes as soon as its Job is another one.
    """
    if run.complete:
        return run.completed_at
    if observed.left_alone:
        # The name of the Job depends on the resources of a slice, which are unknown now.
        return run.before.ended_at if run.before is not None else None
    return run.job.ended if run.job is not None and run.job.gave_up else None


def _bucketed(done: int, shards: int) -> int:
    """Round the done shards down to a step, so that the status changes rarely."""
    step = max(shards // _PROGRESS_STEPS, 1) if shards > _PROGRESS_STEPS else 1
    return done if done == shards else done // step * step


def _verdict(observed: "InferenceObserved", run: _Run, pods: Verdict) -> Verdict:
    """Return the verdict of Complete: the first of these that applies.

    Complete, refused, failed, no slices, paused, queued, model failed, pods cannot run, scoring.
    """
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
    failures = [report.failure for report in observed.reports.values() if report.failure is not None]
    if failures:
        failure = failures[0]
        message = f"version {failure.version}: {failure.message}; {so_far}"
        return Verdict(False, Reason(failure.reason.value), message, stalled=not may_pass(failure.reason))
    if pods.reason in PODS_IN_TROUBLE:
        return pods
    cause = _last_words(observed, run.job)
    return Verdict(False, Reason.SCORING, f"{so_far}; {cause}" if cause else so_far)


def _queued(observed: "InferenceObserved", run: _Run) -> Verdict | None:
    """Return why Kueue does not let the Job run; None if it does, or if the spec names no queue."""
    if run.batch.queue_name is None or observed.queueing is None:
        return None
    namespace = observed.inference.metadata.namespace
    return queue_verdict(run.batch.queue_name, namespace, observed.queueing, run.job)


def _ready(observed: "InferenceObserved", run: _Run, verdict: Verdict) -> Verdict:
    """Return the verdict of Ready: a run that makes progress is healthy, although it is not complete."""
    if verdict.reason is Reason.SCALED_TO_ZERO:
        return Verdict(True, verdict.reason, verdict.message)
    if verdict.reason is not Reason.SCORING:
        return verdict
    started = run.done > 0 or any(pod.ready and not pod.terminating for pod in observed.pods)
    if not started:
        return Verdict(False, Reason.WAITING_FOR_REPLICAS, f"no pod is ready yet; {verdict.message}")
    return Verdict(True, verdict.reason, verdict.message)


def _given_up(observed: "InferenceObserved", job: JobView, so_far: str) -> Verdict:
    if job.gave_up == _DEADLINE:
        message = f"the run took longer than spec.batch.deadline; {so_far}; raise it and delete Job {job.key.name} to go on"
        return Verdict(False, Reason.DEADLINE_EXCEEDED, message, stalled=True)
    cause = _last_words(observed, job) or f"{job.said}; see the logs of Job {job.key.name}"
    return Verdict(False, Reason.SHARDS_FAILED, f"{so_far}; {cause}", stalled=True)


def _last_words(observed: "InferenceObserved", job: JobView | None) -> str:
    """Return the message of a failed pod whose shard is not done since; empty if there is none."""
    if job is None:
        return ""
    messages = {
        pod.shard: pod.last_words
        for pod in sorted(observed.pods, key=lambda pod: pod.key)
        if pod.last_words and pod.shard is not None and pod.shard not in job.done and pod.job == job.key.name
    }
    if not messages:
        return ""
    # A shard that has failed permanently explains more than one that is retried.
    shard = min(messages, key=lambda index: (index not in job.failed, index))
    suffix = f" ({len(messages) - 1} other shards failed too)" if len(messages) > 1 else ""
    return f"shard {shard} failed{suffix}: {messages[shard]}"


def _events(before: InferenceStatus, after: InferenceStatus) -> tuple[Event, ...]:
    events: list[Event] = []
    old, new = _complete(before), _complete(after)
    same_run = before.batch is not None and after.batch is not None and before.batch.run == after.batch.run
    if (
        new is not None
        and new.reason in _EVENT_REASONS
        and not (same_run and old is not None and old.reason == new.reason)
    ):
        kind = EventType.NORMAL if new.reason == Reason.BATCH_COMPLETE else EventType.WARNING
        events.append(Event(kind, new.reason, new.message))
    events += placement_events(before.conditions, after.conditions)
    events += override_events(before.conditions, after.conditions)
    return tuple(events)


def _complete(status: InferenceStatus) -> ObservedCondition | None:
    return next(
        (condition for condition in status.conditions if condition.type == ConditionType.COMPLETE.value), None
    )


def _requeue(observed: "InferenceObserved", run: _Run) -> timedelta | None:
    if (observed.refusal is not None or _without_kueue(observed)) and not run.complete:
        return _FAILURE_REQUEUE
    if run.complete or (run.job is not None and run.job.finished):
        return None
    if run.before is not None and run.before.ended_at is not None:
        return _RESUMED_REQUEUE
    return _POLL_INTERVAL
