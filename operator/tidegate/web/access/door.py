"""Authenticate requests by a token, by an authenticating proxy, or as the user who started the dashboard."""

from __future__ import annotations

import hmac
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from starlette.datastructures import Headers

from tidegate.kube.client import KubeClient
from tidegate.kube.transport import Impersonated
from tidegate.web.access.identity import Identity
from tidegate.web.access.sessions import Seal
from tidegate.web.access.tokens import Tokens

_BEARER: Final = "bearer "
PROXY_SECRET: Final = "x-tidegate-proxy-secret"  # noqa: S105  the header's name
_USER: Final = "x-forwarded-user"
_GROUPS: Final = "x-forwarded-groups"
_CLUSTER_PREFIX: Final = "system:"


class AuthMode(StrEnum):
    """The way in which users authenticate."""

    TOKEN = "token"  # noqa: S105
    """By a token that the API server reviews."""
    PROXY = "proxy"
    """By a proxy in front of the dashboard, which authenticates itself by a secret."""
    LOCAL = "local"
    """As the user who started the process with their own kubeconfig."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The parts of a request that authenticate its user."""

    headers: Headers
    cookies: Mapping[str, str]
    address: str

    def only(self, name: str) -> str:
        """Return the value of a header; empty if it is missing, or sent more than once by a client behind the proxy."""
        values = self.headers.getlist(name)
        if len(values) != 1:
            return ""
        try:
            return values[0].strip().encode("latin-1").decode()  # proxies send UTF-8
        except UnicodeError:
            return ""

    @property
    def bearer(self) -> str:
        """Return the bearer token of the Authorization header; empty without one."""
        value = self.headers.get("authorization", "")
        return value[len(_BEARER) :].strip() if value.lower().startswith(_BEARER) else ""


class Door(Protocol):
    """One way of authentication."""

    mode: AuthMode

    async def identify(self, credentials: Asked) -> Identity | None:
        """Return the user of a request; None if they must sign in. Raises TidegateError if the API server does not respond."""
        ...

    def client_of(self, identity: Identity) -> KubeClient:
        """Return a client that acts with this identity."""
        ...


class TokenDoor:
    """Authentication by a token in the Authorization header, or in the session cookie."""

    mode = AuthMode.TOKEN

    def __init__(self, tokens: Tokens, anonymous: KubeClient, seal: Seal) -> None:
        self._tokens, self._anonymous, self._seal = tokens, anonymous, seal

    async def identify(self, credentials: Asked) -> Identity | None:
        """Authenticate the user by header or cookie."""
        token = credentials.bearer or self._seal.opened(credentials.cookies.get(self._seal.cookie, "")) or ""
        return await self._tokens.identity(token, credentials.address)

    async def sign_in(self, token: str, address: str) -> Identity | None:
        """Return the user of a token; None if it is invalid."""
        return await self._tokens.identity(token, address)

    def client_of(self, identity: Identity) -> KubeClient:
        """Return a client that sends the user's token."""
        return self._anonymous.bearing(identity.token)


class ProxyDoor:
    """Authentication by the headers of a proxy that knows `secret`; other requests' headers are ignored."""

    mode = AuthMode.PROXY

    def __init__(
        self, client: KubeClient, secret: str, *, users: Collection[str] = (), groups: Collection[str] = ()
    ) -> None:
        """`users` and `groups` are those that the proxy may name; empty: any."""
        if not secret:
            message = "the proxy's secret is empty: any client could claim to be any user"
            raise ValueError(message)
        self._client, self._secret = client, secret
        self._users, self._groups = frozenset(users), frozenset(groups)

    async def identify(self, credentials: Asked) -> Identity | None:
        """Authenticate the user named by the proxy."""
        secret, user, groups = (credentials.only(name) for name in (PROXY_SECRET, _USER, _GROUPS))
        if not user or not hmac.compare_digest(secret.encode(), self._secret.encode()):
            return None
        if user.startswith(_CLUSTER_PREFIX) or (self._users and user not in self._users):
            return None
        claimed = {group.strip() for group in groups.split(",")}
        # The dashboard may impersonate: drop the API server's own groups, which only the API server may grant.
        accepted = sorted(group for group in claimed if group and not group.startswith(_CLUSTER_PREFIX))
        if self._groups:
            accepted = [group for group in accepted if group in self._groups]
        return Identity(user, (*accepted, "system:authenticated"))

    def client_of(self, identity: Identity) -> KubeClient:
        """Return a client that impersonates the user."""
        return self._client.impersonating(Impersonated(identity.user, identity.groups))


class LocalDoor:
    """Authentication of the user who started the process: by the ticket printed on their terminal, then by a cookie."""

    mode = AuthMode.LOCAL

    def __init__(self, client: KubeClient, identity: Identity, ticket: str, seal: Seal) -> None:
        self._client, self._identity, self._seal = client, identity, seal
        self._ticket = ticket

    async def identify(self, credentials: Asked) -> Identity | None:
        """Authenticate the user by header or cookie."""
        ticket = credentials.bearer or self._seal.opened(credentials.cookies.get(self._seal.cookie, "")) or ""
        return self._identity if self.fits(ticket) else None

    def fits(self, ticket: str) -> bool:
        """Return whether it is the printed ticket."""
        return hmac.compare_digest(ticket.encode(errors="replace"), self._ticket.encode())

    def client_of(self, identity: Identity) -> KubeClient:
        """Return the client of the user who started the process."""
        return self._client
