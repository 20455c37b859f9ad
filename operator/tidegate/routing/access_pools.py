"""The pools that one ModelAccess has for itself.

Limits, ejection, fallback, mirrors and the counters of a release belong to Envoy's clusters, and must not affect other accesses.
An access without these settings uses the shared pools.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Final

from tidegate.api.durations import parse_duration
from tidegate.api.model_access import ModelAccess, Route
from tidegate.api.protection import Outlier, Protection
from tidegate.routing import release
from tidegate.routing.fleet import Backend
from tidegate.routing.ir import AccessPoolKey, Ejection, Limits, Pool, PoolKey, PoolRole

_NO_PROTECTION: Final = Protection()

# The most that a slow or broken mirror can use of the gateway's memory and connections.
SHADOW_LIMITS: Final = Limits(concurrent=64, pending=64)


class AccessPools:
    """Selects the pool for every use of an Inference by one access, and collects those that are its own."""

    def __init__(self, access: ModelAccess) -> None:
        self._access = access
        self._protection = access.spec.protection or _NO_PROTECTION
        self._limits = _limits(self._protection)
        self._own: dict[AccessPoolKey, Pool] = {}

    @property
    def limits(self) -> Limits | None:
        """Limits of each of its targets."""
        return self._limits

    @property
    def own(self) -> tuple[Pool, ...]:
        """Pools of its own that were selected so far, by name."""
        return tuple(pool for _, pool in sorted(self._own.items()))

    def target(self, route: Route, backend: Backend, fallback: Backend | None) -> PoolKey:
        """Return the pool of a target of `route`, with `fallback` behind it.

        On the route of a release each target has one of its own, since Envoy counts by cluster.
        The candidate of a release has no fallback: its answers would be counted as those of the candidate.
        """
        role = PoolRole.RELEASE if release.is_released(self._access, route) else PoolRole.TARGET
        if release.is_candidate(self._access, route, backend.key.name):
            fallback = None
        return self._target(role, backend, fallback, retry_budget(route))

    def left_over(self, backend: Backend) -> PoolKey:
        """Return the pool for the calls to `backend` of pods whose route is gone."""
        return self._target(PoolRole.TARGET, backend, None, None)

    def mirror(self, backend: Backend) -> PoolKey:
        """Return the pool that receives the mirrored requests for `backend`."""
        key = self._key(PoolRole.SHADOW, backend, None)
        self._add(key, _pool(key, backend, SHADOW_LIMITS, None), None)
        return key

    def _target(
        self, role: PoolRole, backend: Backend, fallback: Backend | None, budget: int | None
    ) -> PoolKey:
        ejection = self._ejection(fallback)
        if role is PoolRole.TARGET and fallback is None and self._limits is None and ejection is None:
            return backend.key
        key = self._key(role, backend, fallback)
        # A target without a pod needs no fallback in its cluster: its routes lead to the fallback itself.
        behind = fallback.distinct_endpoints if fallback is not None and backend.endpoints else ()
        pool = _pool(key, backend, self._limits, ejection)
        self._add(key, replace(pool, fallback=behind), budget)
        return key

    def _key(self, role: PoolRole, backend: Backend, fallback: Backend | None) -> AccessPoolKey:
        behind = fallback.key.name if fallback is not None else ""
        return AccessPoolKey(role, self._access.key, backend.key.name, behind)

    def _add(self, key: AccessPoolKey, pool: Pool, budget: int | None) -> None:
        """Add a pool; of the retry budgets of several routes the largest counts."""
        before = self._own[key].retry_budget_percent if key in self._own else None
        self._own[key] = replace(
            pool,
            retry_budget_percent=max(
                (percent for percent in (before, budget) if percent is not None), default=None
            ),
        )

    def _ejection(self, fallback: Backend | None) -> Ejection | None:
        outlier = self._protection.outlier or (Outlier() if fallback is not None else None)
        if outlier is None:
            return None
        length: timedelta = parse_duration(outlier.eject_for)
        return Ejection(outlier.consecutive_failures, length, all_pods=fallback is not None)


def _pool(key: AccessPoolKey, backend: Backend, limits: Limits | None, ejection: Ejection | None) -> Pool:
    return Pool(key, backend.distinct_endpoints, limits=limits, ejection=ejection)


def _limits(protection: Protection) -> Limits | None:
    if protection.max_concurrent is None and protection.max_pending is None:
        return None
    return Limits(protection.max_concurrent, protection.max_pending)


def retry_budget(route: Route) -> int | None:
    """Return the retry budget of a route in percent; None if it does not retry."""
    return route.retry.budget_percent if route.retry is not None and route.retry.attempts else None
