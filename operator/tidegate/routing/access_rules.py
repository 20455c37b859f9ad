"""What becomes of one ModelAccess: which of its targets count, with which weight, and what is left out and why.

It depends on the access, its targets and the owners of its hosts, so no other access can change it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tidegate.api.durations import parse_duration
from tidegate.api.matching import HeaderMatch, Sticky
from tidegate.api.meta import ObjectKey
from tidegate.api.model_access import ModelAccess, Route
from tidegate.api.patterns import MAX_PROGRAM_SIZE, program_size
from tidegate.api.reasons import Reason
from tidegate.routing import hosts, release
from tidegate.routing.access_pools import AccessPools
from tidegate.routing.admission import admissions
from tidegate.routing.credentials import Credentials
from tidegate.routing.fleet import Backend, BackendKey
from tidegate.routing.guards import plan_guard
from tidegate.routing.hosts import HostKey, HostKind
from tidegate.routing.ir import (
    Comparison,
    HeaderTest,
    MirroredBackend,
    Pool,
    PoolKey,
    RequestRate,
    RouteRule,
    User,
    UserKind,
    VirtualHost,
    WeightedBackend,
)
from tidegate.routing.pipelines import (
    PlannedPart,
    parts_host,
    pipeline_key,
    pipeline_pool,
    planned_parts,
    why_unanswered,
)
from tidegate.routing.references import References, backend_key
from tidegate.routing.refusals import Refusal
from tidegate.routing.sticky import Share, intervals


@dataclass(frozen=True, slots=True)
class PlannedTarget:
    """One target as the proxies will see it: for status.routes."""

    inference: str
    weight: int
    endpoints: int


@dataclass(frozen=True, slots=True)
class PlannedMirror:
    """One mirror as the proxies will see it: for status.routes."""

    inference: str
    percent: int
    endpoints: int


@dataclass(frozen=True, slots=True)
class PlannedFallback:
    """The fallback as the proxies will see it; `serving`: it answers for targets without a pod."""

    inference: str
    serving: bool
    endpoints: int


@dataclass(frozen=True, slots=True)
class PlannedRoute:
    """One route as the proxies will see it: for status.routes."""

    name: str
    targets: tuple[PlannedTarget, ...]
    mirrors: tuple[PlannedMirror, ...] = ()
    fallback: PlannedFallback | None = None
    parts: tuple[PlannedPart, ...] = ()


@dataclass(frozen=True, slots=True)
class AccessPlan:
    """What becomes of one ModelAccess."""

    access: ObjectKey
    uid: str
    generation: int
    host: VirtualHost
    routes: tuple[PlannedRoute, ...]
    refusals: tuple[Refusal, ...]
    pools: tuple[Pool, ...] = ()
    """Those that no other access uses."""
    parts_host: VirtualHost | None = None
    """Where its pipelines call Inferences."""

    @property
    def unavailable(self) -> str | None:
        """Why the first route that cannot answer cannot; None when every route can."""
        return next((rule.unavailable for rule in self.host.rules if rule.unavailable is not None), None)


def plan_access(
    access: ModelAccess,
    backends: Mapping[BackendKey, Backend],
    owners: Mapping[str, ObjectKey],
    credentials: Credentials | None,
    left: Sequence[Backend] = (),
) -> AccessPlan:
    """What becomes of `access`; `owners` says to whom each host belongs (hosts.claim), `left` what pipelines.left_over does.

    Without `credentials`, the plan is that of a process that may not see them: it says nothing about them, and lets nobody in.
    """
    key = access.key
    references = References.of(access, backends)
    pools = AccessPools(access)
    planned = [
        _plan_route(access, route, references, pools)
        if route.pipeline is None
        else _plan_pipeline(access, route, references, pools, backends.get(pipeline_key(key, route.name)))
        for route in access.spec.routes
    ]
    inside = parts_host(access, backends, pools, left)
    callers = plan_guard(access, credentials)
    rules = tuple(one.rule for one in planned if one.rule is not None)
    won = (host for host in sorted(set(access.spec.hosts)) if owners[host] == key)
    return AccessPlan(
        access=key,
        uid=access.metadata.uid,
        generation=access.metadata.generation,
        host=VirtualHost(
            name=str(HostKey(HostKind.ACCESS, key)),
            title=f"ModelAccess {key}",
            hosts=(hosts.access_host(key), *won),
            rules=tuple(_shut(rule, access) for rule in rules) if callers.closed else rules,
            rate=_rate(access),
            guard=None if callers.closed else callers.guard,
        ),
        routes=tuple(one.route for one in planned if one.rule is not None),
        refusals=(
            *hosts.refuse(access, owners),
            *(refusal for one in planned for refusal in one.refusals),
            *callers.refusals,
        ),
        pools=(*pools.own, *(one.pool for one in planned if one.pool is not None)),
        parts_host=inside,
    )


def _shut(rule: RouteRule, access: ModelAccess) -> RouteRule:
    """`rule` for nobody: there is nothing to tell callers apart by."""
    why = (
        f"ModelAccess {access.key}: its callers cannot be checked; "
        f"see kubectl -n {access.key.namespace} describe modelaccess {access.key.name}"
    )
    return replace(rule, unavailable=why)


@dataclass(frozen=True, slots=True)
class _Planned:
    """One route: for the proxies (None: left out), for the status, and what is refused of it."""

    rule: RouteRule | None
    route: PlannedRoute
    refusals: tuple[Refusal, ...]
    pool: Pool | None = None


@dataclass(frozen=True, slots=True)
class _Target:
    """A target that can be used; `weight` is the one in effect, `asked` the one that it has when all have pods."""

    backend: Backend
    pool: PoolKey
    asked: int
    weight: int
    borrows: bool
    """Whether it may answer in place of a target without a pod."""

    @property
    def awake(self) -> bool:
        """Whether it has a pod."""
        return bool(self.backend.endpoints)


def _plan_route(access: ModelAccess, route: Route, references: References, pools: AccessPools) -> _Planned:
    unfit = tuple(_unfit_patterns(access, route))
    if unfit:
        return _Planned(None, PlannedRoute(route.name, ()), unfit)
    refusals: list[Refusal] = []

    def usable(part: str, inference: str) -> Backend | None:
        found = references.find(route, part, inference)
        if isinstance(found, Refusal):
            refusals.append(found)
            return None
        return found

    named = sorted(route.targets, key=lambda target: target.inference)
    found = [usable("targets", one.inference) or _kept(access, route, one.inference) for one in named]
    mirrors = [(mirror.percent, usable("mirror", mirror.inference)) for mirror in route.mirror]
    fallback = usable("fallback", route.fallback.inference) if route.fallback else None
    targets = _weigh(access, route, [one for one in found if one], fallback, pools)
    # Chosen even when it is not needed, so that its cluster is there when it is.
    behind = pools.target(route, fallback, None) if fallback else None
    stand_in = behind if fallback is not None and fallback.endpoints else None
    admission = admissions(access).get(route.name)
    rescue = (
        (WeightedBackend(stand_in, 1, admission),) if stand_in is not None and not _anyone(targets) else ()
    )
    serving = stand_in is not None and any(one.weight and not one.awake for one in targets)
    rule = RouteRule(
        name=route.name,
        headers=_header_tests(route),
        targets=rescue or _arrange(access, route, targets, stand_in),
        timeout=parse_duration(route.timeout),
        attempts=route.retry.attempts if route.retry else None,
        unavailable=None if rescue or _anyone(targets) else _why_nobody(access, route),
        sticky=_user(route.sticky) if route.sticky and not rescue else None,
        mirrors=tuple(
            MirroredBackend(pools.mirror(one), percent) for percent, one in mirrors if one and one.endpoints
        ),
        client_deadline=access.spec.protection is not None and access.spec.protection.deadline,
        counted=release.is_released(access, route),
    )
    return _Planned(
        rule,
        _planned_route(route, targets, mirrors, fallback, replaced=bool(rescue), serving=serving),
        tuple(refusals),
    )


def _plan_pipeline(
    access: ModelAccess, route: Route, references: References, pools: AccessPools, backend: Backend | None
) -> _Planned:
    """A route whose pods call models in turn; it is left out only where no request could name it, or match it."""
    unfit = (*_unfit_patterns(access, route), *references.misnamed(route))
    if unfit or route.pipeline is None:
        return _Planned(None, PlannedRoute(route.name, ()), unfit)
    found = [references.find_part(route, name) for name in sorted(route.pipeline.inferences)]
    parts = planned_parts(access, route.pipeline, references.backends)
    key = pipeline_key(access.key, route.name)
    rule = RouteRule(
        name=route.name,
        headers=_header_tests(route),
        targets=(WeightedBackend(key, 1, admissions(access).get(route.name)),),
        timeout=parse_duration(route.timeout),
        attempts=route.retry.attempts if route.retry else None,
        unavailable=why_unanswered(access, route, backend, parts),
        client_deadline=access.spec.protection is not None and access.spec.protection.deadline,
    )
    return _Planned(
        rule,
        PlannedRoute(route.name, (), parts=parts),
        tuple(one for one in found if isinstance(one, Refusal)),
        pipeline_pool(route, key, backend, pools),
    )


def _weigh(
    access: ModelAccess, route: Route, found: Sequence[Backend], fallback: Backend | None, pools: AccessPools
) -> list[_Target]:
    """The targets with their weights in effect: who has no pod takes no share, as long as another one may take it."""
    awake = {backend.key.name for backend in found if backend.endpoints}
    released = release.is_released(access, route)
    asked = weights = _weights(release.in_effect(access, route))
    if released:
        weights = _weights(release.in_effect(access, route, awake))
    elif len(awake) < len(weights) and any(weights[name] for name in awake):
        weights = {name: weight if name in awake else 0 for name, weight in weights.items()}
    return [
        _Target(
            backend,
            pools.target(route, backend, fallback),
            asked[backend.key.name],
            weights[backend.key.name],
            borrows=not (released and access.spec.release and access.spec.release.target == backend.key.name),
        )
        for backend in found
    ]


def _kept(access: ModelAccess, route: Route, inference: str) -> Backend | None:
    """A stable target of a release that cannot be used: its share is nobody else's, so it stays, without a pod."""
    stable = {target.inference for target in access.spec.stable_targets}
    if not release.is_released(access, route) or inference not in stable:
        return None
    return Backend(backend_key(access, inference), "")


