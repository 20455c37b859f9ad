"""Plan the pods behind a ModelAccess's pipelines: what to apply, what to delete, and why they do not answer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from tidegate.api.meta import ObjectKey
from tidegate.api.model_access import ModelAccess, Route
from tidegate.api.pipeline import PipelineSpec
from tidegate.api.reasons import Reason
from tidegate.planning.access.pipeline_plan import Callees, compile_pipeline
from tidegate.planning.inference.deployments import delete_stale
from tidegate.planning.inference.node_resources import NodeResources
from tidegate.planning.inference.serving_status import (
    POD_FAILURE_REASONS,
    RUNNER_REQUEUE,
    PlanRefusal,
    Verdict,
    judge_pods,
    judge_runners,
)
from tidegate.planning.inference.swap_failures import ObservedReplica
from tidegate.planning.plan import ObjectDeletion
from tidegate.planning.pods import PodView
from tidegate.resources.manifest import Manifest
from tidegate.resources.names import PIPELINE_LABEL, to_label_value
from tidegate.resources.pipeline import (
    build_pipeline_objects,
    hash_pipeline_source,
    make_pipeline_name,
    make_pipeline_selector,
)
from tidegate.resources.serving import find_template_hash
from tidegate.resources.settings import ServingSettings
from tidegate_dataplane.contract import AgentReport

_FAILURE_REQUEUE: Final = timedelta(seconds=15)


@dataclass(frozen=True, slots=True)
class PipelinePods:
    """Observed pods of one route's pipeline."""

    pods: Sequence[PodView] = ()
    reports: Mapping[str, AgentReport] = field(default_factory=dict[str, AgentReport])
    config_maps: Sequence[Mapping[str, Any]] = ()
    refusal: PlanRefusal | None = None
    freest_nodes: Sequence[NodeResources] = ()


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


@dataclass(frozen=True, slots=True)
class PipelineReplicas:
    """Numbers of pods of a pipeline."""

    total: int
    ready: int


@dataclass(frozen=True, slots=True)
class PipelinesPlan:
    """Needs of the pipelines of one ModelAccess, and what keeps them from answering."""

    apply: tuple[Manifest, ...] = ()
    delete: tuple[ObjectDeletion, ...] = ()
    verdict: Verdict | None = None
    """None if every pipeline is as its spec asks."""
    exit_verdict: Verdict | None = None
    """The first exit of a pipeline's process lately; `verdict` may name a worse problem."""
    replicas: Mapping[str, PipelineReplicas] = field(default_factory=dict[str, PipelineReplicas])
    requeue_after: timedelta | None = None


def plan_pipelines(
    access: ModelAccess, observed: PipelinesObserved, settings: ServingSettings
) -> PipelinesPlan:
    """Return the children of every pipeline of `access`; delete those of removed routes.

    A pipeline that cannot be compiled, because a model is missing or does not fit, keeps what runs, unless its features are
    not shared with its namespace any more.
    """
    plans = [
        _plan_pipeline(access, route, route.pipeline, observed, settings)
        for route in access.spec.routes
        if route.pipeline is not None
    ]
    problems = [plan.verdict for plan in plans if plan.verdict is not None]
    delays = [plan.requeue_after for plan in plans if plan.requeue_after is not None]
    return PipelinesPlan(
        apply=tuple(manifest for plan in plans for manifest in plan.apply),
        delete=(
            *(deletion for plan in plans for deletion in plan.delete),
            *_delete_orphans(access, observed),
        ),
        verdict=next((problem for problem in problems if problem.stalled), problems[0] if problems else None),
        exit_verdict=next((plan.exit_verdict for plan in plans if plan.exit_verdict is not None), None),
        replicas={route: count for plan in plans for route, count in plan.replicas.items()},
        requeue_after=min(delays, default=None),
    )


