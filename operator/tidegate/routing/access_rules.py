"""The plan for one ModelAccess: which of its targets are used, with which weights, and what is left out and why.

It depends on the access, its targets and the owners of its hosts, so no other access can change it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tidegate.api.durations import parse_duration
from tidegate.api.matching import HeaderMatch, StickySession
from tidegate.api.meta import ObjectKey
from tidegate.api.model_access import ModelAccess, Route
from tidegate.api.patterns import MAX_PROGRAM_SIZE, measure_program
from tidegate.api.reasons import Reason
from tidegate.routing import hosts, release
from tidegate.routing.access_pools import AccessPools
from tidegate.routing.credentials import CallerCredentials
from tidegate.routing.fleet import Backend, BackendKey
from tidegate.routing.guards import plan_guard
from tidegate.routing.hosts import HostKey, HostKind
from tidegate.routing.ir import (
    REDUCED,
    Comparison,
    EndpointPool,
    HeaderMatcher,
    HostState,
    MirroredBackend,
    PlannedHost,
    RequestRate,
    RouteRule,
    UserSource,
    UserSourceKind,
    VirtualHost,
    WeightedBackend,
    name_reduced,
)
from tidegate.routing.pipelines import (
    PlannedPart,
    pipeline_key,
    plan_parts,
    plan_parts_host,
    plan_pipeline_pool,
    unanswered_reason,
)
from tidegate.routing.references import AccessReferences, RouteBackends, backend_name
from tidegate.routing.refusals import RoutingRefusal
from tidegate.routing.route_targets import (
    AdmissionLimits,
    RouteTargets,
    admission_limits,
    is_priced,
    plan_targets,
)
from tidegate_dataplane.contract import CANDIDATES_HEADER, ask_for_fewest


@dataclass(frozen=True, slots=True)
class PlannedTarget:
    """One target as the proxies get it, for status.routes."""

    inference: str
    weight: int
    endpoints: int


@dataclass(frozen=True, slots=True)
class PlannedMirror:
    """One mirror as the proxies get it, for status.routes."""

    inference: str
    percent: int
    endpoints: int


@dataclass(frozen=True, slots=True)
class PlannedFallback:
    """The fallback as the proxies get it, for status.routes; `serving`: it answers for targets without a pod."""

    inference: str
    serving: bool
    endpoints: int


@dataclass(frozen=True, slots=True)
class PlannedRoute:
    """One route as the proxies get it, for status.routes."""

    name: str
    targets: tuple[PlannedTarget, ...]
    mirrors: tuple[PlannedMirror, ...] = ()
    fallback: PlannedFallback | None = None
    parts: tuple[PlannedPart, ...] = ()


@dataclass(frozen=True, slots=True)
class AccessPlan:
    """The routing of one ModelAccess."""

    access: ObjectKey
    uid: str
    generation: int
    host: VirtualHost
    routes: tuple[PlannedRoute, ...]
    refusals: tuple[RoutingRefusal, ...]
    pools: tuple[EndpointPool, ...] = ()
    """The pools that no other access uses."""
    parts_host: VirtualHost | None = None
    """The host at which its pipelines call Inferences."""

    @property
    def unavailable_reason(self) -> str | None:
        """Reason of the first route that cannot answer; None if every route can."""
        return next((rule.unavailable for rule in self.host.rules if rule.unavailable is not None), None)

    @property
    def planned_host(self) -> PlannedHost:
        """Virtual host of the access with its state and refusals."""
        state = HostState(self.uid, self.generation, answers=self.unavailable_reason is None)
        return PlannedHost(self.host, state, self.refusals)

    @property
    def planned_parts_host(self) -> PlannedHost | None:
        """Virtual host for calls of the access's own pipelines; None if it has none."""
        if self.parts_host is None:
            return None
        return PlannedHost(self.parts_host, HostState(self.uid, self.generation, answers=True))


