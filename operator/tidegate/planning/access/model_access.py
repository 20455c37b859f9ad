"""Plan the status of a ModelAccess from the planned routing and from what the proxies acknowledged."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from tidegate.api.conditions import Condition, ConditionType, ObservedCondition, merge_conditions
from tidegate.api.model_access import (
    FallbackStatus,
    MirrorStatus,
    ModelAccess,
    ModelAccessStatus,
    PipelineModelStatus,
    PipelineStatus,
    Route,
    RouteStatus,
    TargetStatus,
)
from tidegate.api.reasons import Reason
from tidegate.api.release import ReleaseStatus
from tidegate.api.release_commands import ReleasePhase
from tidegate.planning.access.pipelines import PipelineReplicas, PipelinesPlan
from tidegate.planning.access.proxies import (
    PROXY_REQUEUE,
    ProxyView,
    judge_endpoints,
    judge_programmed,
    select_settled_proxies,
)
from tidegate.planning.access.release import NO_RELEASE, ReleasePlan
from tidegate.planning.inference.serving_status import (
    Verdict,
    kstatus_conditions,
    make_condition,
    runner_events,
)
from tidegate.planning.plan import ReconcilePlan
from tidegate.routing import release
from tidegate.routing.access_rules import AccessPlan, PlannedFallback, PlannedRoute
from tidegate.routing.proxyless import ignored_fields
from tidegate.routing.refusals import RoutingRefusal

_PERMANENT_REASONS: Final = frozenset(
    {Reason.HOST_CONFLICT, Reason.SERVED_NAME_MISMATCH, Reason.INVALID_SPEC}
)
"""Refusals that no later object can resolve; a missing target may simply not be applied yet."""

_REASON_NAMES: Final = frozenset(reason.value for reason in Reason)

_TARGET_REASONS: Final = frozenset({Reason.TARGET_NOT_FOUND, Reason.SERVED_NAME_MISMATCH})


@dataclass(frozen=True, slots=True)
class AccessObserved:
    """Inputs of `plan_model_access`."""

    access: ModelAccess
    now: datetime
    routing: AccessPlan
    """The planned routes, by the same function that the xDS server uses."""
    proxies: Sequence[ProxyView] | None
    """None when no xDS server answered."""
    caller_refusals: Sequence[RoutingRefusal] = ()
    """Why callers are refused, as reported by the xDS servers, which alone read the Secrets."""
    gateway: str = ""
    """Host and port at which clients inside the cluster reach the gateway."""
    pipelines: PipelinesPlan = field(default_factory=PipelinesPlan)
    refusal: Verdict | None = None
    """Why a child cannot be applied as planned."""
    release: ReleasePlan = NO_RELEASE
    """The next step of its release, which `routing` includes already."""


def plan_model_access(observed: AccessObserved) -> ReconcilePlan:
    """Return the status and the children of pipelines; the proxies get all else through xDS."""
    access = observed.access
    generation = access.metadata.generation
    proxies = select_settled_proxies(observed.proxies) if access.is_programmed else observed.proxies
    programmed = judge_programmed(proxies, generation)
    answering = judge_endpoints(proxies, generation)
    unanswered = _judge_routes(observed.routing)
    ready = unanswered or (programmed if answering.holds else answering)
    conditions = (
        *kstatus_conditions(
            _judge_refusals((*observed.routing.refusals, *observed.caller_refusals))
            or observed.refusal
            or observed.pipelines.verdict
            or ready,
            generation,
        ),
        make_condition(ConditionType.PROGRAMMED, programmed, generation),
        make_condition(ConditionType.TARGETS_READY, _judge_targets(access, observed.routing), generation),
        *_release_conditions(access, observed.release.status, generation),
    )
    merged = merge_conditions(access.status.conditions, conditions, observed.now)
    status = ModelAccessStatus(
        observed_generation=generation,
        url=f"http://{observed.gateway}" if observed.gateway else None,
        grpc_target=observed.gateway or None,
        routes=tuple(
            _to_route_status(route, observed.pipelines.replicas.get(route.name))
            for route in observed.routing.routes
        ),
        proxyless_ignored=ignored_fields(access),
        release=observed.release.status,
        conditions=tuple(ObservedCondition.model_validate(item) for item in merged),
    )
    is_settled = programmed.holds and (
        answering.holds or unanswered is not None or bool(observed.caller_refusals)
    )
    delays = (
        observed.pipelines.requeue_after if is_settled else PROXY_REQUEUE,
        observed.release.requeue_after,
    )
    return ReconcilePlan(
        status=status.dump(),
        apply=observed.pipelines.apply,
        delete=observed.pipelines.delete,
        events=(
            *observed.release.events,
            *runner_events(access.status.conditions, status.conditions, observed.pipelines.exit_verdict),
        ),
        requeue_after=min((delay for delay in delays if delay is not None), default=None),
    )


def with_release(access: ModelAccess, status: ReleaseStatus | None) -> ModelAccess:
    """Return `access` with this release status, which its routing must be planned from."""
    return access.model_copy(update={"status": access.status.model_copy(update={"release": status})})


def _release_conditions(
    access: ModelAccess, status: ReleaseStatus | None, generation: int
) -> tuple[Condition, ...]:
    """Return Releasing and RolledBack; nothing if the object never had a release."""
    if status is None:
        no_release = Verdict(False, Reason.RECONCILED, "the spec asks for no release")
        present = {item.type for item in access.status.conditions}
        types = (ConditionType.RELEASING, ConditionType.ROLLED_BACK)
        return tuple(
            make_condition(type_, no_release, generation) for type_ in types if type_.value in present
        )
    reason = Reason(status.reason) if status.reason in _REASON_NAMES else Reason.STEPPING
    ended = status.phase in (ReleasePhase.PROMOTED, ReleasePhase.ROLLED_BACK)
    rolled_back = status.phase is ReleasePhase.ROLLED_BACK
    return (
        make_condition(ConditionType.RELEASING, Verdict(not ended, reason, status.message), generation),
        make_condition(
            ConditionType.ROLLED_BACK,
            Verdict(rolled_back, reason, status.message) if rolled_back else Verdict(False, reason, ""),
            generation,
        ),
    )


def _judge_refusals(
    refusals: Sequence[RoutingRefusal], reasons: frozenset[Reason] = frozenset(Reason)
) -> Verdict | None:
    """Return the first part of the spec that the gateways leave out, of those with one of the `reasons`."""
    first = next((refusal for refusal in sorted(refusals) if refusal.reason in reasons), None)
    if first is None:
        return None
    message = f"{first.part}: {first.message}"
    return Verdict(False, first.reason, message, stalled=first.reason in _PERMANENT_REASONS)


def _judge_targets(access: ModelAccess, routing: AccessPlan) -> Verdict:
    """Return whether every target that gets traffic exists and has ready endpoints."""
    refused = _judge_refusals(routing.refusals, _TARGET_REASONS)
    if refused is not None:
        return refused
    planned = {route.name for route in routing.routes}
    routes = [release.route_in_effect(access, route) for route in access.spec.routes if route.name in planned]
    required = {name for route in routes for name in _list_required_inferences(route)}
    ready = {name for route in routing.routes for name in _list_ready_inferences(route)}
    if required <= ready:
        return Verdict(True, Reason.TARGETS_READY, "every target with weight has ready endpoints")
    missing = min(required - ready)
    return Verdict(False, Reason.TARGET_NOT_READY, f"Inference {missing} has no ready endpoint")


def _list_required_inferences(route: Route) -> frozenset[str]:
    """Return the Inferences that need pods: all that the route names, except targets with weight 0."""
    idle = {target.inference for target in route.targets if not target.weight}
    return route.inference_names - idle


def _list_ready_inferences(route: PlannedRoute) -> frozenset[str]:
    endpoint_counts = [(target.inference, target.endpoints) for target in route.targets]
    endpoint_counts += [(mirror.inference, mirror.endpoints) for mirror in route.mirrors]
    endpoint_counts += [
        (part.inference, part.endpoints or 0) for part in route.parts if part.inference is not None
    ]
    if route.fallback is not None:
        endpoint_counts.append((route.fallback.inference, route.fallback.endpoints))
    return frozenset(inference for inference, endpoints in endpoint_counts if endpoints)


def _judge_routes(routing: AccessPlan) -> Verdict | None:
    """Return the first route that cannot answer; a route with one target left still can."""
    if routing.unavailable_reason is None:
        return None
    return Verdict(False, Reason.TARGET_NOT_READY, routing.unavailable_reason)


def _to_route_status(route: PlannedRoute, replicas: PipelineReplicas | None) -> RouteStatus:
    return RouteStatus(
        name=route.name,
        targets=tuple(
            TargetStatus(inference=target.inference, weight=target.weight, endpoints=target.endpoints)
            for target in route.targets
        ),
        mirror=tuple(
            MirrorStatus(inference=mirror.inference, percent=mirror.percent, endpoints=mirror.endpoints)
            for mirror in route.mirrors
        )
        or None,
        fallback=_to_fallback_status(route.fallback) if route.fallback else None,
        pipeline=_to_pipeline_status(route, replicas) if route.parts else None,
    )


def _to_pipeline_status(route: PlannedRoute, replicas: PipelineReplicas | None) -> PipelineStatus:
    return PipelineStatus(
        replicas=replicas.total if replicas else 0,
        ready_replicas=replicas.ready if replicas else 0,
        models=tuple(
            PipelineModelStatus(
                name=part.name, inference=part.inference, access=part.access, endpoints=part.endpoints
            )
            for part in route.parts
        ),
    )


def _to_fallback_status(fallback: PlannedFallback) -> FallbackStatus:
    return FallbackStatus(
        inference=fallback.inference, serving=fallback.serving, endpoints=fallback.endpoints
    )
