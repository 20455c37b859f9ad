"""Plan a FeatureCompute: compute its compiled plan, its objects and its status from an observation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from tidegate.api.conditions import ConditionType, ObservedCondition, merge
from tidegate.api.feature_compute import FeatureCompute, FeatureComputeStatus
from tidegate.api.inference import Tensor
from tidegate.api.reasons import Reason
from tidegate.errors import InvalidSpecError
from tidegate.planning import runner_ends
from tidegate.planning.config_maps import stale
from tidegate.planning.feature_plan import compile_plan
from tidegate.planning.plan import Event, EventType, Plan
from tidegate.planning.pods import PodView
from tidegate.planning.proxies import LOOK_AGAIN, ProxyView, answering_verdict
from tidegate.planning.room import NodeRoom
from tidegate.planning.runner_ends import runner_events, runner_verdict
from tidegate.planning.serving_status import (
    PODS_IN_TROUBLE,
    Refusal,
    Verdict,
    condition,
    pods_verdict,
    selector_text,
    standing,
)
from tidegate.planning.swap_failures import Replica
from tidegate.resources.feature_compute import (
    features_objects,
    features_selector,
    features_source,
    features_state,
)
from tidegate.resources.serving import template_digest
from tidegate.resources.settings import ServingSettings
from tidegate_dataplane.contract import AgentReport, FeaturePlan

_LOADING_REQUEUE: Final = timedelta(seconds=1)
_UNREACHABLE_REQUEUE: Final = timedelta(seconds=3)
_FAILURE_REQUEUE: Final = timedelta(seconds=15)


@dataclass(frozen=True, slots=True)
class FeaturesObserved:
    """Inputs of `plan_features`."""

    features: FeatureCompute
    now: datetime
    pods: Sequence[PodView] = ()
    reports: Mapping[str, AgentReport] = field(default_factory=dict[str, AgentReport])
    """Reports of agents by pod uid; a pod whose agent did not answer is absent."""
    config_maps: Sequence[Mapping[str, Any]] = ()
    proxies: Sequence[ProxyView] | None = None
    """None if no xDS server answered."""
    refusal: Refusal | None = None
    """Why a child cannot be applied as planned: a quota, an admission policy, a name that is taken."""
    rooms: Sequence[NodeRoom] = ()
    """The nodes with the most free of a resource that an unschedulable pod lacks."""


def plan_features(observed: FeaturesObserved, settings: ServingSettings) -> Plan:
    """Return the objects and the status that bring a FeatureCompute towards its spec.

    A changed plan means new pods, one after the other, because every replica of one answer must agree on it;
    a plan that does not compile leaves what runs as it is.
    """
    features = observed.features
    try:
        plan = compile_plan(features)
    except InvalidSpecError as error:
        return _refused(observed, str(error))
    source = features_source(features, plan)
    start = features_state(features, plan, settings).to_json()
    pods = [pod for pod in observed.pods if pod.reachable and pod.source == source]
    reports = [observed.reports[pod.uid] for pod in pods if pod.uid in observed.reports]
    sources = _sources_verdict(features, pods, reports)
    objects = features_objects(features, plan, settings, start)
    availability = pods_verdict(
        observed.pods,
        features.spec.replicas,
        template_digest(objects),
        features_selector(features),
        observed.rooms,
    )
    # Any generation will do: the spec does not affect routing.
    published = answering_verdict(observed.proxies, 0)
    exit_verdict = runner_verdict([Replica(pod, observed.reports.get(pod.uid)) for pod in pods])
    status = _status(observed, plan, _Verdicts(sources, availability, published, exit_verdict))
    return Plan(
        apply=objects,
        delete=stale(observed.config_maps, observed.pods, source),
        status=status.dump(),
        events=(
            *_events(features.status, status),
            *runner_events(features.status.conditions, status.conditions, exit_verdict),
        ),
        requeue_after=_requeue(observed, sources, pods, reports)
        or _unpublished(availability, published)
        or (runner_ends.LOOK_AGAIN if exit_verdict is not None else None),
    )


@dataclass(frozen=True, slots=True)
class _Verdicts:
    """Verdicts that Ready is derived from."""

    sources: Verdict
    pods: Verdict
    published: Verdict
    """Whether the gateways have its endpoints."""
    ended: Verdict | None
    """A pod's process that exited lately."""


