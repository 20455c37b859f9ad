"""Plan the pods behind a ModelAccess's pipelines: what to apply, what to delete, and why they do not answer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from tidegate.api.meta import ObjectKey
from tidegate.api.model_access import ModelAccess, Route
from tidegate.api.pipeline import Pipeline
from tidegate.api.reasons import Reason
from tidegate.planning import runner_ends
from tidegate.planning.config_maps import stale
from tidegate.planning.pipeline_plan import Callees, compile_pipeline
from tidegate.planning.plan import Deletion
from tidegate.planning.pods import PodView
from tidegate.planning.room import NodeRoom
from tidegate.planning.runner_ends import runner_verdict
from tidegate.planning.serving_status import PODS_IN_TROUBLE, Refusal, Verdict, pods_verdict
from tidegate.planning.swap_failures import Replica
from tidegate.resources.manifest import Manifest
from tidegate.resources.names import PIPELINE_LABEL, label_value
from tidegate.resources.pipeline import (
    pipeline_name,
    pipeline_objects,
    pipeline_selector,
    pipeline_source,
)
from tidegate.resources.serving import template_digest
from tidegate.resources.settings import ServingSettings
from tidegate_dataplane.contract import AgentReport

_FAILURE_REQUEUE: Final = timedelta(seconds=15)


@dataclass(frozen=True, slots=True)
class PipelinePods:
    """Observed pods of one route's pipeline."""

    pods: Sequence[PodView] = ()
    reports: Mapping[str, AgentReport] = field(default_factory=dict[str, AgentReport])
    config_maps: Sequence[Mapping[str, Any]] = ()
    refusal: Refusal | None = None
    rooms: Sequence[NodeRoom] = ()


@dataclass(frozen=True, slots=True)
class PipelinesObserved:
    """Inputs of `plan_pipelines`."""

    pods: Mapping[str, PipelinePods] = field(default_factory=dict[str, PipelinePods])
    """Observed pods by route."""
    callees: Callees = field(default_factory=Callees)
    children: Mapping[str, Sequence[Mapping[str, Any]]] = field(
        default_factory=dict[str, Sequence[Mapping[str, Any]]]
    )
    """Every child of the ModelAccess, of all routes, by kind."""
    gateway: str = ""


@dataclass(frozen=True, slots=True)
class Replicas:
    """Numbers of pods of a pipeline."""

    there: int
    ready: int


@dataclass(frozen=True, slots=True)
class PipelinesPlan:
    """Needs of the pipelines of one ModelAccess, and what keeps them from answering."""

    apply: tuple[Manifest, ...] = ()
    delete: tuple[Deletion, ...] = ()
    verdict: Verdict | None = None
    """None if every pipeline is as its spec asks."""
    ended: Verdict | None = None
    """The first exit of a pipeline's process lately; `verdict` may name a worse problem."""
    replicas: Mapping[str, Replicas] = field(default_factory=dict[str, Replicas])
    requeue_after: timedelta | None = None


def plan_pipelines(
    access: ModelAccess, observed: PipelinesObserved, settings: ServingSettings
) -> PipelinesPlan:
    """Return the children of every pipeline of `access`; delete those of removed routes.

    A pipeline that cannot be compiled, because a model is missing or does not fit, keeps what runs.
    """
    plans = [
        _plan_one(access, route, route.pipeline, observed, settings)
        for route in access.spec.routes
        if route.pipeline is not None
    ]
    problems = [plan.verdict for plan in plans if plan.verdict is not None]
    delays = [plan.requeue_after for plan in plans if plan.requeue_after is not None]
    return PipelinesPlan(
        apply=tuple(manifest for plan in plans for manifest in plan.apply),
        delete=(
            *(deletion for plan in plans for deletion in plan.delete),
            *_orphans(access, observed.children),
        ),
        verdict=next((problem for problem in problems if problem.stalled), problems[0] if problems else None),
        ended=next((plan.ended for plan in plans if plan.ended is not None), None),
        replicas={route: count for plan in plans for route, count in plan.replicas.items()},
        requeue_after=min(delays, default=None),
    )