def _plan_pipeline(
    access: ModelAccess,
    route: Route,
    pipeline: PipelineSpec,
    observed: PipelinesObserved,
    settings: ServingSettings,
) -> PipelinesPlan:
    observed_pods = observed.pods.get(route.name, PipelinePods())
    alive = [pod for pod in observed_pods.pods if not pod.terminating]
    replicas = {route.name: PipelineReplicas(len(alive), sum(pod.ready for pod in alive))}
    compiled = compile_pipeline(access, route, pipeline, observed.callees, settings.gateway)
    if isinstance(compiled, PlanRefusal):
        return PipelinesPlan(verdict=compiled.to_verdict(), replicas=replicas)
    objects = build_pipeline_objects(access, route.name, pipeline, compiled, settings)
    selector = make_pipeline_selector(access, route.name)
    pods = judge_pods(
        observed_pods.pods,
        pipeline.replicas,
        find_template_hash(objects),
        selector,
        observed_pods.freest_nodes,
    )
    exit_verdict = _judge_exits(route, observed_pods)
    verdict = (
        observed_pods.refusal.to_verdict()
        if observed_pods.refusal is not None
        else _judge_failure(observed_pods) or _choose_verdict(pods, exit_verdict)
    )
    return PipelinesPlan(
        apply=objects,
        delete=delete_stale(
            observed_pods.config_maps, observed_pods.pods, hash_pipeline_source(access, compiled)
        ),
        verdict=None if verdict.holds else _prefix_route(route, verdict),
        exit_verdict=None if exit_verdict is None else _prefix_route(route, exit_verdict),
        replicas=replicas,
        requeue_after=_compute_requeue(observed_pods, exit_verdict),
    )


def _compute_requeue(observed: PipelinePods, exit_verdict: Verdict | None) -> timedelta | None:
    if exit_verdict is not None:
        return RUNNER_REQUEUE
    return _FAILURE_REQUEUE if observed.refusal is not None else None


def _judge_exits(route: Route, observed: PipelinePods) -> Verdict | None:
    """Return the exit that an agent reports of a process that served, until its pod is ready again.

    The report lasts some seconds longer than the problem.
    """
    pods = [ObservedReplica(pod, observed.reports.get(pod.uid)) for pod in _list_unready_pods(observed)]
    return judge_runners(pods, memory=f"spec.routes[{route.name}].pipeline.resources.memory")


def _choose_verdict(pods: Verdict, exit_verdict: Verdict | None) -> Verdict:
    """Return the exit if it explains why pods are not ready, else the pods' verdict.

    What keeps a pod from running at all lasts longer than the report of an exit.
    """
    if pods.holds or pods.reason in POD_FAILURE_REASONS:
        return pods
    return exit_verdict or pods


def _list_unready_pods(observed: PipelinePods) -> list[PodView]:
    return [pod for pod in observed.pods if not pod.terminating and not pod.ready]


def _judge_failure(observed: PipelinePods) -> Verdict | None:
    """Return the failure that an agent reports while its pod is not ready."""
    reports = (
        observed.reports[pod.uid] for pod in _list_unready_pods(observed) if pod.uid in observed.reports
    )
    failure = next((report.failure for report in reports if report.failure is not None), None)
    if failure is None:
        return None
    return PlanRefusal(Reason(failure.reason.value), failure.message, stalled=False).to_verdict()


def _prefix_route(route: Route, verdict: Verdict) -> Verdict:
    return Verdict(
        verdict.holds, verdict.reason, f"pipeline of route {route.name}: {verdict.message}", verdict.stalled
    )


def _delete_orphans(access: ModelAccess, observed: PipelinesObserved) -> tuple[ObjectDeletion, ...]:
    """Return deletions of the children of removed routes, and of those whose features are withheld.

    Their pods finish the requests in flight.
    """
    desired = {
        to_label_value(make_pipeline_name(access, route.name))
        for route in access.spec.routes
        if route.pipeline is not None and route.pipeline.features not in observed.callees.withheld
    }
    return tuple(
        ObjectDeletion(
            kind,
            ObjectKey(body["metadata"]["namespace"], body["metadata"]["name"]),
            body["metadata"]["uid"],
        )
        for kind, bodies in observed.children.items()
        for body in bodies
        if (body["metadata"].get("labels") or {}).get(PIPELINE_LABEL) not in desired
        and any(
            owner.get("uid") == access.metadata.uid for owner in body["metadata"].get("ownerReferences") or ()
        )
    )
