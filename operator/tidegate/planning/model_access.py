"""Plan the status of a ModelAccess from the planned routing and from what the proxies acknowledged."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from tidegate.api.conditions import Condition, ConditionType, ObservedCondition, merge
from tidegate.api.model_access import (
    FallbackStatus,
    MirrorStatus,
    ModelAccess,
    ModelAccessStatus,
    PartStatus,
    PipelineStatus,
    Route,
    RouteStatus,
    TargetStatus,
)
from tidegate.api.reasons import Reason
from tidegate.api.release import ReleasePhase, ReleaseStatus
from tidegate.planning.pipelines import PipelinesPlan, Replicas
from tidegate.planning.plan import Plan
from tidegate.planning.proxies import (
    LOOK_AGAIN,
    ProxyView,
    answering_verdict,
    programmed_verdict,
    settled_proxies,
)
from tidegate.planning.release import NO_RELEASE, ReleasePlan
from tidegate.planning.runner_ends import runner_events
from tidegate.planning.serving_status import Verdict, condition, standing
from tidegate.routing import release
from tidegate.routing.access_rules import AccessPlan, PlannedFallback, PlannedRoute
from tidegate.routing.grpc import listeners
from tidegate.routing.refusals import Refusal

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
    callers: Sequence[Refusal] = ()
    """Why callers are refused, as reported by the xDS servers, which alone read the Secrets."""
    gateway: str = ""
    """Host and port at which clients inside the cluster reach the gateway."""
    pipelines: PipelinesPlan = field(default_factory=PipelinesPlan)
    refusal: Verdict | None = None
    """Why a child cannot be applied as planned."""
    release: ReleasePlan = NO_RELEASE
    """The next step of its release, which `routing` includes already."""


def plan_model_access(observed: AccessObserved) -> Plan:
    """Return the status and the children of pipelines; the proxies get all else through xDS."""
    access = observed.access
    generation = access.metadata.generation
    proxies = settled_proxies(observed.proxies) if access.programmed else observed.proxies
    programmed = programmed_verdict(proxies, generation)
    answering = answering_verdict(proxies, generation)
    unanswered = _unanswered(observed.routing)
    ready = unanswered or (programmed if answering.holds else answering)
    conditions = (
        *standing(
            _refused((*observed.routing.refusals, *observed.callers))
            or observed.refusal
            or observed.pipelines.verdict
            or ready,
            generation,
        ),
        condition(ConditionType.PROGRAMMED, programmed, generation),
        condition(ConditionType.TARGETS_READY, _targets(access, observed.routing), generation),
        *_releasing(access, observed.release.status, generation),
    )
    merged = merge(access.status.conditions, conditions, observed.now)
    status = ModelAccessStatus(
        observed_generation=generation,
        url=f"http://{observed.gateway}" if observed.gateway else None,
        grpc_target=observed.gateway or None,
        routes=tuple(
            _route(route, observed.pipelines.replicas.get(route.name)) for route in observed.routing.routes
        ),
        proxyless_ignored=listeners.ignored(access),
        release=observed.release.status,
        conditions=tuple(ObservedCondition.model_validate(item) for item in merged),
    )
    is_settled = programmed.holds and (answering.holds or unanswered is not None or bool(observed.callers))
    delays = (
        observed.pipelines.requeue_after if is_settled else LOOK_AGAIN,
        observed.release.look_again,
    )
    return Plan(
        status=status.dump(),
        apply=observed.pipelines.apply,
        delete=observed.pipelines.delete,
        events=(
            *observed.release.events,
            *runner_events(access.status.conditions, status.conditions, observed.pipelines.ended),
        ),
        requeue_after=min((delay for delay in delays if delay is not None), default=None),
    )


def with_release(access: ModelAccess, status: ReleaseStatus | None) -> ModelAccess:
    """Return `access` with this release status, which its routing must be planned from."""
    return access.model_copy(update={"status": access.status.model_copy(update={"release": status})})


def _releasing(access: ModelAccess, status: ReleaseStatus | None, generation: int) -> tuple[Condition, ...]:
    """Return Releasing and RolledBack; nothing if the object never had a release."""
    if status is None:
        no_release = Verdict(False, Reason.RECONCILED, "the spec asks for no release")
        present = {item.type for item in access.status.conditions}
        types = (ConditionType.RELEASING, ConditionType.ROLLED_BACK)
        return tuple(condition(type_, no_release, generation) for type_ in types if type_.value in present)
    reason = Reason(status.reason) if status.reason in _REASON_NAMES else Reason.STEPPING
    ended = status.phase in (ReleasePhase.PROMOTED, ReleasePhase.ROLLED_BACK)
    rolled_back = status.phase is ReleasePhase.ROLLED_BACK
    return (
        condition(ConditionType.RELEASING, Verdict(not ended, reason, status.message), generation),
        condition(
            ConditionType.ROLLED_BACK,
            Verdict(rolled_back, reason, status.message) if rolled_back else Verdict(False, reason, ""),
            generation,
        ),
    )


def _refused(refusals: Sequence[Refusal], about: frozenset[Reason] = frozenset(Reason)) -> Verdict | None:
    """Return the first part of the spec that the gateways leave out, of those with one of the `reasons`."""
    first = next((refusal for refusal in sorted(refusals) if refusal.reason in about), None)
    if first is None:
        return None
    message = f"{first.part}: {first.message}"
    return Verdict(False, first.reason, message, stalled=first.reason in _PERMANENT_REASONS)


def _targets(access: ModelAccess, routing: AccessPlan) -> Verdict:
    """Return whether every target that gets traffic exists and has ready endpoints."""
    refused = _refused(routing.refusals, _TARGET_REASONS)
    if refused is not None:
        return refused
    planned = {route.name for route in routing.routes}
    routes = [release.in_effect(access, route) for route in access.spec.routes if route.name in planned]
    required = {name for route in routes for name in _traffic(route)}
    ready = {name for route in routing.routes for name in _awake(route)}
    if required <= ready:
        return Verdict(True, Reason.TARGETS_READY, "every target with weight has ready endpoints")
    missing = min(required - ready)
    return Verdict(False, Reason.TARGET_NOT_READY, f"Inference {missing} has no ready endpoint")


def _traffic(route: Route) -> frozenset[str]:
    """Return the Inferences that need pods: all that the route names, except targets with weight 0."""
    idle = {target.inference for target in route.targets if not target.weight}
    return route.inferences - idle


def _awake(route: PlannedRoute) -> frozenset[str]:
    endpoint_counts = [(target.inference, target.endpoints) for target in route.targets]
    endpoint_counts += [(mirror.inference, mirror.endpoints) for mirror in route.mirrors]
    endpoint_counts += [
        (part.inference, part.endpoints or 0) for part in route.parts if part.inference is not None
    ]
    if route.fallback is not None:
        endpoint_counts.append((route.fallback.inference, route.fallback.endpoints))
    return frozenset(inference for inference, endpoints in endpoint_counts if endpoints)


def _unanswered(routing: AccessPlan) -> Verdict | None:
    """Return the first route that cannot answer; a route with one target left still can."""
    if routing.unavailable is None:
        return None
    return Verdict(False, Reason.TARGET_NOT_READY, routing.unavailable)


def _route(route: PlannedRoute, replicas: Replicas | None) -> RouteStatus:
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
        fallback=_fallback(route.fallback) if route.fallback else None,
        pipeline=_pipeline(route, replicas) if route.parts else None,
    )


def _pipeline(route: PlannedRoute, replicas: Replicas | None) -> PipelineStatus:
    return PipelineStatus(
        replicas=replicas.there if replicas else 0,
        ready_replicas=replicas.ready if replicas else 0,
        models=tuple(
            PartStatus(name=part.name, inference=part.inference, access=part.access, endpoints=part.endpoints)
            for part in route.parts
        ),
    )


def _fallback(fallback: PlannedFallback) -> FallbackStatus:
    return FallbackStatus(
        inference=fallback.inference, serving=fallback.serving, endpoints=fallback.endpoints
    )
