"""Plan the backfill of a FeatureCompute: one Job per run, which continues where an earlier one stopped, and its progress."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from tidegate.api.backfill import BackfillSpec
from tidegate.api.batch import BatchProgress
from tidegate.api.conditions import Condition, ConditionType, ObservedCondition
from tidegate.api.feature_compute import FeatureCompute
from tidegate.api.reasons import Reason
from tidegate.planning.batch.features import FeatureRows, find_row_problems
from tidegate.planning.batch.jobs import JobView
from tidegate.planning.batch.sharded_run import ShardedRun, select_job
from tidegate.planning.inference.deployments import delete_stale
from tidegate.planning.inference.node_resources import NodeResources
from tidegate.planning.inference.serving_status import (
    POD_FAILURE_REASONS,
    PlanRefusal,
    Verdict,
    judge_pods,
    make_condition,
)
from tidegate.planning.plan import Event, EventType, ObjectDeletion
from tidegate.planning.pods import PodView
from tidegate.resources.backfill import (
    BACKFILL_PATH,
    build_backfill_objects,
    make_backfill_run,
    make_backfill_selector,
)
from tidegate.resources.batch_features import ShardFeatures
from tidegate.resources.batch_run import locate_run_folder
from tidegate.resources.manifest import Manifest
from tidegate.resources.names import SOURCE_LABEL
from tidegate.resources.serving import read_template_hash
from tidegate.resources.settings import ServingSettings
from tidegate_dataplane.contract import FeaturePlan

_REFUSED_REQUEUE: Final = timedelta(seconds=30)
_EVENT_REASONS: Final = frozenset(
    {Reason.BACKFILL_COMPLETE, Reason.SHARDS_FAILED, Reason.DEADLINE_EXCEEDED, Reason.PLAN_INVALID}
)


@dataclass(frozen=True, slots=True)
class BackfillChildren:
    """The Jobs of a backfill, and what belongs to them."""

    jobs: Sequence[JobView] = ()
    pods: Sequence[PodView] = ()
    config_maps: Sequence[Mapping[str, Any]] = ()
    freest_nodes: Sequence[NodeResources] = ()
    """The nodes with the most free of a resource that an unschedulable pod lacks."""
    refusal: PlanRefusal | None = None
    """Why the Job, or what belongs to it, cannot be applied."""


@dataclass(frozen=True, slots=True)
class BackfillPlan:
    """What brings a backfill to its end; the default is that of a FeatureCompute without one."""

    apply: tuple[Manifest, ...] = ()
    delete: tuple[ObjectDeletion, ...] = ()
    progress: BatchProgress | None = None
    condition: Condition | None = None
    events: tuple[Event, ...] = ()
    requeue_after: timedelta | None = None


def plan_backfill(
    features: FeatureCompute,
    plan: FeaturePlan,
    children: BackfillChildren,
    settings: ServingSettings,
) -> BackfillPlan:
    """Return the Job and the progress of `spec.backfill`; a complete run needs no Job."""
    backfill = features.spec.backfill
    if backfill is None:
        return BackfillPlan(delete=_delete_old(children.jobs, children, source=""))
    rows = FeatureRows(
        path=BACKFILL_PATH,
        input_path=f"{BACKFILL_PATH}.input",
        compute=features,
        event_time=backfill.event_time,
        sources=backfill.sources,
        columns=backfill.input.columns,
    )
    problem = next(_find_problems(rows, backfill, plan), None)
    if problem is not None:
        # Pods that run stay: they compute what the spec asked for before.
        if any(not job.deleting for job in children.jobs):
            problem = f"{problem}; its last Job goes on: remove {BACKFILL_PATH} to stop it"
        verdict = Verdict(False, Reason.PLAN_INVALID, problem, stalled=True)
        return _report_verdict(features, features.status.backfill, verdict)
    shards = ShardFeatures(
        rows.make_order(plan), features.spec.resources.memory, features.spec.table_storage or ""
    )
    objects = build_backfill_objects(features, backfill, shards, settings)
    job: Any = objects[-1]
    run = _find_run(features, backfill, plan, children.jobs, job["metadata"]["name"])
    progress = run.make_progress(_find_end(run))
    if run.complete:
        return _report_verdict(features, progress, _judge_complete(run))
    pods = judge_pods(
        children.pods,
        backfill.parallelism,
        read_template_hash(job["spec"]["template"]),
        make_backfill_selector(features),
        children.freest_nodes,
    )
    return replace(
        _report_verdict(features, progress, _judge_run(run, children, pods)),
        apply=objects if run.can_start else objects[:-1],
        delete=_delete_old(run.other_jobs, children, job["metadata"]["labels"][SOURCE_LABEL]),
        requeue_after=_REFUSED_REQUEUE if children.refusal is not None else None,
    )


def _report_verdict(
    features: FeatureCompute, progress: BatchProgress | None, verdict: Verdict
) -> BackfillPlan:
    """Return the plan with the condition of a verdict, and an Event if that is another one than before."""
    previous = _find_backfilled(features.status.conditions)
    recorded = features.status.backfill
    same_run = recorded is not None and progress is not None and recorded.run == progress.run
    is_known = previous is not None and previous.reason == verdict.reason and same_run
    if verdict.reason is Reason.PLAN_INVALID:
        is_known = previous is not None and previous.message == verdict.message
    kind = EventType.NORMAL if verdict.holds else EventType.WARNING
    is_event = verdict.reason in _EVENT_REASONS and not is_known
    return BackfillPlan(
        progress=progress,
        condition=make_condition(ConditionType.BACKFILLED, verdict, features.metadata.generation),
        events=(Event(kind, verdict.reason.value, verdict.message),) if is_event else (),
    )


def _find_problems(rows: FeatureRows, backfill: BackfillSpec, plan: FeaturePlan) -> Iterator[str]:
    """Yield what does not fit, with the path of the field."""
    yield from find_row_problems(rows, plan)
    inputs = [spec.name for spec in plan.inputs]
    for mapping in backfill.input.columns:
        if mapping.input not in inputs:
            yield (
                f"{rows.input_path}.columns[{mapping.input}]: no feature of {rows.compute_title} reads an input of that name; they "
                f"read {', '.join(inputs)}"
            )
    outputs = {output.name for output in plan.outputs}
    for name in backfill.output.keep:
        if name in outputs:
            yield (
                f"{rows.path}.output.keep: {name} is a feature of {rows.compute_title}, and all features are written: remove it, or "
                "rename the column"
            )


def _find_run(
    features: FeatureCompute,
    backfill: BackfillSpec,
    plan: FeaturePlan,
    jobs: Sequence[JobView],
    job_name: str,
) -> ShardedRun:
    name, progress = make_backfill_run(features, backfill, plan.hash), features.status.backfill
    current, other_jobs = select_job(jobs, job_name)
    return ShardedRun(
        name=name,
        shards=backfill.shards,
        folder=locate_run_folder(backfill, name),
        plan_hash=plan.hash,
        recorded=progress if progress is not None and progress.run == name else None,
        job=current,
        other_jobs=other_jobs,
    )


def _find_end(run: ShardedRun) -> datetime | None:
    """Return when the run completed or failed; None while it runs."""
    if run.complete:
        return run.completed_at
    return run.job.ended_at if run.job is not None and run.job.failure_reason else None


def _judge_complete(run: ShardedRun) -> Verdict:
    message = f"all {run.shards} shards of run {run.name} are done; the rows with their features are in {run.folder}"
    return Verdict(True, Reason.BACKFILL_COMPLETE, message)


def _judge_run(run: ShardedRun, children: BackfillChildren, availability: Verdict) -> Verdict:
    """Return the verdict of a run that is not complete: failed, refused, paused, pods cannot run, or in progress."""
    so_far = run.describe_progress()
    failed = run.judge_failure(children.pods, BACKFILL_PATH)
    if failed is not None:
        return failed
    if children.refusal is not None:
        return children.refusal.to_verdict()
    if availability.reason is Reason.SCALED_TO_ZERO:
        message = f"{BACKFILL_PATH}.parallelism is 0; {so_far}, and the rest waits"
        return Verdict(False, Reason.SCALED_TO_ZERO, message)
    if availability.reason in POD_FAILURE_REASONS:
        return availability
    cause = run.describe_failures(children.pods)
    return Verdict(False, Reason.BACKFILLING, f"{so_far}; {cause}" if cause else so_far)


def _delete_old(
    jobs: Sequence[JobView], children: BackfillChildren, source: str
) -> tuple[ObjectDeletion, ...]:
    deleted = tuple(ObjectDeletion("Job", job.key, job.uid) for job in jobs if not job.deleting)
    return (*deleted, *delete_stale(children.config_maps, children.pods, source))


def _find_backfilled(conditions: Sequence[ObservedCondition]) -> ObservedCondition | None:
    return next((item for item in conditions if item.type == ConditionType.BACKFILLED.value), None)
