"""Somebody who asks for something, and what they may do."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, TypeVar

from fastapi import Depends, Request

from tidegate.api.compute_override import ComputeOverride
from tidegate.api.compute_pool import ComputePool
from tidegate.api.meta import ObjectKey, Resource
from tidegate.errors import TidegateError
from tidegate.kube.client import KubeClient
from tidegate.kube.parsed import Parsed
from tidegate.planning.pool_slices import NodeSlices
from tidegate.web.access.door import Asked
from tidegate.web.access.identity import Identity
from tidegate.web.access.rights import Action
from tidegate.web.fleet import Catalogue
from tidegate.web.parts import Parts
from tidegate.web.views.standing import overrides_of

ResourceT = TypeVar("ResourceT", bound=Resource)

LIST_DECISIONS: Final = Action("list", "allocationdecisions")
LIST_OVERRIDES: Final = Action("list", "computeoverrides")
LIST_NODES: Final = Action("list", "nodes", group="")


class SignInNeededError(TidegateError):
    """Nobody knows who asks."""


class ForbiddenError(TidegateError):
    """The visitor has no right to it."""

    def __init__(self, identity: Identity, action: Action) -> None:
        super().__init__(
            f"user {identity.user} may not {action}: ask an administrator for a Role with this right, and try again"
        )
        self.action = action


class NotThereError(TidegateError):
    """There is no such object, or the visitor may not know of it."""


def missing(catalogue: Catalogue, key: ObjectKey) -> NotThereError:
    """Whether it does not parse, or is not there."""
    plural = catalogue.store.kind.plural
    if catalogue.store.get(key) is not None:
        return NotThereError(
            f"{key} of the {plural} cannot be read: tidegate analyze says what is wrong with it"
        )
    return NotThereError(
        f"there is no {key} among the {plural}: it may have been deleted; "
        f"kubectl get {plural} -A shows those there are"
    )


@dataclass(frozen=True, slots=True)
class Visitor:
    """One request's."""

    identity: Identity
    parts: Parts
    since: str
    """When they asked, as `Changes` counts it: their page can be told what has changed after it was read."""

    @property
    def client(self) -> KubeClient:
        """What it does, it does in the visitor's name."""
        return self.parts.door.client_of(self.identity)

    @property
    def csrf(self) -> str:
        """What their forms have to bring."""
        return self.parts.seal.csrf(self.identity)

    async def may(self, action: Action) -> bool:
        """Whether they have the right to it."""
        return await self.parts.rights.may(self.identity, action)

    async def must(self, action: Action) -> None:
        """Raises ForbiddenError where they have not."""
        if not await self.may(action):
            raise ForbiddenError(self.identity, action)

    async def must_see(self, plural: str, key: ObjectKey) -> None:
        """Raises ForbiddenError where they may not read one object."""
        await self.must(Action("get", plural, key.namespace, key.name))

    async def read(self, catalogue: Parsed[ResourceT], key: ObjectKey) -> ResourceT:
        """One object. Raises ForbiddenError where they may not see it, NotThereError where it is missing or cannot be read."""
        await self.must_see(catalogue.store.kind.plural, key)
        found = catalogue.get(key)
        if found is None:
            raise missing(catalogue, key)
        return found

    async def overrides(self) -> Sequence[ComputeOverride]:
        """Those that they may see, the first to end first: all, or none."""
        return overrides_of(self.parts) if await self.may(LIST_OVERRIDES) else ()

    async def sees_pods(self, namespaces: Iterable[str]) -> Collection[str] | None:
        """In which of these namespaces they may list pods; None: in all there are."""
        return await self.parts.rights.within(self.identity, "pods", namespaces, group="")

    async def sees_nodes(self, pool: ComputePool) -> Mapping[str, NodeSlices] | None:
        """A pool's nodes by name; None where they may not list nodes, or where nobody knows them (yet)."""
        return self.parts.nodes.of(pool) if await self.may(LIST_NODES) else None

    async def sees(self, plural: str, namespace: str = "") -> Collection[str] | None:
        """The namespaces whose objects they may list; None: all. Raises ForbiddenError where there are none.

        `namespace` is asked about too, though there may be nothing in it yet.
        """
        namespaces = {*self.parts.listings[plural].namespaces(), *([namespace] if namespace else [])}
        found = await self.parts.rights.within(self.identity, plural, sorted(namespaces))
        if found is not None and not found:
            raise ForbiddenError(self.identity, Action("list", plural))
        return found


def parts_of(request: Request) -> Parts:
    """Of the application."""
    parts: Parts = request.app.state.parts
    return parts


async def visitor_of(request: Request, parts: Annotated[Parts, Depends(parts_of)]) -> Visitor:
    """Raises SignInNeededError for somebody nobody knows."""
    address = request.client.host if request.client is not None else ""
    identity = await parts.door.identify(Asked(request.headers, request.cookies, address))
    if identity is None:
        message = (
            "sign in, or send the header Authorization: Bearer <token>; "
            "kubectl create token <serviceaccount> makes a token"
        )
        raise SignInNeededError(message)
    return Visitor(identity, parts, since=parts.changes.now)


Known = Annotated[Visitor, Depends(visitor_of)]
OfApp = Annotated[Parts, Depends(parts_of)]
