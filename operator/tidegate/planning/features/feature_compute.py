"""Plan a FeatureCompute: compute its compiled plan, its objects and its status from an observation."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from tidegate.api.conditions import ConditionType, ObservedCondition, merge_conditions
from tidegate.api.feature_compute import FeatureCompute
from tidegate.api.feature_status import MAX_DEFINITION_CHARS, FeatureComputeStatus
from tidegate.api.inference import TensorMetadata
from tidegate.api.meta import ObjectKey
from tidegate.api.reasons import Reason
from tidegate.api.shared_names import format_shared_name
from tidegate.errors import InvalidSpecError
from tidegate.planning.access.proxies import PROXY_REQUEUE, ProxyView, judge_endpoints
from tidegate.planning.features.backfill import BackfillChildren, BackfillPlan, plan_backfill
from tidegate.planning.features.freshness import (
    FRESHNESS_REQUEUE,
    SourceReadings,
    describe_reading,
    make_fresh_condition,
    make_watermarks,
)
from tidegate.planning.features.last_definitions import (
    CompiledFeatures,
    WrittenDefinitions,
    compile_features,
    write_definitions,
)
from tidegate.planning.features.shared_features import SharedFeatureError, list_shared_keys
from tidegate.planning.features.table_freshness import make_loaded_tables
from tidegate.planning.inference.deployments import delete_stale, delete_stale_ingesters
from tidegate.planning.inference.node_resources import NodeResources
from tidegate.planning.inference.reported_problems import make_transition_events
from tidegate.planning.inference.serving_status import (
    POD_FAILURE_REASONS,
    RUNNER_REQUEUE,
    PlanRefusal,
    Verdict,
    format_selector,
    judge_pods,
    judge_runners,
    kstatus_conditions,
    make_condition,
    runner_events,
)
from tidegate.planning.inference.swap_failures import ObservedReplica
from tidegate.planning.plan import Event, EventType, ReconcilePlan
from tidegate.planning.pods import PodView
from tidegate.resources.feature_compute import (
    build_features_objects,
    hash_features_source,
    make_features_selector,
    make_features_state,
)
from tidegate.resources.serving import find_template_hash
from tidegate.resources.settings import ServingSettings
from tidegate_dataplane.contract import AgentReport, FeaturePlan, StreamProblem, TableProblem

_LOADING_REQUEUE: Final = timedelta(seconds=1)
_UNREACHABLE_REQUEUE: Final = timedelta(seconds=3)
_FAILURE_REQUEUE: Final = timedelta(seconds=15)


@dataclass(frozen=True, slots=True)
class FeaturesPlan(ReconcilePlan):
    """What brings a FeatureCompute towards its spec; the children of its backfill are apart, since they may be refused alone."""

    backfill: BackfillPlan = field(default_factory=BackfillPlan)


@dataclass(frozen=True, slots=True)
class FeaturesObserved:
    """Inputs of `plan_features`."""

    features: FeatureCompute
    now: datetime
    pods: Sequence[PodView] = ()
    reports: Mapping[str, AgentReport] = field(default_factory=dict[str, AgentReport])
    """Reports of agents by pod uid; a pod whose agent did not answer is absent."""
    config_maps: Sequence[Mapping[str, Any]] = ()
    deployments: Sequence[Mapping[str, Any]] = ()
    """The Deployments of the pods and of ingesters."""
    proxies: Sequence[ProxyView] | None = None
    """None if no xDS server answered."""
    refusal: PlanRefusal | None = None
    """Why a child cannot be applied as planned: a quota, an admission policy, a name that is taken."""
    freest_nodes: Sequence[NodeResources] = ()
    """The nodes with the most free of a resource that an unschedulable pod lacks."""
    backfill: BackfillChildren = field(default_factory=BackfillChildren)
    origins: Mapping[ObjectKey, FeatureCompute] = field(default_factory=dict[ObjectKey, FeatureCompute])
    """The objects of list_shared_keys that exist, whether they share with the namespace or not."""


def plan_features(observed: FeaturesObserved, settings: ServingSettings) -> FeaturesPlan:
    """Return the objects and the status that bring a FeatureCompute towards its spec.

    A changed plan means new pods, one after the other, because every replica of one answer must agree on it;
    a plan that does not compile leaves what runs as it is.
    """
    try:
        compiled = compile_features(observed.features, observed.origins.get)
    except InvalidSpecError as error:
        return _refuse_plan(observed, _find_reason(error), str(error))
    features, plan = compiled.features, compiled.plan
    source = hash_features_source(features, plan)
    start = make_features_state(features, plan, settings).to_json()
    pods = [pod for pod in observed.pods if pod.is_reachable and pod.source == source]
    replicas = [ObservedReplica(pod, observed.reports.get(pod.uid)) for pod in pods]
    reports = [replica.report for replica in replicas if replica.report is not None]
    readings = SourceReadings(
        sources=tuple(stream.name for stream in plan.streams),
        tables=tuple(table.name for table in plan.tables if table.refresh is not None),
        replicas=replicas,
        desired_pods=features.spec.replicas,
    )
    sources = _judge_sources(features, pods, reports, describe_reading(readings))
    objects = build_features_objects(features, plan, settings, start)
    availability = judge_pods(
        observed.pods,
        features.spec.replicas,
        find_template_hash(objects),
        make_features_selector(features),
        observed.freest_nodes,
    )
    # Any generation will do: the spec does not affect routing.
    published = judge_endpoints(observed.proxies, 0)
    exit_verdict = judge_runners(replicas)
    verdicts = _FeatureVerdicts(sources, availability, published, exit_verdict)
    backfill = plan_backfill(features, plan, observed.backfill, settings)
    status = _build_status(observed, compiled, verdicts, readings, backfill)
    return FeaturesPlan(
        apply=objects,
        delete=(
            *delete_stale_ingesters(observed.deployments, observed.pods, source),
            *delete_stale(observed.config_maps, observed.pods, source),
        ),
        status=status.dump(),
        events=(
            *_list_events(features, status, plan),
            *runner_events(features.status.conditions, status.conditions, exit_verdict),
            *backfill.events,
        ),
        requeue_after=_compute_requeue(observed, sources, pods, reports)
        or _requeue_unpublished(availability, published)
        or (RUNNER_REQUEUE if exit_verdict is not None else None)
        or (FRESHNESS_REQUEUE if readings.can_age else None)
        or backfill.requeue_after,
        backfill=backfill,
    )


@dataclass(frozen=True, slots=True)
class _FeatureVerdicts:
    """Verdicts that Ready is derived from."""

    sources: Verdict
    pods: Verdict
    published: Verdict
    """Whether the gateways have its endpoints."""
    exited: Verdict | None
    """A pod's process that exited lately."""