def plan_access(
    access: ModelAccess,
    backends: Mapping[BackendKey, Backend],
    owners: Mapping[str, ObjectKey],
    credentials: CallerCredentials | None,
    leftovers: Sequence[Backend] = (),
) -> AccessPlan:
    """Plan the routing of `access`.

    `owners` has the owner of each host (hosts.find_host_owners), `leftovers` the result of pipelines.find_leftovers.
    Without `credentials`, the plan is for a process that may not read them: it has no refusals about them, and admits no caller.
    """
    key = access.key
    references = AccessReferences.from_access(access, backends)
    pools = AccessPools(access)
    limits = admission_limits(access, references.backends)
    route_plans = [
        _plan_route(access, route, references, pools, limits)
        if route.pipeline is None
        else _plan_pipeline(
            access, route, references, pools, backends.get(pipeline_key(key, route.name)), limits
        )
        for route in access.spec.routes
    ]
    pipeline_host = plan_parts_host(access, backends, pools, leftovers)
    guard_plan = plan_guard(access, credentials)
    rules = tuple(route_plan.rule for route_plan in route_plans if route_plan.rule is not None)
    own_hosts = (host for host in sorted(set(access.spec.hosts)) if owners[host] == key)
    return AccessPlan(
        access=key,
        uid=access.metadata.uid,
        generation=access.metadata.generation,
        host=VirtualHost(
            name=str(HostKey(HostKind.ACCESS, key)),
            title=f"ModelAccess {key}",
            hosts=(hosts.access_hostname(key), *own_hosts),
            rules=tuple(_close_rule(rule, access) for rule in rules) if guard_plan.is_closed else rules,
            rate=_request_rate(access),
            guard=None if guard_plan.is_closed else guard_plan.guard,
        ),
        routes=tuple(route_plan.route for route_plan in route_plans if route_plan.rule is not None),
        refusals=(
            *hosts.find_host_conflicts(access, owners),
            *(refusal for route_plan in route_plans for refusal in route_plan.refusals),
            *guard_plan.refusals,
        ),
        pools=(
            *pools.own_pools,
            *(route_plan.pool for route_plan in route_plans if route_plan.pool is not None),
        ),
        parts_host=pipeline_host,
    )


def _close_rule(rule: RouteRule, access: ModelAccess) -> RouteRule:
    """Return `rule` answering 503 to every request: callers cannot be authenticated."""
    message = (
        f"ModelAccess {access.key}: its callers cannot be checked; "
        f"see kubectl -n {access.key.namespace} describe modelaccess {access.key.name}"
    )
    return replace(rule, unavailable=message)


@dataclass(frozen=True, slots=True)
class _RoutePlan:
    """The plan of one route: its rule (None: left out), its status and its refusals."""

    rule: RouteRule | None
    route: PlannedRoute
    refusals: tuple[RoutingRefusal, ...]
    pool: EndpointPool | None = None


def _plan_route(
    access: ModelAccess,
    route: Route,
    references: AccessReferences,
    pools: AccessPools,
    limits: AdmissionLimits,
) -> _RoutePlan:
    invalid_patterns = tuple(_find_invalid_patterns(access, route))
    if invalid_patterns:
        return _RoutePlan(None, PlannedRoute(route.name, ()), invalid_patterns)
    backends = references.resolve_route(route)
    targets = plan_targets(access, route, backends, pools, limits)
    rule = RouteRule(
        name=route.name,
        headers=_header_matchers(route),
        targets=targets.weighted,
        timeout=parse_duration(route.timeout),
        attempts=route.retry.attempts if route.retry else None,
        unavailable=None if targets.can_answer else _no_endpoint_message(access, route),
        sticky=_user_source(route.sticky) if route.sticky and not targets.fallback.answers_all else None,
        mirrors=tuple(
            MirroredBackend(pools.select_mirror_pool(backend), percent)
            for percent, backend in backends.mirrors
            if backend.endpoints
        ),
        client_deadline=access.spec.protection is not None and access.spec.protection.deadline,
        counted=release.is_released(access, route),
        priced=is_priced(access),
    )
    if targets.reduced is not None:
        rule = replace(rule, reduced=(_reduce_rule(rule, targets.reduced),))
    return _RoutePlan(rule, _build_planned_route(access, route, backends, targets), backends.refusals)


def _reduce_rule(
    rule: RouteRule,
    target: WeightedBackend,
    request_headers: tuple[tuple[str, str], ...] = (),
    suffix: str = REDUCED,
) -> RouteRule:
    """Return how `target` answers the requests of `rule` that are beyond its admitted share."""
    return replace(
        rule,
        name=f"{rule.name}{suffix}",
        targets=(target,),
        sticky=None,
        mirrors=(),
        counted=False,
        request_headers=request_headers,
    )


def _shorten_parts(rule: RouteRule, part: str) -> RouteRule:
    """Return how a pipeline answers with the fewest candidates for one part, or for all of them if it has no name."""
    headers = ((CANDIDATES_HEADER, ask_for_fewest(part)),)
    return _reduce_rule(rule, rule.targets[0], headers, name_reduced(part))


