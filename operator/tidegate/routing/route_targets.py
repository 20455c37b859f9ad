"""The targets of one route: their effective weights, what the fallback answers, and the limits of admission control."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from tidegate.api.model_access import ModelAccess, Route
from tidegate.api.protection import AdmissionMode
from tidegate.routing import release
from tidegate.routing.access_pools import AccessPools
from tidegate.routing.fleet import Backend
from tidegate.routing.ir import AdmissionLimit, PoolKey, WeightedBackend
from tidegate.routing.references import RouteBackends, backend_key, backend_name, is_short_name
from tidegate.routing.sticky import StickyShare, divide_line

_MAX_FAILURE_PERCENT: Final = 80.0
"""The limit of admission control for the highest value: failures of lower values do not reach it, but it still relieves a target that answers nothing."""

_DEFAULT_VALUE: Final = "1"
"""The value of a request of a route without one that a pipeline answers, or an Inference that does not exist."""

AdmissionLimits = Mapping[tuple[str, str], AdmissionLimit]
"""Limits of admission control by route and Inference; empty in place of the Inference is the pipeline."""


@dataclass(frozen=True, slots=True)
class UsableTarget:
    """A target that can be used; `weight` is in effect now, `full_weight` if all targets had pods."""

    name: str
    """As the spec names the Inference."""
    backend: Backend
    pool: PoolKey
    full_weight: int
    weight: int
    may_borrow: bool
    """Whether it may answer instead of a target without a pod."""

    @property
    def has_pods(self) -> bool:
        """Return whether it has a pod, of its own or a spare."""
        return bool(self.backend.answering_pods)


@dataclass(frozen=True, slots=True)
class FallbackDecision:
    """What the fallback of a route answers now.

    `pool`: the pool that answers for targets without a pod; None if there is no fallback with a pod.
    `serving`: there is such a target with a weight.
    `answers_all`: no target with a weight has a pod.
    """

    pool: PoolKey | None = None
    serving: bool = False
    answers_all: bool = False


@dataclass(frozen=True, slots=True)
class RouteTargets:
    """The targets of a route that can be used, what its fallback answers, and both as the proxies get them."""

    usable: tuple[UsableTarget, ...]
    fallback: FallbackDecision
    weighted: tuple[WeightedBackend, ...]
    reduced: WeightedBackend | None = None
    """The fallback, if it answers what the targets have no capacity for."""

    @property
    def can_answer(self) -> bool:
        """Return whether a target or the fallback can answer."""
        return self.fallback.answers_all or _has_answering_target(self.usable)


def plan_targets(
    access: ModelAccess, route: Route, backends: RouteBackends, pools: AccessPools, limits: AdmissionLimits
) -> RouteTargets:
    """Plan the targets of `route`, which may use the Inferences in `backends`, with the access's `limits`."""
    targets = _weigh_targets(
        access, route, _with_stable_targets(access, route, backends.targets), backends.fallback, pools
    )
    fallback = _decide_fallback(route, backends.fallback, targets, pools)
    return RouteTargets(
        tuple(targets),
        fallback,
        _arrange_targets(access, route, targets, fallback, limits),
        _find_reduced_target(access, route, fallback, limits),
    )


def _with_stable_targets(access: ModelAccess, route: Route, targets: Sequence[Backend]) -> Sequence[Backend]:
    """Add the stable targets of a release that cannot be used, as targets without a pod, so that each keeps its share."""
    if not release.is_released(access, route):
        return targets
    by_name = {
        target.inference: Backend(backend_key(access, target.inference), "")
        for target in access.spec.stable_targets
        if is_short_name(target.inference, access.metadata.namespace)
    } | {backend_name(access, backend): backend for backend in targets}
    return [by_name[name] for name in sorted(by_name)]


def _weigh_targets(
    access: ModelAccess,
    route: Route,
    backends: Sequence[Backend],
    fallback: Backend | None,
    pools: AccessPools,
) -> list[UsableTarget]:
    """Return the targets with their effective weights: one without a pod gets none while another can take its share."""
    with_pods = {backend_name(access, backend) for backend in backends if backend.answering_pods}
    released = release.is_released(access, route)
    full_weights = weights = _target_weights(release.route_in_effect(access, route))
    if released:
        weights = _target_weights(release.route_in_effect(access, route, with_pods))
    elif len(with_pods) < len(weights) and any(weights[name] for name in with_pods):
        weights = {name: weight if name in with_pods else 0 for name, weight in weights.items()}
    return [
        UsableTarget(
            name,
            backend,
            pools.select_target_pool(route, backend, fallback),
            full_weights[name],
            weights[name],
            may_borrow=not (released and access.spec.release and access.spec.release.target == name),
        )
        for name, backend in ((backend_name(access, backend), backend) for backend in backends)
    ]