def _find_reason(error: InvalidSpecError) -> Reason:
    return error.reason if isinstance(error, SharedFeatureError) else Reason.PLAN_INVALID


def _judge_plan(compiled: CompiledFeatures, definitions: WrittenDefinitions) -> Verdict:
    features, plan, error = compiled.features, compiled.plan, compiled.outdated
    if error is not None:
        names = " and ".join(_format_origins(compiled.last, features.key.namespace))
        message = (
            f"{error}; until then the last usable definition of {names} counts, in plan {plan.hash[:12]}"
        )
        return Verdict(False, _find_reason(error), message)
    message = f"{len(plan.outputs)} features{_describe_shared(features)}, plan {plan.hash[:12]}"
    if features.spec.store is not None and not plan.streams:
        message += "; spec.store is not used, because no feature reads events"
    if definitions.too_long:
        names = " and ".join(_format_origins(definitions.too_long, features.key.namespace))
        message += (
            f"; the definition of {names} is too long to keep, because a status has {MAX_DEFINITION_CHARS} characters of them: without "
            "its owner's object this plan does not compile, so use fewer of its features"
        )
    return Verdict(True, Reason.PLAN_COMPILED, message)


def _refuse_plan(observed: FeaturesObserved, reason: Reason, message: str) -> FeaturesPlan:
    features = observed.features
    generation = features.metadata.generation
    # What is absent may be created, and consent given, at any time.
    verdict = Verdict(False, reason, message, stalled=reason is Reason.PLAN_INVALID)
    conditions = (
        *kstatus_conditions(verdict, generation),
        make_condition(ConditionType.PLAN_COMPILED, verdict, generation),
    )
    merged = merge_conditions(features.status.conditions, conditions, observed.now)
    alive = [pod for pod in observed.pods if not pod.terminating]
    status = features.status.model_copy(
        update={
            "observed_generation": generation,
            "replicas": len(alive),
            "ready_replicas": sum(pod.ready for pod in alive),
            "selector": format_selector(make_features_selector(features)),
            "conditions": tuple(ObservedCondition.model_validate(item) for item in merged),
        }
    )
    return FeaturesPlan(status=status.dump(), events=_list_failures(features.status, status))


