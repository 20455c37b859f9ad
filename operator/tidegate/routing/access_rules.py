"""What becomes of one ModelAccess: which of its targets count, with which weight, and what is left out and why.

It depends on the access, its targets and the owners of its hosts, so no other access can change it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidegate.api.durations import parse_duration
from tidegate.api.meta import ObjectKey
from tidegate.api.model_access import ModelAccess, Route, Target
from tidegate.api.reasons import Reason
from tidegate.routing import hosts
from tidegate.routing.fleet import Backend, BackendKey, BackendKind
from tidegate.routing.hosts import HostKey, HostKind
from tidegate.routing.ir import HeaderEquals, RouteRule, VirtualHost, WeightedBackend
from tidegate.routing.refusals import Refusal


@dataclass(frozen=True, slots=True)
class PlannedTarget:
    """One target as the proxies will see it: for status.routes."""

    inference: str
    weight: int
    endpoints: int


@dataclass(frozen=True, slots=True)
class PlannedRoute:
    """One route as the proxies will see it: for status.routes."""

    name: str
    targets: tuple[PlannedTarget, ...]


@dataclass(frozen=True, slots=True)
class AccessPlan:
    """What becomes of one ModelAccess."""

    access: ObjectKey
    uid: str
    generation: int
    host: VirtualHost
    routes: tuple[PlannedRoute, ...]
    refusals: tuple[Refusal, ...]

    @property
    def unavailable(self) -> str | None:
        """Why the first route that cannot answer cannot; None when every route can."""
        return next((rule.unavailable for rule in self.host.rules if rule.unavailable is not None), None)


def plan_access(
    access: ModelAccess, backends: Mapping[BackendKey, Backend], owners: Mapping[str, ObjectKey]
) -> AccessPlan:
    """What becomes of `access`; `owners` says to whom each host belongs (hosts.claim)."""
    key = access.key
    served_name = _served_name(access, backends)
    planned = [_plan_route(access, route, backends, served_name) for route in access.spec.routes]
    won = (host for host in sorted(set(access.spec.hosts)) if owners[host] == key)
    return AccessPlan(
        access=key,
        uid=access.metadata.uid,
        generation=access.metadata.generation,
        host=VirtualHost(
            name=str(HostKey(HostKind.ACCESS, key)),
            title=f"ModelAccess {key}",
            domains=(str(key), hosts.access_host(key), *won),
            rules=tuple(rule for rule, _, _ in planned),
        ),
        routes=tuple(route for _, route, _ in planned),
        refusals=(
            *hosts.refuse(access, owners),
            *(refusal for _, _, refusals in planned for refusal in refusals),
        ),
    )


def _plan_route(
    access: ModelAccess, route: Route, backends: Mapping[BackendKey, Backend], served_name: str | None
) -> tuple[RouteRule, PlannedRoute, tuple[Refusal, ...]]:
    usable: list[tuple[Target, Backend]] = []
    refusals: list[Refusal] = []
    for target in sorted(route.targets, key=lambda target: target.inference):
        backend = backends.get(backend_key(access, target))
        refusal = _refuse_target(access, route, target, backend, served_name)
        if refusal is None and backend is not None:
            usable.append((target, backend))
        elif refusal is not None:
            refusals.append(refusal)
    anyone = any(target.weight and backend.endpoints for target, backend in usable)
    weights = [target.weight if backend.endpoints or not anyone else 0 for target, backend in usable]
    rule = RouteRule(
        name=route.name,
        headers=_headers(route),
        targets=tuple(
            WeightedBackend(backend.key, weight) for (_, backend), weight in zip(usable, weights, strict=True)
        ),
        timeout=parse_duration(route.timeout),
        attempts=route.retry.attempts if route.retry else None,
        unavailable=None if anyone else _why_nobody(access, route),
    )
    planned = PlannedRoute(
        route.name,
        tuple(
            PlannedTarget(target.inference, weight, len(backend.endpoints))
            for (target, backend), weight in zip(usable, weights, strict=True)
        ),
    )
    return rule, planned, tuple(refusals)


def _refuse_target(
    access: ModelAccess, route: Route, target: Target, backend: Backend | None, served_name: str | None
) -> Refusal | None:
    part = f"spec.routes[{route.name}].targets: {target.inference}"
    if backend is None:
        message = (
            f"Inference {target.inference} does not exist in namespace {access.key.namespace}: "
            f"create it, or correct target of route {route.name}"
        )
        return Refusal(access.key, Reason.TARGET_NOT_FOUND, part, message)
    if backend.model_name != served_name:
        message = (
            f"Inference {target.inference} serves model {backend.model_name}, but the first target serves {served_name}, "
            f"and a request names only one: set spec.model.name: {served_name} there"
        )
        return Refusal(access.key, Reason.SERVED_NAME_MISMATCH, part, message)
    return None


def _why_nobody(access: ModelAccess, route: Route) -> str:
    return (
        f"ModelAccess {access.key}: no target of route {route.name} has a ready endpoint; "
        f"see kubectl -n {access.key.namespace} describe modelaccess {access.key.name}"
    )


def _served_name(access: ModelAccess, backends: Mapping[BackendKey, Backend]) -> str | None:
    """The one model name that clients of `access` can ask for: that of the first target that exists."""
    for route in access.spec.routes:
        for target in route.targets:
            backend = backends.get(backend_key(access, target))
            if backend is not None:
                return backend.model_name
    return None


def backend_key(access: ModelAccess, target: Target) -> BackendKey:
    """The backend that `target` names; an access reaches those of its own namespace only."""
    return BackendKey(BackendKind.INFERENCE, access.key.namespace, target.inference)


def _headers(route: Route) -> tuple[HeaderEquals, ...]:
    if route.match is None:
        return ()
    return tuple(HeaderEquals(header.name, header.exact) for header in route.match.headers)
