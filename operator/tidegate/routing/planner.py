"""The translation of the fleet to the routing IR, for every xDS replica, the controllers and what-if alike.

Nothing here raises: what cannot be served is left out and named in a RoutingRefusal.
Hosts are the only thing that accesses compete for; everything else about an access depends on it and its targets alone.
`plan_routing` translates everything; routing.incremental translates what a change affects, by the same rules.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from tidegate.api.meta import ObjectKey
from tidegate.routing import hosts
from tidegate.routing.access_pools import add_spares, retry_budgets
from tidegate.routing.access_rules import AccessPlan, plan_access
from tidegate.routing.fleet import Backend, BackendKey, BackendKind, FleetState
from tidegate.routing.hosts import HostKey, HostKind
from tidegate.routing.ir import (
    AccessPoolKey,
    EndpointPool,
    HostState,
    PlannedHost,
    PoolKey,
    RouteRule,
    RoutingIR,
    VirtualHost,
    WeightedBackend,
)
from tidegate.routing.pipelines import find_leftovers, pipeline_owner

# A FeatureCompute has no route of its own to set a timeout in; looking features up takes milliseconds.
FEATURES_TIMEOUT: Final = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class RoutingPlan:
    """The routing of the whole fleet, and the plan of each ModelAccess."""

    accesses: Mapping[ObjectKey, AccessPlan]
    hosts: Mapping[HostKey, PlannedHost]
    pools: Mapping[PoolKey, EndpointPool]

    @property
    def ir(self) -> RoutingIR:
        """Routing IR of the whole fleet."""
        return RoutingIR(
            hosts=tuple(
                sorted((planned.host for planned in self.hosts.values()), key=lambda host: host.name)
            ),
            pools=tuple(self.pools[key] for key in sorted(self.pools, key=_sort_shared_first)),
        )


def plan_routing(fleet: FleetState) -> RoutingPlan:
    """Plan the routing of `fleet`. Equal fleets give equal plans, whatever the order of their objects."""
    owners = hosts.find_host_owners(fleet.accesses)
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
            find_leftovers(access, pipelines.get(access.key, ())),
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
            **{HostKey(HostKind.ACCESS, key): access.planned_host for key, access in accesses.items()},
            **{features_host_key(backend.key): planned_features_host(backend) for backend in features},
            **{
                HostKey(HostKind.PIPELINE, key): pipeline_host
                for key, access in accesses.items()
                if (pipeline_host := access.planned_parts_host) is not None
            },
        },
        pools={
            **{
                key: shared_pool(backend, budgets.get(key))
                for key, backend in fleet.backends.items()
                if has_shared_pool(key)
            },
            **{own.backend: own for access in accesses.values() for own in access.pools},
        },
    )


def _sort_shared_first(key: PoolKey) -> tuple[bool, str]:
    return isinstance(key, AccessPoolKey), str(key)


def has_shared_pool(backend: BackendKey) -> bool:
    """Return whether several accesses may use the pool of a backend; a pipeline's belongs to one route."""
    return backend.kind is not BackendKind.PIPELINE


def has_host(backend: BackendKey) -> bool:
    """Return whether a backend has a virtual host of its own; Inferences have those of ModelAccesses."""
    return backend.kind is BackendKind.FEATURE_COMPUTE


def features_host_key(backend: BackendKey) -> HostKey:
    """Return the key of the virtual host of a FeatureCompute."""
    return HostKey(HostKind.FEATURES, backend.object_key)


def planned_features_host(backend: Backend) -> PlannedHost:
    """Return the virtual host of a FeatureCompute."""
    key = backend.key.object_key
    message = (
        f"FeatureCompute {key} has no ready endpoint; "
        f"see kubectl -n {key.namespace} describe featurecompute {key.name}"
    )
    rule = RouteRule(
        name="features",
        headers=(),
        targets=(WeightedBackend(backend.key, 1),),
        timeout=FEATURES_TIMEOUT,
        unavailable=None if backend.endpoints else message,
    )
    host = VirtualHost(
        name=str(features_host_key(backend.key)),
        title=f"FeatureCompute {key}",
        hosts=(hosts.features_hostname(key),),
        rules=(rule,),
    )
    # Its spec does not affect the routing, so every generation is programmed at once.
    return PlannedHost(host, HostState(backend.uid, 0, bool(backend.endpoints)))


def shared_pool(backend: Backend, retry_budget_percent: int | None) -> EndpointPool:
    """Return the pool of a backend, with or without routes to it.

    So a cluster exists as long as its Inference: a swap of targets changes only routes.
    """
    pool = EndpointPool(backend.key, backend.distinct_endpoints, retry_budget_percent)
    return add_spares(pool, backend)
