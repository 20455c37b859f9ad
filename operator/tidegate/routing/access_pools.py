"""The pools that one ModelAccess has for itself.

Limits, ejection, fallback, mirrors and the counters of a release belong to Envoy's clusters, and must not affect other accesses.
An access without these settings uses the shared pools.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Final

from tidegate.api.durations import parse_duration
from tidegate.api.model_access import ModelAccess, Route
from tidegate.api.protection import OutlierSpec, Protection
from tidegate.routing import release
from tidegate.routing.fleet import Backend, BackendKey
from tidegate.routing.ir import AccessPoolKey, EndpointPool, OutlierEjection, PoolKey, PoolLimits, PoolRole
from tidegate.routing.references import backend_key, backend_name

_NO_PROTECTION: Final = Protection()

# The most that a slow or broken mirror can use of the gateway's memory and connections.
SHADOW_LIMITS: Final = PoolLimits(concurrent=64, pending=64)


class AccessPools:
    """Selects the pool for every use of an Inference by one access, and collects those that are its own."""

    def __init__(self, access: ModelAccess) -> None:
        self._access = access
        self._protection = access.spec.protection or _NO_PROTECTION
        self._limits = _read_limits(self._protection)
        self._own: dict[AccessPoolKey, EndpointPool] = {}

    @property
    def target_limits(self) -> PoolLimits | None:
        """Limits of each of its targets."""
        return self._limits

    @property
    def own_pools(self) -> tuple[EndpointPool, ...]:
        """Pools of its own that were selected so far, by name."""
        return tuple(pool for _, pool in sorted(self._own.items()))

    def select_target_pool(self, route: Route, backend: Backend, fallback: Backend | None) -> PoolKey:
        """Return the pool of a target of `route`, with `fallback` behind it.

        On the route of a release each target has one of its own, since Envoy counts by cluster.
        The candidate of a release has no fallback: its answers would be counted as those of the candidate.
        """
        role = PoolRole.RELEASE if release.is_released(self._access, route) else PoolRole.TARGET
        if release.is_candidate(self._access, route, backend_name(self._access, backend)):
            fallback = None
        return self._select_pool(role, backend, fallback, retry_budget(route))

    def select_leftover_pool(self, backend: Backend) -> PoolKey:
        """Return the pool for the calls to `backend` of pods whose route is gone."""
        return self._select_pool(PoolRole.TARGET, backend, None, None)

    def select_mirror_pool(self, backend: Backend) -> PoolKey:
        """Return the pool that receives the mirrored requests for `backend`."""
        key = self._pool_key(PoolRole.SHADOW, backend, None)
        self._add_pool(key, _build_pool(key, backend, SHADOW_LIMITS, None), None)
        return key

    def _select_pool(
        self, role: PoolRole, backend: Backend, fallback: Backend | None, budget: int | None
    ) -> PoolKey:
        ejection = self._plan_ejection(fallback)
        if role is PoolRole.TARGET and fallback is None and self._limits is None and ejection is None:
            return backend.key
        key = self._pool_key(role, backend, fallback)
        # A target without a pod needs no fallback in its cluster: its routes lead to the fallback itself.
        behind = fallback.answering_pods if fallback is not None and backend.answering_pods else ()
        pool = _build_pool(key, backend, self._limits, ejection)
        self._add_pool(key, replace(pool, fallback=behind), budget)
        return key

    def _pool_key(self, role: PoolRole, backend: Backend, fallback: Backend | None) -> AccessPoolKey:
        behind = backend_name(self._access, fallback) if fallback is not None else ""
        return AccessPoolKey(role, self._access.key, backend_name(self._access, backend), behind)

    def _add_pool(self, key: AccessPoolKey, pool: EndpointPool, budget: int | None) -> None:
        """Add a pool; of the retry budgets of several routes the largest counts."""
        before = self._own[key].retry_budget_percent if key in self._own else None
        self._own[key] = replace(
            pool,
            retry_budget_percent=max(
                (percent for percent in (before, budget) if percent is not None), default=None
            ),
        )

    def _plan_ejection(self, fallback: Backend | None) -> OutlierEjection | None:
        outlier = self._protection.outlier or (OutlierSpec() if fallback is not None else None)
        if outlier is None:
            return None
        length: timedelta = parse_duration(outlier.eject_for)
        return OutlierEjection(outlier.consecutive_failures, length, all_pods=fallback is not None)


def _build_pool(
    key: AccessPoolKey, backend: Backend, limits: PoolLimits | None, ejection: OutlierEjection | None
) -> EndpointPool:
    pool = EndpointPool(key, backend.distinct_endpoints, limits=limits, ejection=ejection)
    return pool if key.role is PoolRole.SHADOW else add_spares(pool, backend)


def add_spares(pool: EndpointPool, backend: Backend) -> EndpointPool:
    """Return a pool of an Inference with its shared spares and the checks of its pods, if it is to have some.

    Checks do not depend on the spares that it has now: a gateway replaces a changed cluster with its connections and ejections.
    """
    if not backend.checked:
        return pool
    return replace(pool, spares=backend.spares, health_path=f"/v2/models/{backend.model_name}/ready")


def _read_limits(protection: Protection) -> PoolLimits | None:
    if protection.max_concurrent is None and protection.max_pending is None:
        return None
    return PoolLimits(protection.max_concurrent, protection.max_pending)


def retry_budget(route: Route) -> int | None:
    """Return the retry budget of a route in percent; None if it does not retry."""
    return route.retry.budget_percent if route.retry is not None and route.retry.attempts else None


def retry_budgets(access: ModelAccess) -> Mapping[BackendKey, int]:
    """Return the largest retry budget in percent that `access` gives each of its Inferences."""
    budgets: dict[BackendKey, int] = {}
    for route in access.spec.routes:
        percent = retry_budget(route)
        if percent is None:
            continue
        fallbacks = (route.fallback,) if route.fallback is not None else ()
        for target in (*route.targets, *fallbacks):
            key = backend_key(access, target.inference)
            budgets[key] = max(budgets.get(key, 0), percent)
    return budgets
