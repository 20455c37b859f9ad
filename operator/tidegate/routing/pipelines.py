"""Pipelines in the routing: their own pods answer a route, and what those pods call goes through the gateway again.

The pods of a route are a backend of their own. Inferences that they call have no host, so each ModelAccess with
pipelines has a second virtual host for them, with its limits and ejection; a ModelAccess or FeatureCompute that is
called has one anyway. That host answers the access's own pods and nobody else: it goes by the address of the caller,
since its name is no secret, and asks for no key, which the pods do not have.
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
from tidegate.api.pipeline import Pipeline
from tidegate.routing.access_pools import AccessPools, retry_budget
from tidegate.routing.fleet import Backend, BackendKey, BackendKind
from tidegate.routing.guards import AddressGuard, ClosedGuard, Guard
from tidegate.routing.hosts import HostKind
from tidegate.routing.ir import Comparison, HeaderTest, Pool, PoolKey, RouteRule, VirtualHost, WeightedBackend
from tidegate.routing.references import backend_key

PART_HEADER: Final = "x-tidegate-part"
"""At the host for parts: the Inference that is called."""

LEFT_OVER: Final = timedelta(seconds=60)
"""For calls of pods whose route is about to follow a changed spec; they keep their own deadlines anyway."""


@dataclass(frozen=True, slots=True)
class PlannedPart:
    """One model of a pipeline as the proxies will see it; `endpoints` is None for a ModelAccess."""

    name: str
    inference: str | None
    access: str | None
    endpoints: int | None


def pipeline_key(access: ObjectKey, route: str) -> BackendKey:
    """The backend that answers a pipeline's route; neither name has a dot."""
    return BackendKey(BackendKind.PIPELINE, access.namespace, f"{access.name}.{route}")


def pipeline_owner(backend: BackendKey) -> tuple[ObjectKey, str]:
    """The ModelAccess and the route that a backend was made for."""
    access, _, route = backend.name.rpartition(".")
    return ObjectKey(backend.namespace, access), route


def parts_target(access: ModelAccess) -> str:
    """What the pods of an access ask the gateway for when they call an Inference; no access is called so."""
    return f"pipeline/of/{access.metadata.uid}"


def planned_parts(
    access: ModelAccess, pipeline: Pipeline, backends: Mapping[str, Backend]
) -> tuple[PlannedPart, ...]:
    """The models of a pipeline, for the status."""
    found = {name: len(backend.endpoints) for name, backend in backends.items()}
    return tuple(
        PlannedPart(
            part.name,
            part.inference,
            part.access,
            found.get(part.inference, 0) if part.inference is not None else None,
        )
        for part in pipeline.models
    )


def why_unanswered(
    access: ModelAccess, route: Route, backend: Backend | None, parts: Sequence[PlannedPart]
) -> str | None:
    """Why requests to a pipeline's route cannot be answered; None when they can, be it in part."""
    pipeline = route.pipeline
    if pipeline is None:
        return None
    look = f"see kubectl -n {access.key.namespace} describe modelaccess {access.key.name}"
    if backend is None or not backend.endpoints:
        return f"ModelAccess {access.key}: the pipeline of route {route.name} has no ready pod; {look}"
    optional = {part.name for part in pipeline.models if part.optional}
    for part in parts:
        if part.inference is not None and not part.endpoints and part.name not in optional:
            return (
                f"ModelAccess {access.key}: Inference {part.inference}, which answers {part.name} in the pipeline of "
                f"route {route.name}, has no ready endpoint; {look}"
            )
    return None


def pipeline_pool(route: Route, key: BackendKey, backend: Backend | None, pools: AccessPools) -> Pool:
    """The pods of a pipeline; limits hold, but none is left out for errors, since those are most often its models'."""
    endpoints = backend.distinct_endpoints if backend is not None else ()
    return Pool(key, endpoints, retry_budget(route), limits=pools.limits)


def left_over(access: ModelAccess, pipelines: Iterable[Backend]) -> tuple[Backend, ...]:
    """Those of an access's pipelines whose route is gone, or is none any more, while pods of them still call models."""
    pipelines = tuple(pipelines)
    if not pipelines:
        return ()
    wanted = {
        pipeline_key(access.key, route.name) for route in access.spec.routes if route.pipeline is not None
    }
    return tuple(
        sorted((one for one in pipelines if one.calls and one.key not in wanted), key=attrgetter("key"))
    )


def parts_host(
    access: ModelAccess,
    backends: Mapping[BackendKey, Backend],
    pools: AccessPools,
    left: Sequence[Backend] = (),
) -> VirtualHost | None:
    """The host at which pipelines of `access` call Inferences; None where none does.

    Running pods of a route may still call what the spec no longer names, until others have taken their place;
    and those `left` over from routes that are gone, until they have answered what they were asked before.
    """
    routes = [route for route in access.spec.routes if route.pipeline is not None]
    if not routes and not left:
        return None
    pods = [backends.get(pipeline_key(access.key, route.name)) for route in routes]
    rules: dict[str, RouteRule] = {}
    for route, running in zip(routes, pods, strict=True):
        named = route.pipeline.inferences if route.pipeline is not None else frozenset[str]()
        for name in sorted(named | set(running.calls if running is not None else ())):
            backend = backends.get(backend_key(access, name))
            if backend is not None:
                timeout = parse_duration(route.timeout) if name in named else LEFT_OVER
                before = rules.get(name)
                longest = timeout if before is None else max(timeout, before.timeout)
                rules[name] = _rule(backend, pools.target(route, backend, None), longest)
    for name in sorted({name for pipeline in left for name in pipeline.calls}):
        backend = backends.get(backend_key(access, name))
        if name in rules:
            rules[name] = replace(rules[name], timeout=max(LEFT_OVER, rules[name].timeout))
        elif backend is not None:
            rules[name] = _rule(backend, pools.left_over(backend), LEFT_OVER)
    return VirtualHost(
        name=f"{HostKind.ACCESS}/{parts_target(access)}",
        title=f"Pipelines of ModelAccess {access.key}",
        hosts=(),
        rules=tuple(rules[name] for name in sorted(rules)),
        guard=_own_pods((*left, *(running for running in pods if running is not None))),
    )


def _own_pods(pipelines: Iterable[Backend]) -> Guard:
    """Lets in the pods of these pipelines; nobody as long as there are none."""
    addresses = {address for pipeline in pipelines for address in pipeline.callers}
    return AddressGuard(tuple(sorted(addresses))) if addresses else ClosedGuard()


def _rule(backend: Backend, pool: PoolKey, timeout: timedelta) -> RouteRule:
    name = backend.key.name
    nobody = f"Inference {name} has no ready endpoint"
    return RouteRule(
        name=name,
        headers=(HeaderTest(PART_HEADER, Comparison.EXACT, name),),
        targets=(WeightedBackend(pool, 1),),
        timeout=timeout,
        unavailable=None if backend.endpoints else nobody,
    )