def _judge_sources(
    features: FeatureCompute, pods: Sequence[PodView], reports: Sequence[AgentReport], reading: str
) -> Verdict:
    """Return whether every pod has read its sources; `reading` describes how far one is that has not."""
    if features.spec.replicas == 0:
        return Verdict(False, Reason.SCALED_TO_ZERO, "spec.replicas is 0, no source is read")
    failure = next((report.failure for report in reports if report.failure is not None), None)
    if failure is not None:
        return Verdict(False, Reason.SOURCE_FAILED, f"{failure.reason.value}: {failure.message}")
    ready_count = sum(report.serving is not None for report in reports)
    if pods and ready_count == len(pods):
        return Verdict(True, Reason.SOURCES_READY, "every replica has read every source")
    message = f"{ready_count} of {len(pods)} replicas have read their sources"
    return Verdict(False, Reason.SOURCES_LOADING, f"{message}; {reading}" if reading else message)


def _build_status(
    observed: FeaturesObserved,
    compiled: CompiledFeatures,
    verdicts: _FeatureVerdicts,
    readings: SourceReadings,
    backfill: BackfillPlan,
) -> FeatureComputeStatus:
    features, plan = observed.features, compiled.plan
    generation = features.metadata.generation
    definitions = write_definitions(features, compiled, observed.origins.get)
    conditions = (
        *kstatus_conditions(_judge_readiness(observed, verdicts), generation),
        make_condition(ConditionType.PLAN_COMPILED, _judge_plan(compiled, definitions), generation),
        make_condition(ConditionType.SOURCES_READY, verdicts.sources, generation),
        make_condition(ConditionType.ENDPOINTS_PUBLISHED, verdicts.published, generation),
        *((make_fresh_condition(readings, generation),) if readings.can_age else ()),
        *((backfill.condition,) if backfill.condition is not None else ()),
    )
    absent_types = {
        *(() if readings.can_age else (ConditionType.FRESH.value,)),
        *(() if backfill.condition is not None else (ConditionType.BACKFILLED.value,)),
    }
    previous = [condition for condition in features.status.conditions if condition.type not in absent_types]
    merged = merge_conditions(previous, conditions, observed.now)
    alive = [pod for pod in observed.pods if not pod.terminating]
    return FeatureComputeStatus(
        observed_generation=generation,
        plan_hash=plan.hash,
        outputs=tuple(TensorMetadata.model_validate(output.model_dump()) for output in plan.outputs),
        replicas=len(alive),
        ready_replicas=sum(pod.ready for pod in alive),
        selector=format_selector(make_features_selector(features)),
        watermarks=make_watermarks(readings),
        tables=make_loaded_tables(readings.tables, readings.replicas),
        shared_definitions=definitions.items,
        backfill=backfill.progress,
        conditions=tuple(ObservedCondition.model_validate(item) for item in merged),
    )


