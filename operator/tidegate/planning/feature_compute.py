"""FeatureCompute: its compiled plan, its objects and its status, from what was observed."""

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

_LOADING: Final = timedelta(seconds=1)
_UNREACHABLE: Final = timedelta(seconds=3)
_FAILING: Final = timedelta(seconds=15)


@dataclass(frozen=True, slots=True)
class FeaturesObserved:
    """Everything that planning a FeatureCompute needs to know."""

    features: FeatureCompute
    now: datetime
    pods: Sequence[PodView] = ()
    reports: Mapping[str, AgentReport] = field(default_factory=dict[str, AgentReport])
    """What agents said, by pod uid; a pod whose agent did not answer is absent."""
    config_maps: Sequence[Mapping[str, Any]] = ()
    proxies: Sequence[ProxyView] | None = None
    """None when no xDS server answered."""
    refusal: Refusal | None = None
    """Why a child cannot be as planned (a quota, an admission policy, a name that is taken)."""
    rooms: Sequence[NodeRoom] = ()
    """Where most is free of what a pod lacks that no node takes."""


def plan_features(observed: FeaturesObserved, settings: ServingSettings) -> Plan:
    """The objects and the status that bring a FeatureCompute towards its spec.

    A changed plan means new pods, one after the other, since every replica of one answer must agree on it;
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
    there = pods_verdict(
        observed.pods,
        features.spec.replicas,
        template_digest(objects),
        features_selector(features),
        observed.rooms,
    )
    # No generation is asked for: its spec changes nothing in the routing.
    published = answering_verdict(observed.proxies, 0)
    ended = runner_verdict([Replica(pod, observed.reports.get(pod.uid)) for pod in pods])
    status = _status(observed, plan, _Verdicts(sources, there, published, ended))
    return Plan(
        apply=objects,
        delete=stale(observed.config_maps, observed.pods, source),
        status=status.dump(),
        events=(
            *_events(features.status, status),
            *runner_events(features.status.conditions, status.conditions, ended),
        ),
        requeue_after=_requeue(observed, sources, pods, reports)
        or _unpublished(there, published)
        or (runner_ends.LOOK_AGAIN if ended is not None else None),
    )


@dataclass(frozen=True, slots=True)
class _Verdicts:
    """What keeps a FeatureCompute from answering, part by part."""

    sources: Verdict
    pods: Verdict
    published: Verdict
    """Whether the gateways have its endpoints."""
    ended: Verdict | None
    """A process of a pod that ended of late."""


def _refused(observed: FeaturesObserved, message: str) -> Plan:
    features = observed.features
    generation = features.metadata.generation
    verdict = Verdict(False, Reason.PLAN_INVALID, message, stalled=True)
    said = (*standing(verdict, generation), condition(ConditionType.PLAN_COMPILED, verdict, generation))
    merged = merge(features.status.conditions, said, observed.now)
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
    there = sum(report.serving is not None for report in reports)
    if pods and there == len(pods):
        return Verdict(True, Reason.SOURCES_READY, "every replica has read every source")
    return Verdict(False, Reason.SOURCES_LOADING, f"{there} of {len(pods)} replicas have read their sources")


def _status(observed: FeaturesObserved, plan: FeaturePlan, verdicts: _Verdicts) -> FeatureComputeStatus:
    features = observed.features
    generation = features.metadata.generation
    compiled = Verdict(True, Reason.PLAN_COMPILED, f"{len(plan.features)} features, plan {plan.hash[:12]}")
    said = (
        *standing(_ready_verdict(observed, verdicts), generation),
        condition(ConditionType.PLAN_COMPILED, compiled, generation),
        condition(ConditionType.SOURCES_READY, verdicts.sources, generation),
        condition(ConditionType.ENDPOINTS_PUBLISHED, verdicts.published, generation),
    )
    merged = merge(features.status.conditions, said, observed.now)
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
    """Said when Stalled or a source's failure begins."""
    known = {item.type: (item.status, item.message) for item in before.conditions}
    return tuple(
        Event(EventType.WARNING, item.reason, item.message)
        for item in after.conditions
        if (item.type == ConditionType.PLAN_COMPILED.value and item.status.value == "False")
        or (item.type == ConditionType.SOURCES_READY.value and item.reason == Reason.SOURCE_FAILED.value)
        if known.get(item.type) != (item.status, item.message)
    )


def _requeue(
    observed: FeaturesObserved, sources: Verdict, pods: Sequence[PodView], reports: Sequence[AgentReport]
) -> timedelta | None:
    if observed.refusal is not None:
        return _FAILING  # whose name is taken, or whose quota is full, is not among the objects that wake us
    if sources.holds or not pods:
        return None
    if sources.reason is Reason.SOURCE_FAILED:
        return _FAILING
    return _LOADING if any(report.serving is None for report in reports) else _UNREACHABLE


def _unpublished(pods: Verdict, published: Verdict) -> timedelta | None:
    serving = pods.holds and pods.reason is not Reason.SCALED_TO_ZERO
    return LOOK_AGAIN if serving and not published.holds else None