def _target_weights(route: Route) -> dict[str, int]:
    return {target.inference: target.weight for target in route.targets}


def _decide_fallback(
    route: Route, fallback: Backend | None, targets: Sequence[UsableTarget], pools: AccessPools
) -> FallbackDecision:
    """Return what the fallback of `route` answers now."""
    if fallback is None:
        return FallbackDecision()
    # Selected even while it is not needed, so that its cluster exists by the time it is.
    pool = pools.select_target_pool(route, fallback, None)
    if not fallback.answering_pods:
        return FallbackDecision()
    return FallbackDecision(
        pool,
        serving=any(target.weight and not target.has_pods for target in targets),
        answers_all=not _has_answering_target(targets),
    )


def _find_reduced_target(
    access: ModelAccess, route: Route, fallback: FallbackDecision, limits: AdmissionLimits
) -> WeightedBackend | None:
    """Return the fallback of a priced route with a value for its answers, unless it answers everything anyway."""
    spec = route.fallback
    if spec is None or spec.value_percent is None or fallback.pool is None or fallback.answers_all:
        return None
    limit = limits.get((route.name, spec.inference))
    return WeightedBackend(fallback.pool, 1, limit) if is_priced(access) else None


def _has_answering_target(targets: Sequence[UsableTarget]) -> bool:
    return any(target.weight and target.has_pods for target in targets)


def _arrange_targets(
    access: ModelAccess,
    route: Route,
    targets: Sequence[UsableTarget],
    fallback: FallbackDecision,
    limits: AdmissionLimits,
) -> tuple[WeightedBackend, ...]:
    """Return the targets as the proxies get them: by weight, as intervals of users, or the fallback for all of them."""
    fallback_limit = limits.get((route.name, route.fallback.inference)) if route.fallback else None
    if fallback.pool is not None and fallback.answers_all:
        return (WeightedBackend(fallback.pool, 1, fallback_limit),)
    answering = {
        target.name: (fallback.pool, fallback_limit)
        if fallback.pool and target.weight and not target.has_pods
        else (target.pool, limits.get((route.name, target.name)))
        for target in targets
    }
    candidate_pools = {target.pool for target in targets if release.is_candidate(access, route, target.name)}

    def to_weighted(inference: str, weight: int) -> WeightedBackend:
        # Without admission control for the candidate of a release, so that its failures are seen and not prevented.
        pool, limit = answering[inference]
        return WeightedBackend(pool, weight, None if pool in candidate_pools else limit)

    if route.sticky is None or not _has_answering_target(targets):
        return tuple(to_weighted(target.name, target.weight) for target in targets)
    # Intervals are lent only to targets with a pod and a weight of their own; without any, the effective weights make the line.
    has_borrowers = any(target.full_weight and target.has_pods for target in targets)
    line = divide_line(
        [
            StickyShare(
                target.name,
                target.full_weight if has_borrowers else target.weight,
                target.has_pods,
                target.may_borrow,
            )
            for target in targets
        ]
    )
    return tuple(to_weighted(interval.name, interval.length) for interval in line)


def is_priced(access: ModelAccess) -> bool:
    """Return whether gateways admit the planned shares of the access's requests."""
    protection = access.spec.protection
    control = protection.admission_control if protection is not None else None
    return control is not None and control.mode is AdmissionMode.PRICED


def admission_limits(access: ModelAccess, backends: Mapping[str, Backend]) -> AdmissionLimits:
    """Return the limits of admission control of an access, whose Inferences are `backends`; empty if it has none.

    A route counts its own requests to each of its targets. The lowest value begins to reject at `maxFailurePercent`, the
    highest at four fifths, and those between in equal ratios: rejecting low values relieves the target before higher ones are
    rejected.
    """
    control = access.spec.protection.admission_control if access.spec.protection is not None else None
    if control is None:
        return {}
    values = {
        (route.name, inference): Decimal(route.value or _answer_value(backends, inference))
        for route in access.spec.routes
        for inference in _list_answering(route)
    }
    ranks = {value: rank for rank, value in enumerate(sorted(set(values.values())))}
    lowest, steps = float(control.max_failure_percent), max(len(ranks) - 1, 1)
    ratio = (_MAX_FAILURE_PERCENT / lowest) ** (1 / steps)
    return {key: AdmissionLimit(round(lowest * ratio ** ranks[value], 2)) for key, value in values.items()}


def _list_answering(route: Route) -> Sequence[str]:
    """Return the Inferences that may answer a request of the route; for a pipeline one empty name."""
    fallback = (route.fallback.inference,) if route.fallback is not None else ()
    return (*(target.inference for target in route.targets), *fallback) or ("",)


def _answer_value(backends: Mapping[str, Backend], inference: str) -> str:
    backend = backends.get(inference)
    return backend.value if backend is not None else _DEFAULT_VALUE