def _weights(route: Route) -> dict[str, int]:
    return {target.inference: target.weight for target in route.targets}


def _anyone(targets: Sequence[_Target]) -> bool:
    return any(target.weight and target.awake for target in targets)


def _arrange(
    access: ModelAccess, route: Route, targets: Sequence[_Target], stand_in: PoolKey | None
) -> tuple[WeightedBackend, ...]:
    """The targets as the proxies get them: by weight, or as intervals of users; `stand_in` for those without a pod."""
    pools = {
        one.backend.key.name: stand_in if stand_in and one.weight and not one.awake else one.pool
        for one in targets
    }
    admission = admissions(access).get(route.name)

    judged = {one.pool for one in targets if release.is_candidate(access, route, one.backend.key.name)}

    def sent(inference: str, weight: int) -> WeightedBackend:
        """With no admission control for the pods that are still being judged, so that their failures are seen and not prevented."""
        pool = pools[inference]
        return WeightedBackend(pool, weight, None if pool in judged else admission)

    if route.sticky is None or not _anyone(targets):
        return tuple(sent(one.backend.key.name, one.weight) for one in targets)
    # Whoever takes everything and has no pod has no interval to lend by; then what is in effect is the line.
    lent = any(one.asked and one.awake for one in targets)
    line = intervals(
        [
            Share(one.backend.key.name, one.asked if lent else one.weight, one.awake, one.borrows)
            for one in targets
        ]
    )
    return tuple(sent(interval.name, interval.length) for interval in line)


