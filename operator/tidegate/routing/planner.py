"""From the fleet to the routing IR: the same for every xDS replica, for the controllers' status and for what-if.

Nothing here fails: what cannot be served is left out and named in a Refusal, and the rest goes on.
Hosts are the only thing that one access can take from another; everything else about an access depends on it and its targets alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from tidegate.api.durations import parse_duration
from tidegate.api.meta import ObjectKey
from tidegate.api.model_access import ModelAccess, Route, Target
from tidegate.api.reasons import Reason
from tidegate.routing import hosts
from tidegate.routing.fleet import Backend, BackendKey, BackendKind, FleetState
from tidegate.routing.hosts import HostKey, HostKind
from tidegate.routing.ir import HeaderEquals, Pool, RouteRule, RoutingIR, VirtualHost, WeightedBackend
from tidegate.routing.refusals import Refusal

# A FeatureCompute has no route of its own to set a timeout in; looking features up takes milliseconds.
FEATURES_TIMEOUT: Final = timedelta(seconds=5)


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
class HostState:
    """Which object a virtual host was made from, and whether every request to it can be answered."""

    uid: str
    generation: int
    answers: bool


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


@dataclass(frozen=True, slots=True)
class RoutingPlan:
    """The routing of the whole fleet, and what it means for each ModelAccess."""

    ir: RoutingIR
    accesses: Mapping[ObjectKey, AccessPlan]
    hosts: Mapping[HostKey, HostState]

    @property
    def refusals(self) -> tuple[Refusal, ...]:
        """All refusals, by access."""
        return tuple(refusal for plan in self.accesses.values() for refusal in plan.refusals)


def plan(fleet: FleetState) -> RoutingPlan:
    """The routing of `fleet`. Equal fleets give equal plans, in whatever order they list their objects."""
    owners = hosts.claim(fleet.accesses)
    accesses = {
        access.key: plan_access(access, fleet.backends, owners)
        for access in sorted(fleet.accesses, key=lambda access: access.key)
    }
    features = [backend for key, backend in fleet.backends.items() if key.kind is BackendKind.FEATURE_COMPUTE]
    virtual_hosts = [
        *(access.host for access in accesses.values()),
        *(_features_host(backend) for backend in features),
    ]
    ir = RoutingIR(
        hosts=tuple(sorted(virtual_hosts, key=lambda host: host.name)),
        pools=_pools(fleet.backends.values(), fleet.accesses),
    )
    return RoutingPlan(ir, accesses, _host_states(accesses.values(), features))


def _host_states(accesses: Iterable[AccessPlan], features: Iterable[Backend]) -> Mapping[HostKey, HostState]:
    states = {
        HostKey(HostKind.ACCESS, plan.access): HostState(plan.uid, plan.generation, plan.unavailable is None)
        for plan in accesses
    }
    for backend in features:
        # Its spec changes nothing in the routing, so every generation of it is there at once.
        state = HostState(backend.uid, 0, bool(backend.endpoints))
        states[HostKey(HostKind.FEATURES, backend.key.object_key)] = state
    return states


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
        backend = backends.get(_inference(access, target))
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
            backend = backends.get(_inference(access, target))
            if backend is not None:
                return backend.model_name
    return None


def _inference(access: ModelAccess, target: Target) -> BackendKey:
    return BackendKey(BackendKind.INFERENCE, access.key.namespace, target.inference)


def _headers(route: Route) -> tuple[HeaderEquals, ...]:
    if route.match is None:
        return ()
    return tuple(HeaderEquals(header.name, header.exact) for header in route.match.headers)


def _features_host(backend: Backend) -> VirtualHost:
    key = backend.key.object_key
    why = (
        f"FeatureCompute {key} has no ready endpoint; "
        f"see kubectl -n {key.namespace} describe featurecompute {key.name}"
    )
    rule = RouteRule(
        name="features",
        headers=(),
        targets=(WeightedBackend(backend.key, 1),),
        timeout=FEATURES_TIMEOUT,
        unavailable=None if backend.endpoints else why,
    )
    return VirtualHost(
        name=str(HostKey(HostKind.FEATURES, key)),
        title=f"FeatureCompute {key}",
        domains=(f"features/{key}", hosts.features_host(key)),
        rules=(rule,),
    )


def _pools(backends: Iterable[Backend], accesses: Iterable[ModelAccess]) -> tuple[Pool, ...]:
    """A pool for every backend, routed to or not.

    A cluster therefore comes and goes with its Inference, never with a route: swapping a target is a change of routes alone.
    """
    budgets: dict[BackendKey, int] = {}
    for access in accesses:
        for route in access.spec.routes:
            if route.retry is None or not route.retry.attempts:
                continue
            for target in route.targets:
                key = _inference(access, target)
                budgets[key] = max(budgets.get(key, 0), route.retry.budget_percent)
    return tuple(
        Pool(backend.key, tuple(sorted(set(backend.endpoints))), budgets.get(backend.key))
        for backend in sorted(backends, key=lambda backend: backend.key)
    )
