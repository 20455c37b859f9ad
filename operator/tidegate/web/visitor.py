"""Authenticate requests, and check the rights of their users."""

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
    """The request is not authenticated."""


class ForbiddenError(TidegateError):
    """The user lacks a right."""

    def __init__(self, identity: Identity, action: Action) -> None:
        super().__init__(
            f"user {identity.user} may not {action}: ask an administrator for a Role with this right, and try again"
        )
        self.action = action


class NotThereError(TidegateError):
    """The object does not exist."""


def missing(catalogue: Catalogue, key: ObjectKey) -> NotThereError:
    """Return the error for an object that does not exist, or whose content is invalid."""
    plural = catalogue.store.kind.plural
    if catalogue.store.get(key) is not None:
        return NotThereError(
            f"{key} of the {plural} cannot be read: tidegate analyze says what is wrong with it"
        )
    return NotThereError(
        f"there is no {key} among the {plural}: it may have been deleted; "
        f"list them with kubectl get {plural} -A"
    )


@dataclass(frozen=True, slots=True)
class Visitor:
    """The user of one request, and what they may read and change."""

    identity: Identity
    parts: Parts
    since: str
    """The position in `Changes` at the time of the request: its page subscribes to later changes."""

    @property
    def client(self) -> KubeClient:
        """Return a client that acts with the identity of the user."""
        return self.parts.door.client_of(self.identity)

    @property
    def csrf(self) -> str:
        """Return the CSRF token of the user's forms."""
        return self.parts.seal.csrf(self.identity)

    async def may(self, action: Action) -> bool:
        """Return whether the user has a right."""
        return await self.parts.rights.may(self.identity, action)

    async def must(self, action: Action) -> None:
        """Raise ForbiddenError if the user lacks a right."""
        if not await self.may(action):
            raise ForbiddenError(self.identity, action)

    async def must_see(self, plural: str, key: ObjectKey) -> None:
        """Raise ForbiddenError if the user may not read an object."""
        await self.must(Action("get", plural, key.namespace, key.name))

    async def read(self, catalogue: Parsed[ResourceT], key: ObjectKey) -> ResourceT:
        """Return an object. Raises ForbiddenError, or NotThereError if it is missing or invalid."""
        await self.must_see(catalogue.store.kind.plural, key)
        resource = catalogue.get(key)
        if resource is None:
            raise missing(catalogue, key)
        return resource

    async def overrides(self) -> Sequence[ComputeOverride]:
        """Return all overrides if the user may list them, else none; the first to end come first."""
        return overrides_of(self.parts) if await self.may(LIST_OVERRIDES) else ()

    async def sees_pods(self, namespaces: Iterable[str]) -> Collection[str] | None:
        """Return those of the namespaces in which the user may list pods; None for all."""
        return await self.parts.rights.within(self.identity, "pods", namespaces, group="")

    async def sees_nodes(self, pool: ComputePool) -> Mapping[str, NodeSlices] | None:
        """Return a pool's nodes by name; None if the user may not list nodes, or if the nodes are not read yet."""
        return self.parts.nodes.of(pool) if await self.may(LIST_NODES) else None

    async def sees(self, plural: str, namespace: str = "") -> Collection[str] | None:
        """Return the namespaces in which the user may list a kind; None for all. Raises ForbiddenError if there are none.

        The namespaces are those with objects of the kind, and `namespace`, which may still be empty.
        """
        namespaces = {*self.parts.listings[plural].namespaces(), *([namespace] if namespace else [])}
        allowed = await self.parts.rights.within(self.identity, plural, sorted(namespaces))
        if allowed is not None and not allowed:
            raise ForbiddenError(self.identity, Action("list", plural))
        return allowed


def parts_of(request: Request) -> Parts:
    """Return the shared state of the application."""
    app: Parts = request.app.state.parts
    return app


async def visitor_of(request: Request, app: Annotated[Parts, Depends(parts_of)]) -> Visitor:
    """Authenticate a request. Raises SignInNeededError."""
    address = request.client.host if request.client is not None else ""
    identity = await app.door.identify(Asked(request.headers, request.cookies, address))
    if identity is None:
        message = (
            "sign in, or send the header Authorization: Bearer <token>; "
            "create a token with kubectl create token <serviceaccount>"
        )
        raise SignInNeededError(message)
    return Visitor(identity, app, since=app.changes.now)


Known = Annotated[Visitor, Depends(visitor_of)]
OfApp = Annotated[Parts, Depends(parts_of)]
