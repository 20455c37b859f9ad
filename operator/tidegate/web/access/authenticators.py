"""Authenticate requests by a token, by an authenticating proxy, or as the user who started the dashboard."""

from __future__ import annotations

import hmac
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from starlette.datastructures import Headers

from tidegate.kube.client import KubeClient
from tidegate.kube.transport import ImpersonatedUser
from tidegate.web.access.identity import Identity
from tidegate.web.access.sessions import SessionSeal
from tidegate.web.access.tokens import TokenReviewer

_BEARER: Final = "bearer "
PROXY_SECRET_HEADER: Final = "x-tidegate-proxy-secret"  # noqa: S105  the header's name
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
class RequestCredentials:
    """The parts of a request that authenticate its user."""

    headers: Headers
    cookies: Mapping[str, str]
    address: str

    def get_single_header(self, name: str) -> str:
        """Return the value of a header; empty if it is missing, or sent more than once by a client behind the proxy."""
        values = self.headers.getlist(name)
        if len(values) != 1:
            return ""
        try:
            return values[0].strip().encode("latin-1").decode()  # proxies send UTF-8
        except UnicodeError:
            return ""

    @property
    def bearer_token(self) -> str:
        """Return the bearer token of the Authorization header; empty without one."""
        value = self.headers.get("authorization", "")
        return value[len(_BEARER) :].strip() if value.lower().startswith(_BEARER) else ""


class Authenticator(Protocol):
    """One way of authentication."""

    mode: AuthMode

    async def authenticate(self, credentials: RequestCredentials) -> Identity | None:
        """Return the user of a request; None if they must sign in. Raises TidegateError if the API server does not respond."""
        ...

    def make_client(self, identity: Identity) -> KubeClient:
        """Return a client that acts with this identity."""
        ...


class TokenAuthenticator:
    """Authentication by a token in the Authorization header, or in the session cookie."""

    mode = AuthMode.TOKEN

    def __init__(self, tokens: TokenReviewer, anonymous: KubeClient, seal: SessionSeal) -> None:
        self._tokens, self._anonymous, self._seal = tokens, anonymous, seal

    async def authenticate(self, credentials: RequestCredentials) -> Identity | None:
        """Authenticate the user by header or cookie."""
        token = (
            credentials.bearer_token
            or self._seal.open_token(credentials.cookies.get(self._seal.cookie_name, ""))
            or ""
        )
        return await self._tokens.find_identity(token, credentials.address)

    async def sign_in(self, token: str, address: str) -> Identity | None:
        """Return the user of a token; None if it is invalid."""
        return await self._tokens.find_identity(token, address)

    def make_client(self, identity: Identity) -> KubeClient:
        """Return a client that sends the user's token."""
        return self._anonymous.with_token(identity.token)


class ProxyAuthenticator:
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

    async def authenticate(self, credentials: RequestCredentials) -> Identity | None:
        """Authenticate the user named by the proxy."""
        secret, user, groups = (
            credentials.get_single_header(name) for name in (PROXY_SECRET_HEADER, _USER, _GROUPS)
        )
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

    def make_client(self, identity: Identity) -> KubeClient:
        """Return a client that impersonates the user."""
        return self._client.with_impersonation(ImpersonatedUser(identity.user, identity.groups))


class LocalAuthenticator:
    """Authentication of the user who started the process: by the ticket printed on their terminal, then by a cookie."""

    mode = AuthMode.LOCAL

    def __init__(self, client: KubeClient, identity: Identity, ticket: str, seal: SessionSeal) -> None:
        self._client, self._identity, self._seal = client, identity, seal
        self._ticket = ticket

    async def authenticate(self, credentials: RequestCredentials) -> Identity | None:
        """Authenticate the user by header or cookie."""
        ticket = (
            credentials.bearer_token
            or self._seal.open_token(credentials.cookies.get(self._seal.cookie_name, ""))
            or ""
        )
        return self._identity if self.matches_ticket(ticket) else None

    def matches_ticket(self, ticket: str) -> bool:
        """Return whether it is the printed ticket."""
        return hmac.compare_digest(ticket.encode(errors="replace"), self._ticket.encode())

    def make_client(self, identity: Identity) -> KubeClient:
        """Return the client of the user who started the process."""
        return self._client
