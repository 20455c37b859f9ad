"""From the fleet to the routing IR: the same for every xDS replica, for the controllers' status and for what-if.

Nothing here fails: what cannot be served is left out and named in a Refusal, and the rest goes on.
Hosts are the only thing that one access can take from another; everything else about an access depends on it and its targets alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from tidegate.api.meta import ObjectKey
from tidegate.api.model_access import ModelAccess
from tidegate.routing import hosts
from tidegate.routing.access_rules import AccessPlan, backend_key, plan_access
from tidegate.routing.fleet import Backend, BackendKey, BackendKind, FleetState
from tidegate.routing.hosts import HostKey, HostKind
from tidegate.routing.ir import Pool, RouteRule, RoutingIR, VirtualHost, WeightedBackend
from tidegate.routing.refusals import Refusal

# A FeatureCompute has no route of its own to set a timeout in; looking features up takes milliseconds.
FEATURES_TIMEOUT: Final = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class HostState:
    """Which object a virtual host was made from, and whether every request to it can be answered."""

    uid: str
    generation: int
    answers: bool


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
                key = backend_key(access, target)
                budgets[key] = max(budgets.get(key, 0), route.retry.budget_percent)
    return tuple(
        Pool(backend.key, tuple(sorted(set(backend.endpoints))), budgets.get(backend.key))
        for backend in sorted(backends, key=lambda backend: backend.key)
    )