def _plan_one(
    access: ModelAccess,
    route: Route,
    pipeline: Pipeline,
    observed: PipelinesObserved,
    settings: ServingSettings,
) -> PipelinesPlan:
    observed_pods = observed.pods.get(route.name, PipelinePods())
    alive = [pod for pod in observed_pods.pods if not pod.terminating]
    replicas = {route.name: Replicas(len(alive), sum(pod.ready for pod in alive))}
    compiled = compile_pipeline(access, route, pipeline, observed.callees, observed.gateway)
    if isinstance(compiled, Refusal):
        return PipelinesPlan(verdict=compiled.verdict(), replicas=replicas)
    objects = pipeline_objects(access, route.name, pipeline, compiled, settings)
    selector = pipeline_selector(access, route.name)
    pods = pods_verdict(
        observed_pods.pods, pipeline.replicas, template_digest(objects), selector, observed_pods.rooms
    )
    exit_verdict = _ended(route, observed_pods)
    verdict = (
        observed_pods.refusal.verdict()
        if observed_pods.refusal is not None
        else _failing(observed_pods) or _worst(pods, exit_verdict)
    )
    return PipelinesPlan(
        apply=objects,
        delete=stale(observed_pods.config_maps, observed_pods.pods, pipeline_source(access, compiled)),
        verdict=None if verdict.holds else _about(route, verdict),
        ended=None if exit_verdict is None else _about(route, exit_verdict),
        replicas=replicas,
        requeue_after=_requeue(observed_pods, exit_verdict),
    )


def _requeue(there: PipelinePods, ended: Verdict | None) -> timedelta | None:
    if ended is not None:
        return runner_ends.LOOK_AGAIN
    return _FAILURE_REQUEUE if there.refusal is not None else None


def _ended(route: Route, there: PipelinePods) -> Verdict | None:
    """Return the exit that an agent reports of a process that served, until its pod is ready again.

    The report lasts some seconds longer than the problem.
    """
    pods = [Replica(pod, there.reports.get(pod.uid)) for pod in _waiting(there)]
    return runner_verdict(pods, memory=f"spec.routes[{route.name}].pipeline.resources.memory")


def _worst(pods: Verdict, ended: Verdict | None) -> Verdict:
    """Return the exit if it explains why pods are not ready, else the pods' verdict.

    What keeps a pod from running at all lasts longer than the report of an exit.
    """
    if pods.holds or pods.reason in PODS_IN_TROUBLE:
        return pods
    return ended or pods


def _waiting(there: PipelinePods) -> list[PodView]:
    return [pod for pod in there.pods if not pod.terminating and not pod.ready]


def _failing(there: PipelinePods) -> Verdict | None:
    """Return the failure that an agent reports while its pod is not ready."""
    reports = (there.reports[pod.uid] for pod in _waiting(there) if pod.uid in there.reports)
    failure = next((report.failure for report in reports if report.failure is not None), None)
    if failure is None:
        return None
    return Refusal(Reason(failure.reason.value), failure.message, stalled=False).verdict()


def _about(route: Route, verdict: Verdict) -> Verdict:
    return Verdict(
        verdict.holds, verdict.reason, f"pipeline of route {route.name}: {verdict.message}", verdict.stalled
    )


def _orphans(
    access: ModelAccess, children: Mapping[str, Sequence[Mapping[str, Any]]]
) -> tuple[Deletion, ...]:
    """Return deletions of the children of removed routes; their pods finish the requests in flight."""
    desired = {
        label_value(pipeline_name(access, route.name))
        for route in access.spec.routes
        if route.pipeline is not None
    }
    return tuple(
        Deletion(
            kind,
            ObjectKey(body["metadata"]["namespace"], body["metadata"]["name"]),
            body["metadata"]["uid"],
        )
        for kind, bodies in children.items()
        for body in bodies
        if (body["metadata"].get("labels") or {}).get(PIPELINE_LABEL) not in desired
        and any(
            owner.get("uid") == access.metadata.uid for owner in body["metadata"].get("ownerReferences") or ()
        )
    )
