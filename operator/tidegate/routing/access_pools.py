"""The pools that one ModelAccess has for itself: limits, ejection, fallback, mirrors and the counters of a release belong to Envoy's clusters, and no other access may feel them.

An access that asks for none of these uses the pools that everybody uses.
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

# A mirror that is slow or broken holds no more than this of the gateway's memory and connections.
SHADOW_LIMITS: Final = Limits(concurrent=64, pending=64)


class AccessPools:
    """Chooses the pool for every use of an Inference by one access, and collects those that are its own."""

    def __init__(self, access: ModelAccess) -> None:
        self._access = access
        self._protection = access.spec.protection or _NO_PROTECTION
        self._limits = _limits(self._protection)
        self._own: dict[AccessPoolKey, Pool] = {}

    @property
    def limits(self) -> Limits | None:
        """What each of its targets may have under way."""
        return self._limits

    @property
    def own(self) -> tuple[Pool, ...]:
        """The pools of its own that were chosen so far, by name."""
        return tuple(pool for _, pool in sorted(self._own.items()))

    def target(self, route: Route, backend: Backend, fallback: Backend | None) -> PoolKey:
        """The pool of a target of `route`, with `fallback` behind it.

        On the route of a release each target has one of its own, since Envoy counts by cluster.
        What is still being judged has nothing behind it: the fallback's answers would be counted as its own.
        """
        role = PoolRole.RELEASE if release.is_released(self._access, route) else PoolRole.TARGET
        if release.is_candidate(self._access, route, backend.key.name):
            fallback = None
        return self._target(role, backend, fallback, retry_budget(route))

    def left_over(self, backend: Backend) -> PoolKey:
        """The pool for what a route that is gone still asks of `backend`."""
        return self._target(PoolRole.TARGET, backend, None, None)

    def mirror(self, backend: Backend) -> PoolKey:
        """The pool that takes the copies for `backend`."""
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
        # Nothing stands behind a target without a pod: its routes lead to the fallback itself.
        behind = fallback.distinct_endpoints if fallback is not None and backend.endpoints else ()
        pool = _pool(key, backend, self._limits, ejection)
        self._add(key, replace(pool, fallback=behind), budget)
        return key

    def _key(self, role: PoolRole, backend: Backend, fallback: Backend | None) -> AccessPoolKey:
        behind = fallback.key.name if fallback is not None else ""
        return AccessPoolKey(role, self._access.key, backend.key.name, behind)

    def _add(self, key: AccessPoolKey, pool: Pool, budget: int | None) -> None:
        """Several routes may use one pool; the largest of their retry budgets counts."""
        before = self._own[key].retry_budget_percent if key in self._own else None
        self._own[key] = replace(
            pool, retry_budget_percent=max((b for b in (before, budget) if b is not None), default=None)
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
    """The budget that a route gives its retries, in percent; None where it asks for none."""
    return route.retry.budget_percent if route.retry is not None and route.retry.attempts else None