def _refused(observed: FeaturesObserved, message: str) -> Plan:
    features = observed.features
    generation = features.metadata.generation
    verdict = Verdict(False, Reason.PLAN_INVALID, message, stalled=True)
    conditions = (*standing(verdict, generation), condition(ConditionType.PLAN_COMPILED, verdict, generation))
    merged = merge(features.status.conditions, conditions, observed.now)
    alive = [pod for pod in observed.pods if not pod.terminating]
    status = features.status.model_copy(
        update={
            "observed_generation": generation,
            "replicas": len(alive),
            "ready_replicas": sum(pod.ready for pod in alive),
            "selector": selector_text(features_selector(features)),
            "conditions": tuple(ObservedCondition.model_validate(item) for item in merged),
        }
    )
    return Plan(status=status.dump(), events=_events(features.status, status))


def _sources_verdict(
    features: FeatureCompute, pods: Sequence[PodView], reports: Sequence[AgentReport]
) -> Verdict:
    if features.spec.replicas == 0:
        return Verdict(False, Reason.SCALED_TO_ZERO, "spec.replicas is 0, no source is read")
    failure = next((report.failure for report in reports if report.failure is not None), None)
    if failure is not None:
        return Verdict(False, Reason.SOURCE_FAILED, f"{failure.reason.value}: {failure.message}")
    ready_count = sum(report.serving is not None for report in reports)
    if pods and ready_count == len(pods):
        return Verdict(True, Reason.SOURCES_READY, "every replica has read every source")
    return Verdict(
        False, Reason.SOURCES_LOADING, f"{ready_count} of {len(pods)} replicas have read their sources"
    )


def _status(observed: FeaturesObserved, plan: FeaturePlan, verdicts: _Verdicts) -> FeatureComputeStatus:
    features = observed.features
    generation = features.metadata.generation
    compiled = Verdict(True, Reason.PLAN_COMPILED, f"{len(plan.features)} features, plan {plan.hash[:12]}")
    conditions = (
        *standing(_ready_verdict(observed, verdicts), generation),
        condition(ConditionType.PLAN_COMPILED, compiled, generation),
        condition(ConditionType.SOURCES_READY, verdicts.sources, generation),
        condition(ConditionType.ENDPOINTS_PUBLISHED, verdicts.published, generation),
    )
    merged = merge(features.status.conditions, conditions, observed.now)
    alive = [pod for pod in observed.pods if not pod.terminating]
    return FeatureComputeStatus(
        observed_generation=generation,
        plan_hash=plan.hash,
        outputs=tuple(Tensor.model_validate(output.model_dump()) for output in plan.outputs),
        replicas=len(alive),
        ready_replicas=sum(pod.ready for pod in alive),
        selector=selector_text(features_selector(features)),
        conditions=tuple(ObservedCondition.model_validate(item) for item in merged),
    )


def _ready_verdict(observed: FeaturesObserved, verdicts: _Verdicts) -> Verdict:
    sources, pods, published = verdicts.sources, verdicts.pods, verdicts.published
    if observed.refusal is not None:
        return observed.refusal.verdict()
    if sources.reason is Reason.SOURCE_FAILED and not pods.holds:
        return sources
    if pods.reason not in PODS_IN_TROUBLE and verdicts.ended is not None:
        return verdicts.ended
    if not pods.holds or pods.reason is Reason.SCALED_TO_ZERO:
        return pods
    return pods if published.holds else published


def _events(before: FeatureComputeStatus, after: FeatureComputeStatus) -> tuple[Event, ...]:
    """Return events for a plan that does not compile, and for a source that begins to fail."""
    previous_states = {item.type: (item.status, item.message) for item in before.conditions}
    return tuple(
        Event(EventType.WARNING, item.reason, item.message)
        for item in after.conditions
        if (item.type == ConditionType.PLAN_COMPILED.value and item.status.value == "False")
        or (item.type == ConditionType.SOURCES_READY.value and item.reason == Reason.SOURCE_FAILED.value)
        if previous_states.get(item.type) != (item.status, item.message)
    )


def _requeue(
    observed: FeaturesObserved, sources: Verdict, pods: Sequence[PodView], reports: Sequence[AgentReport]
) -> timedelta | None:
    if observed.refusal is not None:
        return _FAILURE_REQUEUE  # the object that holds the name or the quota does not wake us
    if sources.holds or not pods:
        return None
    if sources.reason is Reason.SOURCE_FAILED:
        return _FAILURE_REQUEUE
    return _LOADING_REQUEUE if any(report.serving is None for report in reports) else _UNREACHABLE_REQUEUE


def _unpublished(pods: Verdict, published: Verdict) -> timedelta | None:
    serving = pods.holds and pods.reason is not Reason.SCALED_TO_ZERO
    return LOOK_AGAIN if serving and not published.holds else None
