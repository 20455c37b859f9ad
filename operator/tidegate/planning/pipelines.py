"""The pods behind a ModelAccess's pipelines: what is to be there, what is to go, and what keeps them from answering."""

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

_FAILING: Final = timedelta(seconds=15)


@dataclass(frozen=True, slots=True)
class PipelinePods:
    """What is there of one route's pipeline."""

    pods: Sequence[PodView] = ()
    reports: Mapping[str, AgentReport] = field(default_factory=dict[str, AgentReport])
    config_maps: Sequence[Mapping[str, Any]] = ()
    refusal: Refusal | None = None
    rooms: Sequence[NodeRoom] = ()


@dataclass(frozen=True, slots=True)
class PipelinesObserved:
    """Everything that the pipelines of one ModelAccess are planned from."""

    pods: Mapping[str, PipelinePods] = field(default_factory=dict[str, PipelinePods])
    """By route."""
    callees: Callees = field(default_factory=Callees)
    children: Mapping[str, Sequence[Mapping[str, Any]]] = field(
        default_factory=dict[str, Sequence[Mapping[str, Any]]]
    )
    """Every child of the ModelAccess, of whatever route, by kind."""
    gateway: str = ""


@dataclass(frozen=True, slots=True)
class Replicas:
    """How many pods a pipeline has."""

    there: int
    ready: int


@dataclass(frozen=True, slots=True)
class PipelinesPlan:
    """What the pipelines of one ModelAccess need, and what keeps them from it."""

    apply: tuple[Manifest, ...] = ()
    delete: tuple[Deletion, ...] = ()
    verdict: Verdict | None = None
    """None when every pipeline is as its spec asks."""
    ended: Verdict | None = None
    """The first process of a pipeline that ended of late; `verdict` may name something worse."""
    replicas: Mapping[str, Replicas] = field(default_factory=dict[str, Replicas])
    requeue_after: timedelta | None = None


def plan_pipelines(
    access: ModelAccess, observed: PipelinesObserved, settings: ServingSettings
) -> PipelinesPlan:
    """The children of every pipeline of `access`; those of routes that are gone go.

    A pipeline that cannot be compiled, since a model is not there or does not fit, leaves what runs as it is.
    """
    plans = [
        _plan_one(access, route, route.pipeline, observed, settings)
        for route in access.spec.routes
        if route.pipeline is not None
    ]
    troubles = [plan.verdict for plan in plans if plan.verdict is not None]
    waits = [plan.requeue_after for plan in plans if plan.requeue_after is not None]
    return PipelinesPlan(
        apply=tuple(manifest for plan in plans for manifest in plan.apply),
        delete=(*(one for plan in plans for one in plan.delete), *_orphans(access, observed.children)),
        verdict=next((one for one in troubles if one.stalled), troubles[0] if troubles else None),
        ended=next((plan.ended for plan in plans if plan.ended is not None), None),
        replicas={route: count for plan in plans for route, count in plan.replicas.items()},
        requeue_after=min(waits, default=None),
    )


def _plan_one(
    access: ModelAccess,
    route: Route,
    pipeline: Pipeline,
    observed: PipelinesObserved,
    settings: ServingSettings,
) -> PipelinesPlan:
    there = observed.pods.get(route.name, PipelinePods())
    alive = [pod for pod in there.pods if not pod.terminating]
    replicas = {route.name: Replicas(len(alive), sum(pod.ready for pod in alive))}
    compiled = compile_pipeline(access, route, pipeline, observed.callees, observed.gateway)
    if isinstance(compiled, Refusal):
        return PipelinesPlan(verdict=compiled.verdict(), replicas=replicas)
    objects = pipeline_objects(access, route.name, pipeline, compiled, settings)
    selector = pipeline_selector(access, route.name)
    pods = pods_verdict(there.pods, pipeline.replicas, template_digest(objects), selector, there.rooms)
    ended = _ended(route, there)
    verdict = there.refusal.verdict() if there.refusal is not None else _failing(there) or _worst(pods, ended)
    return PipelinesPlan(
        apply=objects,
        delete=stale(there.config_maps, there.pods, pipeline_source(access, compiled)),
        verdict=None if verdict.holds else _about(route, verdict),
        ended=None if ended is None else _about(route, ended),
        replicas=replicas,
        requeue_after=_requeue(there, ended),
    )


def _requeue(there: PipelinePods, ended: Verdict | None) -> timedelta | None:
    if ended is not None:
        return runner_ends.LOOK_AGAIN
    return _FAILING if there.refusal is not None else None


def _ended(route: Route, there: PipelinePods) -> Verdict | None:
    """What an agent says of a process that ended while it served, until its pod is ready again.

    The report outlives the rest of the pod by some seconds, in which nothing is amiss any more.
    """
    pods = [Replica(pod, there.reports.get(pod.uid)) for pod in _waiting(there)]
    return runner_verdict(pods, memory=f"spec.routes[{route.name}].pipeline.resources.memory")


def _worst(pods: Verdict, ended: Verdict | None) -> Verdict:
    """An end explains that pods are not ready, and nothing else: what keeps a pod from running lasts longer than its report."""
    if pods.holds or pods.reason in PODS_IN_TROUBLE:
        return pods
    return ended or pods


def _waiting(there: PipelinePods) -> list[PodView]:
    return [pod for pod in there.pods if not pod.terminating and not pod.ready]


def _failing(there: PipelinePods) -> Verdict | None:
    """What an agent says that it cannot do, while its pod is not ready."""
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
    """The children of pipelines whose routes are gone; what their pods still answer, they finish."""
    wanted = {
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
        if (body["metadata"].get("labels") or {}).get(PIPELINE_LABEL) not in wanted
        and any(
            one.get("uid") == access.metadata.uid for one in body["metadata"].get("ownerReferences") or ()
        )
    )
