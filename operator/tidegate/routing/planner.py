"""From the fleet to the routing IR: the same for every xDS replica, for the controllers' status and for what-if.

Nothing here fails: what cannot be served is left out and named in a Refusal, and the rest goes on.
Hosts are the only thing that one access can take from another; everything else about an access depends on it and its targets alone.
`plan` does all of it at once; routing.live does the same for what a change concerns, out of the same rules.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from tidegate.api.meta import ObjectKey
from tidegate.api.model_access import ModelAccess
from tidegate.routing import hosts
from tidegate.routing.access_pools import retry_budget
from tidegate.routing.access_rules import AccessPlan, plan_access
from tidegate.routing.fleet import Backend, BackendKey, BackendKind, FleetState
from tidegate.routing.hosts import HostKey, HostKind
from tidegate.routing.ir import (
    AccessPoolKey,
    Pool,
    PoolKey,
    RouteRule,
    RoutingIR,
    VirtualHost,
    WeightedBackend,
)
from tidegate.routing.pipelines import left_over, pipeline_owner
from tidegate.routing.references import backend_key
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
class PlannedHost:
    """What one ModelAccess or FeatureCompute brings into the routing."""

    host: VirtualHost
    state: HostState
    refusals: tuple[Refusal, ...] = ()


@dataclass(frozen=True, slots=True)
class RoutingPlan:
    """The routing of the whole fleet, and what it means for each ModelAccess."""

    accesses: Mapping[ObjectKey, AccessPlan]
    hosts: Mapping[HostKey, PlannedHost]
    pools: Mapping[PoolKey, Pool]

    @property
    def ir(self) -> RoutingIR:
        """The routing itself."""
        return RoutingIR(
            hosts=tuple(
                sorted((planned.host for planned in self.hosts.values()), key=lambda host: host.name)
            ),
            pools=tuple(self.pools[key] for key in sorted(self.pools, key=_shared_first)),
        )


def plan(fleet: FleetState) -> RoutingPlan:
    """The routing of `fleet`. Equal fleets give equal plans, in whatever order they list their objects."""
    owners = hosts.claim(fleet.accesses)
    pipelines: defaultdict[ObjectKey, list[Backend]] = defaultdict(list)
    for backend in fleet.backends.values():
        if backend.key.kind is BackendKind.PIPELINE:
            pipelines[pipeline_owner(backend.key)[0]].append(backend)
    accesses = {
        access.key: plan_access(
            access,
            fleet.backends,
            owners,
            fleet.credentials,
            left_over(access, pipelines.get(access.key, ())),
        )
        for access in sorted(fleet.accesses, key=lambda access: access.key)
    }
    features = [backend for backend in fleet.backends.values() if has_host(backend.key)]
    budgets: dict[BackendKey, int] = {}
    for access in fleet.accesses:
        for key, percent in retry_budgets(access).items():
            budgets[key] = max(budgets.get(key, 0), percent)
    return RoutingPlan(
        accesses=accesses,
        hosts={
            **{HostKey(HostKind.ACCESS, key): access_host(access) for key, access in accesses.items()},
            **{features_key(backend.key): features_host(backend) for backend in features},
            **{
                HostKey(HostKind.PIPELINE, key): inside
                for key, access in accesses.items()
                if (inside := inner_host(access)) is not None
            },
        },
        pools={
            **{
                key: pool(backend, budgets.get(key))
                for key, backend in fleet.backends.items()
                if has_shared_pool(key)
            },
            **{own.backend: own for access in accesses.values() for own in access.pools},
        },
    )


def _shared_first(key: PoolKey) -> tuple[bool, str]:
    return isinstance(key, AccessPoolKey), str(key)


def access_host(access: AccessPlan) -> PlannedHost:
    """What the proxies get of a ModelAccess."""
    state = HostState(access.uid, access.generation, answers=access.unavailable is None)
    return PlannedHost(access.host, state, access.refusals)


def inner_host(access: AccessPlan) -> PlannedHost | None:
    """What the proxies get of a ModelAccess for the calls of its own pipelines."""
    if access.parts_host is None:
        return None
    return PlannedHost(access.parts_host, HostState(access.uid, access.generation, answers=True))


def has_shared_pool(backend: BackendKey) -> bool:
    """Whether several accesses may use the pool of a backend; a pipeline is one route's alone."""
    return backend.kind is not BackendKind.PIPELINE


def has_host(backend: BackendKey) -> bool:
    """Whether a backend has a virtual host of its own; Inferences have those of ModelAccesses."""
    return backend.kind is BackendKind.FEATURE_COMPUTE


def features_key(backend: BackendKey) -> HostKey:
    """Names the virtual host of a FeatureCompute."""
    return HostKey(HostKind.FEATURES, backend.object_key)


def features_host(backend: Backend) -> PlannedHost:
    """What the proxies get of a FeatureCompute."""
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
    host = VirtualHost(
        name=str(features_key(backend.key)),
        title=f"FeatureCompute {key}",
        hosts=(hosts.features_host(key),),
        rules=(rule,),
    )
    # Its spec changes nothing in the routing, so every generation of it is there at once.
    return PlannedHost(host, HostState(backend.uid, 0, bool(backend.endpoints)))


def retry_budgets(access: ModelAccess) -> Mapping[BackendKey, int]:
    """The largest retry budget that `access` gives each Inference that answers for it, in percent."""
    budgets: dict[BackendKey, int] = {}
    for route in access.spec.routes:
        percent = retry_budget(route)
        if percent is None:
            continue
        rescue = (route.fallback,) if route.fallback is not None else ()
        for answering in (*route.targets, *rescue):
            key = backend_key(access, answering.inference)
            budgets[key] = max(budgets.get(key, 0), percent)
    return budgets


def pool(backend: Backend, retry_budget_percent: int | None) -> Pool:
    """The pool of a backend, routed to or not.

    A cluster therefore comes and goes with its Inference, never with a route: swapping a target is a change of routes alone.
    """
    return Pool(backend.key, backend.distinct_endpoints, retry_budget_percent)
