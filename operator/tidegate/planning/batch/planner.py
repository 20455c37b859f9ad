"""Plan an Inference with a batch: one Job per run, which continues where an earlier one stopped, and the status."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from tidegate.api.batch import BatchSpec
from tidegate.api.conditions import ConditionType, ObservedCondition, merge_conditions
from tidegate.api.inference import InferenceStatus, ModelVersions
from tidegate.api.reasons import Reason
from tidegate.planning.batch.features import refuse_memory, resolve_features
from tidegate.planning.batch.kueue import judge_queue
from tidegate.planning.batch.sharded_run import ShardedRun, select_job
from tidegate.planning.inference.deployments import delete_stale
from tidegate.planning.inference.observed import InferenceObserved
from tidegate.planning.inference.serving_status import (
    POD_FAILURE_REASONS,
    PlanRefusal,
    Verdict,
    format_selector,
    judge_pods,
    kstatus_conditions,
    make_condition,
    suggest_remedy,
)
from tidegate.planning.inference.side_conditions import (
    SideInputs,
    drop_side_conditions,
    make_side_conditions,
    make_side_events,
)
from tidegate.planning.inference.swap_failures import is_retryable
from tidegate.planning.plan import Event, EventType, ObjectDeletion, ReconcilePlan
from tidegate.resources.batch import build_batch_objects
from tidegate.resources.batch_features import ShardFeatures
from tidegate.resources.batch_run import find_progress, locate_run_folder, make_run_name
from tidegate.resources.inference import make_inference_selector
from tidegate.resources.manifest import Manifest
from tidegate.resources.names import SOURCE_LABEL
from tidegate.resources.serving import read_template_hash
from tidegate.resources.settings import ServingSettings
from tidegate_dataplane.contract import BATCH_PATH

_POLL_INTERVAL: Final = timedelta(seconds=15)
"""Nothing wakes the reconciler when an agent cannot fetch its model."""
_RESUMED_REQUEUE: Final = timedelta(seconds=1)
"""Of a resumed run: its number of pods follows from the status that is written now."""
_FAILURE_REQUEUE: Final = timedelta(seconds=30)
_EVENT_REASONS: Final = frozenset(
    {Reason.BATCH_COMPLETE, Reason.SHARDS_FAILED, Reason.DEADLINE_EXCEEDED, Reason.EVICTED}
)
"""Reasons that are Events too: ends of a run, and evictions by Kueue."""


def plan_batch(observed: InferenceObserved, batch: BatchSpec, settings: ServingSettings) -> ReconcilePlan:
    """Return the Job and the status that bring a run to its end; a complete run needs no Job."""
    inference = observed.inference
    features = resolve_features(inference, batch, observed.features)
    if isinstance(features, ShardFeatures):
        features = refuse_memory(features, observed.slice_resources) or features
    if isinstance(features, PlanRefusal):
        return _plan_without_features(observed, batch, features)
    objects = build_batch_objects(
        inference, batch, settings, observed.slice_resources, observed.replicas, features
    )
    job: Any = objects[-1]
    run = _find_run(observed, batch, job["metadata"]["name"], features)
    status = _build_status(observed, run, read_template_hash(job["spec"]["template"]))
    return ReconcilePlan(
        apply=_select_manifests(observed, run, objects),
        delete=_delete_old(observed, run, job["metadata"]["labels"][SOURCE_LABEL]),
        status=status.dump(),
        events=_list_events(inference.status, status),
        requeue_after=_compute_requeue(observed, run),
    )


def _plan_without_features(
    observed: InferenceObserved, batch: BatchSpec, refusal: PlanRefusal
) -> ReconcilePlan:
    """Return a status that says why the features are not known; pods that run stay, and a complete run is complete."""
    inference, generation = observed.inference, observed.inference.metadata.generation
    progress = find_progress(inference, batch)
    if progress is not None and progress.completed_at is not None:
        verdict = _judge_complete(progress.run, batch.shards, progress.output)
    else:
        verdict = refusal.to_verdict()
    conditions = (
        *kstatus_conditions(verdict, generation),
        make_condition(ConditionType.COMPLETE, verdict, generation),
    )
    alive = [pod for pod in observed.pods if not pod.terminating]
    merged = merge_conditions(inference.status.conditions, conditions, observed.now)
    status = inference.status.model_copy(
        update={
            "observed_generation": generation,
            "replicas": len(alive),
            "ready_replicas": sum(pod.ready for pod in alive),
            "conditions": tuple(ObservedCondition.model_validate(item) for item in merged),
        }
    )
    reported = _find_complete(inference.status)
    is_known = verdict.holds or (reported is not None and reported.message == verdict.message)
    return ReconcilePlan(
        status=status.dump(),
        events=() if is_known else (Event(EventType.WARNING, verdict.reason.value, verdict.message),),
        requeue_after=None if verdict.holds else _FAILURE_REQUEUE,
    )


def _find_run(
    observed: InferenceObserved, batch: BatchSpec, job_name: str, features: ShardFeatures | None
) -> ShardedRun:
    inference, progress = observed.inference, find_progress(observed.inference, batch)
    plan_hash = features.order.plan.hash if features is not None else None
    if progress is not None and progress.completed_at is not None:
        # A plan that changes later does not compute everything again; another spec.batch.run does.
        plan_hash = progress.plan_hash
    name = make_run_name(inference, batch, plan_hash)
    current, other_jobs = select_job(observed.jobs, job_name)
    return ShardedRun(
        name=name,
        shards=batch.shards,
        folder=locate_run_folder(batch, name),
        plan_hash=plan_hash,
        recorded=progress if progress is not None and progress.run == name else None,
        job=current,
        other_jobs=other_jobs,
    )


def _select_manifests(
    observed: InferenceObserved, run: ShardedRun, objects: Sequence[Manifest]
) -> tuple[Manifest, ...]:
    if run.complete or observed.template_unknown or _lacks_kueue(observed):
        return ()
    # The next Job needs the slices of the previous one.
    return tuple(objects) if run.can_start else tuple(objects[:-1])


def _lacks_kueue(observed: InferenceObserved) -> bool:
    """Return whether the spec names a queue and Kueue is not installed, so that no Job would ever start."""
    return observed.kueue is not None and not observed.kueue.installed


def _delete_old(observed: InferenceObserved, run: ShardedRun, source: str) -> tuple[ObjectDeletion, ...]:
    if run.complete or observed.template_unknown:
        return ()
    jobs = tuple(ObjectDeletion("Job", job.key, job.uid) for job in run.other_jobs if not job.deleting)
    return (*jobs, *delete_stale(observed.config_maps, observed.pods, source))


def _build_status(observed: InferenceObserved, run: ShardedRun, template: str) -> InferenceStatus:
    inference, generation = observed.inference, observed.inference.metadata.generation
    selector = make_inference_selector(inference)
    pods = judge_pods(
        observed.pods,
        observed.replicas,
        template,
        selector,
        observed.freest_nodes,
        remedy=suggest_remedy(inference),
    )
    verdict = _judge_run(observed, run, pods)
    side_inputs = SideInputs(inference, observed.placement, observed.overrides, pods, observed.replicas)
    conditions = (
        *kstatus_conditions(_judge_readiness(observed, run, verdict), generation),
        make_condition(ConditionType.COMPLETE, verdict, generation),
        *make_side_conditions(side_inputs),
    )
    previous = drop_side_conditions(side_inputs, inference.status.conditions)
    merged = merge_conditions(previous, conditions, observed.now)
    alive = [pod for pod in observed.pods if not pod.terminating]
    return InferenceStatus(
        observed_generation=generation,
        replicas=len(alive),
        ready_replicas=sum(pod.ready for pod in alive),
        selector=format_selector(selector),
        versions=ModelVersions(target=inference.spec.model.version),
        batch=run.make_progress(_find_end(observed, run)),
        conditions=tuple(ObservedCondition.model_validate(item) for item in merged),
    )


def _find_end(observed: InferenceObserved, run: ShardedRun) -> datetime | None:
    """Return when the run completed or failed; None while it runs.

    A failed run resumes as soon as its Job is another one.
    """
    if run.complete:
        return run.completed_at
    if observed.template_unknown:
        # The name of the Job depends on the resources of a slice, which are unknown now.
        return run.recorded.ended_at if run.recorded is not None else None
    return run.job.ended_at if run.job is not None and run.job.failure_reason else None


def _judge_run(observed: InferenceObserved, run: ShardedRun, pods: Verdict) -> Verdict:
    """Return the verdict of Complete: the first of these that applies.

    Complete, refused, failed, no slices, paused, queued, model failed, pods cannot run, scoring.
    """
    if run.complete:
        return _judge_complete(run.name, run.shards, run.folder)
    if observed.refusal is not None:
        return observed.refusal.to_verdict()
    so_far = run.describe_progress()
    failed = run.judge_failure(observed.pods, BATCH_PATH)
    if failed is not None:
        return failed
    placement = observed.placement
    if placement is not None and not placement.verdict.holds and observed.replicas == 0:
        return placement.verdict
    if observed.replicas == 0 and run.done_shards < run.shards:
        return Verdict(False, Reason.SCALED_TO_ZERO, f"spec.replicas is 0; {so_far}, and the rest waits")
    queued = _judge_queue(observed, run)
    if queued is not None:
        return replace(queued, message=f"{queued.message}; {so_far}")
    failures = [report.failure for report in observed.reports.values() if report.failure is not None]
    if failures:
        failure = failures[0]
        message = f"version {failure.version}: {failure.message}; {so_far}"
        return Verdict(False, Reason(failure.reason.value), message, stalled=not is_retryable(failure.reason))
    if pods.reason in POD_FAILURE_REASONS:
        return pods
    cause = run.describe_failures(observed.pods)
    return Verdict(False, Reason.SCORING, f"{so_far}; {cause}" if cause else so_far)


def _judge_complete(run: str, shards: int, folder: str) -> Verdict:
    message = f"all {shards} shards of run {run} are done; the results are in {folder}"
    return Verdict(True, Reason.BATCH_COMPLETE, message)


def _judge_queue(observed: InferenceObserved, run: ShardedRun) -> Verdict | None:
    """Return why Kueue does not let the Job run; None if it does, or if the spec names no queue."""
    batch = observed.inference.spec.batch
    if batch is None or batch.queue_name is None or observed.kueue is None:
        return None
    namespace = observed.inference.metadata.namespace
    return judge_queue(batch.queue_name, namespace, observed.kueue, run.job)


def _judge_readiness(observed: InferenceObserved, run: ShardedRun, verdict: Verdict) -> Verdict:
    """Return the verdict of Ready: a run that makes progress is healthy, although it is not complete."""
    if verdict.reason is Reason.SCALED_TO_ZERO:
        return Verdict(True, verdict.reason, verdict.message)
    if verdict.reason is not Reason.SCORING:
        return verdict
    started = run.done_shards > 0 or any(pod.ready and not pod.terminating for pod in observed.pods)
    if not started:
        return Verdict(False, Reason.WAITING_FOR_REPLICAS, f"no pod is ready yet; {verdict.message}")
    return Verdict(True, verdict.reason, verdict.message)


def _list_events(previous: InferenceStatus, current: InferenceStatus) -> tuple[Event, ...]:
    events: list[Event] = []
    old, new = _find_complete(previous), _find_complete(current)
    same_run = (
        previous.batch is not None and current.batch is not None and previous.batch.run == current.batch.run
    )
    if (
        new is not None
        and new.reason in _EVENT_REASONS
        and not (same_run and old is not None and old.reason == new.reason)
    ):
        kind = EventType.NORMAL if new.reason == Reason.BATCH_COMPLETE else EventType.WARNING
        events.append(Event(kind, new.reason, new.message))
    events += make_side_events(previous.conditions, current.conditions)
    return tuple(events)


def _find_complete(status: InferenceStatus) -> ObservedCondition | None:
    return next(
        (condition for condition in status.conditions if condition.type == ConditionType.COMPLETE.value), None
    )


def _compute_requeue(observed: InferenceObserved, run: ShardedRun) -> timedelta | None:
    if (observed.refusal is not None or _lacks_kueue(observed)) and not run.complete:
        return _FAILURE_REQUEUE
    if run.complete or (run.job is not None and run.job.finished):
        return None
    recorded = observed.inference.status.batch
    if recorded is not None and recorded.ended_at is not None:
        return _RESUMED_REQUEUE
    return _POLL_INTERVAL