def _judge_readiness(observed: FeaturesObserved, verdicts: _FeatureVerdicts) -> Verdict:
    sources, pods, published = verdicts.sources, verdicts.pods, verdicts.published
    if observed.refusal is not None:
        return observed.refusal.to_verdict()
    if sources.reason is Reason.SOURCE_FAILED and not pods.holds:
        return sources
    if pods.reason not in POD_FAILURE_REASONS and verdicts.exited is not None:
        return verdicts.exited
    if not pods.holds or pods.reason is Reason.SCALED_TO_ZERO:
        return pods
    return pods if published.holds else published


def _list_events(
    features: FeatureCompute, current: FeatureComputeStatus, plan: FeaturePlan
) -> tuple[Event, ...]:
    """Return events for another plan of the same spec, and for sources that begin to fail or recover."""
    previous = features.status
    return (
        *_list_foreign_changes(features, plan),
        *_list_failures(previous, current),
        *make_transition_events(
            ConditionType.FRESH,
            Reason.EVENTS_CURRENT if plan.streams else Reason.TABLES_CURRENT,
            (*StreamProblem, *TableProblem, Reason.DEAD_LETTERS_FAILING),
            previous.conditions,
            current.conditions,
        ),
    )


def _list_foreign_changes(features: FeatureCompute, plan: FeaturePlan) -> Iterator[Event]:
    """Yield an event for another plan of the same spec, which replaces the pods although its owner has changed nothing."""
    before, names = features.status.plan_hash, _list_origins(features)
    if not names or before in (None, plan.hash):
        return
    if features.status.observed_generation == features.metadata.generation:
        message = (
            f"plan {plan.hash[:12]} replaces {before[:12]} while this spec is unchanged: {' or '.join(names)} has changed what a "
            "shared feature is made of; the pods are replaced"
        )
        yield Event(EventType.NORMAL, Reason.PLAN_COMPILED.value, message)


def _describe_shared(features: FeatureCompute) -> str:
    count = sum(feature.shared is not None and not feature.is_hidden for feature in features.spec.features)
    return f", {count} of them of {', '.join(_list_origins(features))}" if count else ""


def _list_origins(features: FeatureCompute) -> tuple[str, ...]:
    return _format_origins(list_shared_keys(features), features.key.namespace)


def _format_origins(keys: Iterable[ObjectKey], namespace: str) -> tuple[str, ...]:
    return tuple(f"FeatureCompute {format_shared_name(key, namespace)}" for key in keys)


def _list_failures(previous: FeatureComputeStatus, current: FeatureComputeStatus) -> tuple[Event, ...]:
    """Return events for a plan that does not compile, and for a source that begins to fail."""
    previous_states = {item.type: (item.status, item.message) for item in previous.conditions}
    return tuple(
        Event(EventType.WARNING, item.reason, item.message)
        for item in current.conditions
        if (item.type == ConditionType.PLAN_COMPILED.value and item.status.value == "False")
        or (item.type == ConditionType.SOURCES_READY.value and item.reason == Reason.SOURCE_FAILED.value)
        if previous_states.get(item.type) != (item.status, item.message)
    )


def _compute_requeue(
    observed: FeaturesObserved, sources: Verdict, pods: Sequence[PodView], reports: Sequence[AgentReport]
) -> timedelta | None:
    if observed.refusal is not None:
        return _FAILURE_REQUEUE  # the object that holds the name or the quota does not wake us
    if sources.holds or not pods:
        return None
    if sources.reason is Reason.SOURCE_FAILED:
        return _FAILURE_REQUEUE
    return _LOADING_REQUEUE if any(report.serving is None for report in reports) else _UNREACHABLE_REQUEUE


def _requeue_unpublished(pods: Verdict, published: Verdict) -> timedelta | None:
    serving = pods.holds and pods.reason is not Reason.SCALED_TO_ZERO
    return PROXY_REQUEUE if serving and not published.holds else None
