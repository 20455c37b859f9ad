"""ModelAccess: its status, from what routing makes of it and what the proxies acknowledged."""

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

_USERS_TO_MEND: Final = frozenset({Reason.HOST_CONFLICT, Reason.SERVED_NAME_MISMATCH, Reason.INVALID_SPEC})
"""Refusals that no object still to come can cure; a missing target may simply not be applied yet."""

_REASONS: Final = frozenset(reason.value for reason in Reason)

_ABOUT_TARGETS: Final = frozenset({Reason.TARGET_NOT_FOUND, Reason.SERVED_NAME_MISMATCH})


@dataclass(frozen=True, slots=True)
class AccessObserved:
    """Everything that the status of a ModelAccess is made from."""

    access: ModelAccess
    now: datetime
    routing: AccessPlan
    """What the proxies are told, from the very function that the xDS server uses."""
    proxies: Sequence[ProxyView] | None
    """None when no xDS server answered."""
    callers: Sequence[Refusal] = ()
    """Why callers are not let in, as the xDS servers say, which alone read the Secrets."""
    gateway: str = ""
    """Host and port at which clients inside the cluster reach the gateway."""
    pipelines: PipelinesPlan = field(default_factory=PipelinesPlan)
    refusal: Verdict | None = None
    """Why a child cannot be as planned."""
    release: ReleasePlan = NO_RELEASE
    """How its release goes on; `routing` is already made with that."""


def plan_model_access(observed: AccessObserved) -> Plan:
    """The status, and the children of pipelines; all else goes to the proxies through xDS."""
    access = observed.access
    generation = access.metadata.generation
    proxies = settled_proxies(observed.proxies) if access.programmed else observed.proxies
    programmed = programmed_verdict(proxies, generation)
    answering = answering_verdict(proxies, generation)
    unanswered = _unanswered(observed.routing)
    ready = unanswered or (programmed if answering.holds else answering)
    said = (
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
    merged = merge(access.status.conditions, said, observed.now)
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
    settled = programmed.holds and (answering.holds or unanswered is not None or bool(observed.callers))
    waits = (
        observed.pipelines.requeue_after if settled else LOOK_AGAIN,
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
        requeue_after=min((wait for wait in waits if wait is not None), default=None),
    )


def with_release(access: ModelAccess, status: ReleaseStatus | None) -> ModelAccess:
    """`access` as it will be when this status is written: what its routing is to be made from."""
    return access.model_copy(update={"status": access.status.model_copy(update={"release": status})})


def _releasing(access: ModelAccess, status: ReleaseStatus | None, generation: int) -> tuple[Condition, ...]:
    """Releasing and RolledBack; nothing of an access that never had a release."""
    if status is None:
        none = Verdict(False, Reason.RECONCILED, "the spec asks for no release")
        said = {item.type for item in access.status.conditions}
        kinds = (ConditionType.RELEASING, ConditionType.ROLLED_BACK)
        return tuple(condition(kind, none, generation) for kind in kinds if kind.value in said)
    reason = Reason(status.reason) if status.reason in _REASONS else Reason.STEPPING
    ended = status.phase in (ReleasePhase.PROMOTED, ReleasePhase.ROLLED_BACK)
    back = status.phase is ReleasePhase.ROLLED_BACK
    return (
        condition(ConditionType.RELEASING, Verdict(not ended, reason, status.message), generation),
        condition(
            ConditionType.ROLLED_BACK,
            Verdict(back, reason, status.message) if back else Verdict(False, reason, ""),
            generation,
        ),
    )


def _refused(refusals: Sequence[Refusal], about: frozenset[Reason] = frozenset(Reason)) -> Verdict | None:
    """The first part of the spec that the gateways leave out, if there is one."""
    first = next((refusal for refusal in sorted(refusals) if refusal.reason in about), None)
    if first is None:
        return None
    message = f"{first.part}: {first.message}"
    return Verdict(False, first.reason, message, stalled=first.reason in _USERS_TO_MEND)


def _targets(access: ModelAccess, routing: AccessPlan) -> Verdict:
    """Whether everything that is to get traffic exists and has ready endpoints."""
    refused = _refused(routing.refusals, _ABOUT_TARGETS)
    if refused is not None:
        return refused
    planned = {route.name for route in routing.routes}
    routes = [release.in_effect(access, route) for route in access.spec.routes if route.name in planned]
    wanted = {name for route in routes for name in _traffic(route)}
    have = {name for route in routing.routes for name in _awake(route)}
    if wanted <= have:
        return Verdict(True, Reason.TARGETS_READY, "every target with weight has ready endpoints")
    missing = min(wanted - have)
    return Verdict(False, Reason.TARGET_NOT_READY, f"Inference {missing} has no ready endpoint")


def _traffic(route: Route) -> frozenset[str]:
    """The Inferences that are to have pods: all that the route names, but for targets kept at 0."""
    idle = {target.inference for target in route.targets if not target.weight}
    return route.inferences - idle


def _awake(route: PlannedRoute) -> frozenset[str]:
    parts = [(target.inference, target.endpoints) for target in route.targets]
    parts += [(mirror.inference, mirror.endpoints) for mirror in route.mirrors]
    parts += [(part.inference, part.endpoints or 0) for part in route.parts if part.inference is not None]
    if route.fallback is not None:
        parts.append((route.fallback.inference, route.fallback.endpoints))
    return frozenset(inference for inference, endpoints in parts if endpoints)


def _unanswered(routing: AccessPlan) -> Verdict | None:
    """The first route that cannot answer; one with a target left serves on without the others."""
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