def _plan_pipeline(
    access: ModelAccess,
    route: Route,
    references: AccessReferences,
    pools: AccessPools,
    backend: Backend | None,
    limits: AdmissionLimits,
) -> _RoutePlan:
    """Plan a route that a pipeline answers; it is left out only if no request could match it or name its model."""
    problems = (*_find_invalid_patterns(access, route), *references.check_pipeline_name(route))
    if problems or route.pipeline is None:
        return _RoutePlan(None, PlannedRoute(route.name, ()), problems)
    results = [references.find_part_inference(route, name) for name in sorted(route.pipeline.inference_names)]
    parts = plan_parts(access, route.pipeline, references.backends)
    key = pipeline_key(access.key, route.name)
    rule = RouteRule(
        name=route.name,
        headers=_header_matchers(route),
        targets=(WeightedBackend(key, 1, limits.get((route.name, ""))),),
        timeout=parse_duration(route.timeout),
        attempts=route.retry.attempts if route.retry else None,
        unavailable=unanswered_reason(access, route, backend, parts),
        client_deadline=access.spec.protection is not None and access.spec.protection.deadline,
        priced=is_priced(access),
    )
    if rule.priced and route.pipeline.reduced_value_percent is not None:
        parts_alone = [model.name for model in route.pipeline.separately_reduced]
        rule = replace(rule, reduced=tuple(_shorten_parts(rule, part) for part in ("", *parts_alone)))
    return _RoutePlan(
        rule,
        PlannedRoute(route.name, (), parts=parts),
        tuple(result for result in results if isinstance(result, RoutingRefusal)),
        plan_pipeline_pool(route, key, backend, pools),
    )


def _build_planned_route(
    access: ModelAccess, route: Route, backends: RouteBackends, targets: RouteTargets
) -> PlannedRoute:
    return PlannedRoute(
        name=route.name,
        targets=tuple(
            PlannedTarget(
                target.name,
                0 if targets.fallback.answers_all else target.weight,
                len(target.backend.answering_pods),
            )
            for target in targets.usable
        ),
        mirrors=tuple(
            PlannedMirror(
                backend_name(access, backend), percent if backend.endpoints else 0, len(backend.endpoints)
            )
            for percent, backend in backends.mirrors
        ),
        fallback=PlannedFallback(
            backend_name(access, backends.fallback),
            targets.fallback.serving,
            len(backends.fallback.answering_pods),
        )
        if backends.fallback
        else None,
    )


def _find_invalid_patterns(access: ModelAccess, route: Route) -> list[RoutingRefusal]:
    """Return refusals for the expressions of `route` that Envoy would reject.

    Envoy rejects the whole response, so the routes of other accesses in it would be lost too.
    """
    return [
        RoutingRefusal(
            access.key,
            Reason.INVALID_SPEC,
            f"spec.routes[{route.name}].match.headers[{header.name}].regex",
            f"{_describe_size(size)}: make it smaller, or use exact or prefix; route {route.name} is left out meanwhile",
        )
        for header in (route.match.headers if route.match else ())
        if header.regex is not None
        and ((size := measure_program(header.regex)) is None or size > MAX_PROGRAM_SIZE)
    ]


def _describe_size(size: int | None) -> str:
    if size is None:
        return "the expression does not compile in RE2"
    return f"the expression takes {size} instructions of RE2, and Envoy allows {MAX_PROGRAM_SIZE}"


def _header_matchers(route: Route) -> tuple[HeaderMatcher, ...]:
    return tuple(_header_matcher(header) for header in (route.match.headers if route.match else ()))


def _header_matcher(header: HeaderMatch) -> HeaderMatcher:
    if header.exact is not None:
        return HeaderMatcher(header.name, Comparison.EXACT, header.exact)
    if header.prefix is not None:
        return HeaderMatcher(header.name, Comparison.PREFIX, header.prefix)
    return HeaderMatcher(header.name, Comparison.REGEX, header.regex or "")


def _user_source(sticky: StickySession) -> UserSource:
    if sticky.header is not None:
        return UserSource(UserSourceKind.HEADER, sticky.header)
    return UserSource(UserSourceKind.COOKIE, sticky.cookie or "")


def _request_rate(access: ModelAccess) -> RequestRate | None:
    limit = access.spec.protection.rate_limit if access.spec.protection else None
    return RequestRate(limit.requests, parse_duration(limit.per)) if limit is not None else None


def _no_endpoint_message(access: ModelAccess, route: Route) -> str:
    return (
        f"ModelAccess {access.key}: no target of route {route.name} has a ready endpoint; "
        f"see kubectl -n {access.key.namespace} describe modelaccess {access.key.name}"
    )