def _planned_route(
    route: Route,
    targets: Sequence[_Target],
    mirrors: Sequence[tuple[int, Backend | None]],
    fallback: Backend | None,
    *,
    replaced: bool,
    serving: bool,
) -> PlannedRoute:
    return PlannedRoute(
        name=route.name,
        targets=tuple(
            PlannedTarget(
                target.backend.key.name, 0 if replaced else target.weight, len(target.backend.endpoints)
            )
            for target in targets
        ),
        mirrors=tuple(
            PlannedMirror(one.key.name, percent if one.endpoints else 0, len(one.endpoints))
            for percent, one in mirrors
            if one
        ),
        fallback=PlannedFallback(fallback.key.name, serving, len(fallback.endpoints)) if fallback else None,
    )


def _unfit_patterns(access: ModelAccess, route: Route) -> list[Refusal]:
    """The expressions of `route` that Envoy would not take; it would refuse everybody's routes along with them."""
    return [
        Refusal(
            access.key,
            Reason.INVALID_SPEC,
            f"spec.routes[{route.name}].match.headers[{header.name}].regex",
            f"{_what_is_unfit(size)}: make it smaller, or use exact or prefix; route {route.name} is left out meanwhile",
        )
        for header in (route.match.headers if route.match else ())
        if header.regex is not None
        and ((size := program_size(header.regex)) is None or size > MAX_PROGRAM_SIZE)
    ]


def _what_is_unfit(size: int | None) -> str:
    if size is None:
        return "the expression does not compile in RE2"
    return f"the expression takes {size} instructions of RE2, and Envoy allows {MAX_PROGRAM_SIZE}"


def _header_tests(route: Route) -> tuple[HeaderTest, ...]:
    return tuple(_header_test(header) for header in (route.match.headers if route.match else ()))


def _header_test(header: HeaderMatch) -> HeaderTest:
    if header.exact is not None:
        return HeaderTest(header.name, Comparison.EXACT, header.exact)
    if header.prefix is not None:
        return HeaderTest(header.name, Comparison.PREFIX, header.prefix)
    return HeaderTest(header.name, Comparison.REGEX, header.regex or "")


def _user(sticky: Sticky) -> User:
    if sticky.header is not None:
        return User(UserKind.HEADER, sticky.header)
    return User(UserKind.COOKIE, sticky.cookie or "")


def _rate(access: ModelAccess) -> RequestRate | None:
    limit = access.spec.protection.rate_limit if access.spec.protection else None
    return RequestRate(limit.requests, parse_duration(limit.per)) if limit is not None else None


def _why_nobody(access: ModelAccess, route: Route) -> str:
    return (
        f"ModelAccess {access.key}: no target of route {route.name} has a ready endpoint; "
        f"see kubectl -n {access.key.namespace} describe modelaccess {access.key.name}"
    )
