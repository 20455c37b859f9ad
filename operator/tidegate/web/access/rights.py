"""Ask the API server what a user may do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final
from weakref import WeakValueDictionary

from tidegate.api.meta import GROUP
from tidegate.kube.client import KubeClient
from tidegate.web.access.expiring_cache import ExpiringCache
from tidegate.web.access.identity import Identity

_PATH: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_CACHE_S: Final = 15.0
_MAX_ENTRIES: Final = 50_000
_MAX_REVIEWS_PER_USER: Final = 8


@dataclass(frozen=True, slots=True)
class Action:
    """A verb on a resource, by default of our API group; an empty namespace means all namespaces."""

    verb: str
    resource: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    group: str = GROUP

    def __str__(self) -> str:
        resource = f"{self.resource}/{self.subresource}" if self.subresource else self.resource
        resource = f"{resource}.{self.group}" if self.group else resource
        name = f" {self.name}" if self.name else ""
        return f"{self.verb} {resource}{name}" + (f" in namespace {self.namespace}" if self.namespace else "")


class AccessReviews:
    """Reviews of users' rights by SelfSubjectAccessReview with the user's identity, as for the action itself."""

    def __init__(self, make_client: Callable[[Identity], KubeClient], monotonic: Callable[[], float]) -> None:
        self._make_client = make_client
        self._cache = ExpiringCache[tuple[str, Action], bool](_MAX_ENTRIES, monotonic)
        self._limits: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        """One limit for each user, so that a user with many reviews does not delay the others."""

    async def is_allowed(self, identity: Identity, action: Action) -> bool:
        """Return whether the action is allowed, cached for a few seconds.

        Raises TidegateError if the API server does not respond.
        """
        cached = self._cache.get((identity.key, action))
        if cached is not None:
            return cached
        attributes = {
            "verb": action.verb,
            "group": action.group,
            "resource": action.resource,
            "subresource": action.subresource,
            "namespace": action.namespace,
            "name": action.name,
        }
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "metadata": {},
            "spec": {"resourceAttributes": {name: value for name, value in attributes.items() if value}},
        }
        async with self._limits.setdefault(identity.key, asyncio.Semaphore(_MAX_REVIEWS_PER_USER)):
            cached = self._cache.get((identity.key, action))
            if cached is not None:
                return cached
            answer = await self._make_client(identity).post_review(_PATH, body)
        allowed = bool((answer.get("status") or {}).get("allowed"))
        self._cache.put((identity.key, action), allowed, _CACHE_S)
        return allowed

    async def filter_namespaces(
        self, identity: Identity, resource: str, namespaces: Iterable[str], *, group: str = GROUP
    ) -> frozenset[str] | None:
        """Return those of `namespaces` in which the user may list a resource; None for all, including future ones."""
        if await self.is_allowed(identity, Action("list", resource, group=group)):
            return None
        candidates = tuple(namespaces)
        answers = await asyncio.gather(
            *(self.is_allowed(identity, Action("list", resource, name, group=group)) for name in candidates)
        )
        return frozenset(name for name, allowed in zip(candidates, answers, strict=True) if allowed)
