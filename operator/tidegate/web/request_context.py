"""Authenticate requests, and check the rights of their users."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, TypeVar
from urllib.parse import urlencode

from fastapi import Depends, Request

from tidegate.api.compute_override import ComputeOverride
from tidegate.api.compute_pool import ComputePool
from tidegate.api.meta import CustomResource, ObjectKey
from tidegate.errors import TidegateError
from tidegate.kube.client import KubeClient
from tidegate.kube.typed_cache import TypedCache
from tidegate.planning.pools.pool_slices import NodeSlices
from tidegate.web.access.authenticators import RequestCredentials
from tidegate.web.access.identity import Identity
from tidegate.web.access.rights import Action
from tidegate.web.app_state import AppState
from tidegate.web.caches import AnyCache
from tidegate.web.explanations import list_overrides

ResourceT = TypeVar("ResourceT", bound=CustomResource)

LIST_DECISIONS: Final = Action("list", "allocationdecisions")
LIST_OVERRIDES: Final = Action("list", "computeoverrides")
LIST_NODES: Final = Action("list", "nodes", group="")
_MAX_NAMESPACE: Final = 63


class SignInRequiredError(TidegateError):
    """The request is not authenticated."""


class ForbiddenError(TidegateError):
    """The user lacks a right."""

    def __init__(self, identity: Identity, action: Action) -> None:
        super().__init__(
            f"user {identity.user} may not {action}: ask an administrator for a Role with this right, and try again"
        )
        self.action = action


class ObjectNotFoundError(TidegateError):
    """The object does not exist."""


def not_found_error(catalogue: AnyCache, key: ObjectKey) -> ObjectNotFoundError:
    """Return the error for an object that does not exist, or whose content is invalid."""
    plural = catalogue.store.kind.plural
    if catalogue.store.get(key) is not None:
        return ObjectNotFoundError(
            f"{key} of the {plural} cannot be read: tidegate analyze says what is wrong with it"
        )
    return ObjectNotFoundError(
        f"there is no {key} among the {plural}: it may have been deleted; "
        f"list them with kubectl get {plural} -A"
    )


def read_namespace(request: Request) -> str:
    """Return the namespace that the user has chosen, from the query of the address; empty for all."""
    return request.query_params.get("namespace", "")[:_MAX_NAMESPACE]


def encode_namespace(namespace: str) -> str:
    """Return the query of an address that keeps a chosen namespace; empty without one."""
    return f"?{urlencode({'namespace': namespace})}" if namespace else ""


@dataclass(frozen=True, slots=True)
class RequestContext:
    """The user of one request, and what they may read and change."""

    identity: Identity
    app: AppState
    feed_position: str
    """The position in `TopicFeed` at the time of the request: its page subscribes to later changes."""
    namespace_filter: str = ""
    """The namespace that the user has chosen in a list; empty for all. Other pages pass it on in their links."""

    @property
    def client(self) -> KubeClient:
        """Return a client that acts with the identity of the user."""
        return self.app.authenticator.make_client(self.identity)

    @property
    def namespace_query(self) -> str:
        """Return the query of an address that keeps the chosen namespace; empty without one."""
        return encode_namespace(self.namespace_filter)

    @property
    def csrf_token(self) -> str:
        """Return the CSRF token of the user's forms."""
        return self.app.seal.make_csrf_token(self.identity)

    async def is_allowed(self, action: Action) -> bool:
        """Return whether the user has a right."""
        return await self.app.rights.is_allowed(self.identity, action)

    async def require(self, action: Action) -> None:
        """Raise ForbiddenError if the user lacks a right."""
        if not await self.is_allowed(action):
            raise ForbiddenError(self.identity, action)

    async def require_get(self, plural: str, key: ObjectKey) -> None:
        """Raise ForbiddenError if the user may not read an object."""
        await self.require(Action("get", plural, key.namespace, key.name))

    async def read_object(self, catalogue: TypedCache[ResourceT], key: ObjectKey) -> ResourceT:
        """Return an object. Raises ForbiddenError, or ObjectNotFoundError if it is missing or invalid."""
        await self.require_get(catalogue.store.kind.plural, key)
        resource = catalogue.get(key)
        if resource is None:
            raise not_found_error(catalogue, key)
        return resource

    async def list_overrides(self) -> Sequence[ComputeOverride]:
        """Return all overrides if the user may list them, else none; the first to end come first."""
        return list_overrides(self.app) if await self.is_allowed(LIST_OVERRIDES) else ()

    async def list_pod_namespaces(self, namespaces: Iterable[str]) -> Collection[str] | None:
        """Return those of the namespaces in which the user may list pods; None for all."""
        return await self.app.rights.filter_namespaces(self.identity, "pods", namespaces, group="")

    async def get_node_slices(self, pool: ComputePool) -> Mapping[str, NodeSlices] | None:
        """Return a pool's nodes by name; None if the user may not list nodes, or if the nodes are not read yet."""
        return self.app.nodes.get_slices(pool) if await self.is_allowed(LIST_NODES) else None

    async def list_namespaces(self, plural: str, namespace: str = "") -> Collection[str] | None:
        """Return the namespaces in which the user may list a kind; None for all. Raises ForbiddenError if there are none.

        The namespaces are those with objects of the kind, and `namespace`, which may still be empty.
        """
        namespaces = {*self.app.listings[plural].list_namespaces(), *([namespace] if namespace else [])}
        allowed = await self.app.rights.filter_namespaces(self.identity, plural, sorted(namespaces))
        if allowed is not None and not allowed:
            raise ForbiddenError(self.identity, Action("list", plural))
        return allowed


def get_app_state(request: Request) -> AppState:
    """Return the shared state of the application."""
    app: AppState = request.app.state.app_state
    return app


async def authenticate_request(
    request: Request, app: Annotated[AppState, Depends(get_app_state)]
) -> RequestContext:
    """Authenticate a request. Raises SignInRequiredError."""
    address = request.client.host if request.client is not None else ""
    identity = await app.authenticator.authenticate(
        RequestCredentials(request.headers, request.cookies, address)
    )
    if identity is None:
        message = (
            "sign in, or send the header Authorization: Bearer <token>; "
            "create a token with kubectl create token <serviceaccount>"
        )
        raise SignInRequiredError(message)
    return RequestContext(identity, app, app.changes.position, read_namespace(request))


AuthenticatedContext = Annotated[RequestContext, Depends(authenticate_request)]
CurrentApp = Annotated[AppState, Depends(get_app_state)]
