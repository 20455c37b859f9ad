"""Pipelines in the routing: their own pods answer a route, and calls of these pods go through the gateway.

The pods of a route are a backend of their own. Inferences that they call have no host, so each ModelAccess with
pipelines has a second virtual host for them, with its limits and ejection; a ModelAccess or FeatureCompute that a pipeline
calls has a host anyway. The second host admits only the access's own pods, by the address of the caller:
its name is no secret, and the pods have no API key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from operator import attrgetter
from typing import Final

from tidegate.api.durations import parse_duration
from tidegate.api.meta import ObjectKey
from tidegate.api.model_access import ModelAccess, Route
from tidegate.api.pipeline import PipelineSpec
from tidegate.routing.access_pools import AccessPools, retry_budget
from tidegate.routing.fleet import Backend, BackendKey, BackendKind
from tidegate.routing.guards import AddressGuard, ClosedGuard, Guard
from tidegate.routing.hosts import HostKind
from tidegate.routing.ir import (
    Comparison,
    EndpointPool,
    HeaderMatcher,
    PoolKey,
    RouteRule,
    VirtualHost,
    WeightedBackend,
)
from tidegate.routing.references import find_backend

PART_HEADER: Final = "x-tidegate-part"
"""Names the Inference that a pipeline calls, at its access's host for parts."""

LEFTOVER_TIMEOUT: Final = timedelta(seconds=60)
"""The timeout for pods that a changed spec is about to replace; they have deadlines of their own anyway."""


@dataclass(frozen=True, slots=True)
class PlannedPart:
    """One model of a pipeline as the proxies get it; `endpoints` is None for a ModelAccess."""

    name: str
    inference: str | None
    access: str | None
    endpoints: int | None


def pipeline_key(access: ObjectKey, route: str) -> BackendKey:
    """Return the key of the backend that answers a pipeline's route; neither name contains a dot."""
    return BackendKey(BackendKind.PIPELINE, access.namespace, f"{access.name}.{route}")


def pipeline_owner(backend: BackendKey) -> tuple[ObjectKey, str]:
    """Return the ModelAccess and the route that a backend was made for."""
    access, _, route = backend.name.rpartition(".")
    return ObjectKey(backend.namespace, access), route


def parts_target(access: ModelAccess) -> str:
    """Return the target by which an access's pods call an Inference at the gateway; no access has this name."""
    return f"pipeline/of/{access.metadata.uid}"


def plan_parts(
    access: ModelAccess, pipeline: PipelineSpec, backends: Mapping[str, Backend]
) -> tuple[PlannedPart, ...]:
    """Return the models of a pipeline, for the status."""
    endpoints = {name: len(backend.answering_pods) for name, backend in backends.items()}
    return tuple(
        PlannedPart(
            part.name,
            part.inference,
            part.access,
            endpoints.get(part.inference, 0) if part.inference is not None else None,
        )
        for part in pipeline.models
    )


def unanswered_reason(
    access: ModelAccess, route: Route, backend: Backend | None, parts: Sequence[PlannedPart]
) -> str | None:
    """Return why requests to a pipeline's route cannot be answered; None if they can, even in part."""
    pipeline = route.pipeline
    if pipeline is None:
        return None
    hint = f"see kubectl -n {access.key.namespace} describe modelaccess {access.key.name}"
    if backend is None or not backend.endpoints:
        return f"ModelAccess {access.key}: the pipeline of route {route.name} has no ready pod; {hint}"
    optional = {part.name for part in pipeline.models if part.optional}
    for part in parts:
        if part.inference is not None and not part.endpoints and part.name not in optional:
            return (
                f"ModelAccess {access.key}: Inference {part.inference}, which answers {part.name} in the pipeline of "
                f"route {route.name}, has no ready endpoint; {hint}"
            )
    return None


def plan_pipeline_pool(
    route: Route, key: BackendKey, backend: Backend | None, pools: AccessPools
) -> EndpointPool:
    """Return the pool of a pipeline's pods.

    Limits apply, but not outlier ejection: errors of these pods are mostly those of the models that they call.
    """
    endpoints = backend.distinct_endpoints if backend is not None else ()
    return EndpointPool(key, endpoints, retry_budget(route), limits=pools.target_limits)


def find_leftovers(access: ModelAccess, pipelines: Iterable[Backend]) -> tuple[Backend, ...]:
    """Return the pipelines of an access that no route has any more while their pods still call models.

    The route may be gone, or have targets instead.
    """
    pipelines = tuple(pipelines)
    if not pipelines:
        return ()
    current_keys = {
        pipeline_key(access.key, route.name) for route in access.spec.routes if route.pipeline is not None
    }
    return tuple(
        sorted(
            (pipeline for pipeline in pipelines if pipeline.calls and pipeline.key not in current_keys),
            key=attrgetter("key"),
        )
    )


def plan_parts_host(
    access: ModelAccess,
    backends: Mapping[BackendKey, Backend],
    pools: AccessPools,
    leftovers: Sequence[Backend] = (),
) -> VirtualHost | None:
    """Return the virtual host at which pipelines of `access` call Inferences; None if none does.

    Running pods of a route may call Inferences that the spec no longer names, until new pods replace them.
    Pods of `leftovers` call theirs until they have answered their requests in flight.
    """
    routes = [route for route in access.spec.routes if route.pipeline is not None]
    if not routes and not leftovers:
        return None
    pods = [backends.get(pipeline_key(access.key, route.name)) for route in routes]
    rules: dict[str, RouteRule] = {}
    for route, running in zip(routes, pods, strict=True):
        named = route.pipeline.inference_names if route.pipeline is not None else frozenset[str]()
        for name in sorted(named | set(running.calls if running is not None else ())):
            backend = find_backend(access, name, backends)
            if backend is not None:
                timeout = parse_duration(route.timeout) if name in named else LEFTOVER_TIMEOUT
                before = rules.get(name)
                longest = timeout if before is None else max(timeout, before.timeout)
                pool = pools.select_target_pool(route, backend, None)
                rules[name] = _build_rule(name, backend, pool, longest)
    for name in sorted({name for pipeline in leftovers for name in pipeline.calls}):
        backend = find_backend(access, name, backends)
        if name in rules:
            rules[name] = replace(rules[name], timeout=max(LEFTOVER_TIMEOUT, rules[name].timeout))
        elif backend is not None:
            rules[name] = _build_rule(name, backend, pools.select_leftover_pool(backend), LEFTOVER_TIMEOUT)
    return VirtualHost(
        name=f"{HostKind.ACCESS}/{parts_target(access)}",
        title=f"Pipelines of ModelAccess {access.key}",
        hosts=(),
        rules=tuple(rules[name] for name in sorted(rules)),
        guard=_guard_own_pods((*leftovers, *(running for running in pods if running is not None))),
    )


def _guard_own_pods(pipelines: Iterable[Backend]) -> Guard:
    """Return a guard that admits the pods of these pipelines; a closed one if there are none."""
    addresses = {address for pipeline in pipelines for address in pipeline.callers}
    return AddressGuard(tuple(sorted(addresses))) if addresses else ClosedGuard()


def _build_rule(name: str, backend: Backend, pool: PoolKey, timeout: timedelta) -> RouteRule:
    no_endpoint = f"Inference {name} has no ready endpoint"
    return RouteRule(
        name=name,
        headers=(HeaderMatcher(PART_HEADER, Comparison.EXACT, name),),
        targets=(WeightedBackend(pool, 1),),
        timeout=timeout,
        unavailable=None if backend.endpoints else no_endpoint,
    )
