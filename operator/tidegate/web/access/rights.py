"""What somebody may do, by the API server's own word, action by action."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final
from weakref import WeakValueDictionary

from tidegate.api.meta import GROUP
from tidegate.kube.client import KubeClient
from tidegate.web.access.identity import Identity
from tidegate.web.access.remembered import Remembered

_PATH: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_GOOD_FOR_S: Final = 15.0
_MOST: Final = 50_000
_AT_ONCE: Final = 8


@dataclass(frozen=True, slots=True)
class Action:
    """A verb on a resource of ours, unless `group` says whose; no namespace: in all of them."""

    verb: str
    resource: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    group: str = GROUP

    def __str__(self) -> str:
        what = f"{self.resource}/{self.subresource}" if self.subresource else self.resource
        what = f"{what}.{self.group}" if self.group else what
        name = f" {self.name}" if self.name else ""
        return f"{self.verb} {what}{name}" + (f" in namespace {self.namespace}" if self.namespace else "")


class Rights:
    """Asks in the visitor's own name (SelfSubjectAccessReview), so that it is the answer which the action itself will get."""

    def __init__(self, client_of: Callable[[Identity], KubeClient], monotonic: Callable[[], float]) -> None:
        self._client_of = client_of
        self._known = Remembered[tuple[str, Action], bool](_MOST, monotonic)
        self._gates: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        """One for each visitor, so that who may list little and asks a lot keeps nobody else waiting."""

    async def may(self, identity: Identity, action: Action) -> bool:
        """Whether it is allowed; remembered for a few seconds. Raises TidegateError when nobody answers."""
        known = self._known.get((identity.key, action))
        if known is not None:
            return known
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
        async with self._gates.setdefault(identity.key, asyncio.Semaphore(_AT_ONCE)):
            known = self._known.get((identity.key, action))
            if known is not None:
                return known
            answer = await self._client_of(identity).review(_PATH, body)
        allowed = bool((answer.get("status") or {}).get("allowed"))
        self._known.put((identity.key, action), allowed, _GOOD_FOR_S)
        return allowed

    async def within(
        self, identity: Identity, resource: str, namespaces: Iterable[str], *, group: str = GROUP
    ) -> frozenset[str] | None:
        """In which of `namespaces` somebody may list a resource; None: in all there are and will be."""
        if await self.may(identity, Action("list", resource, group=group)):
            return None
        asked = tuple(namespaces)
        answers = await asyncio.gather(
            *(self.may(identity, Action("list", resource, namespace, group=group)) for namespace in asked)
        )
        return frozenset(namespace for namespace, allowed in zip(asked, answers, strict=True) if allowed)
