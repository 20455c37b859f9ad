"""How visitors come in: by a token, through an authenticating proxy, or because they started the dashboard themselves."""

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
_OF_CLUSTER: Final = "system:"


class AuthMode(StrEnum):
    """Who says who somebody is."""

    TOKEN = "token"  # noqa: S105
    """The API server, of a token."""
    PROXY = "proxy"
    """A proxy before the dashboard, which shows that it is the one by a secret."""
    LOCAL = "local"
    """Whoever started the process with their own kubeconfig: there is nobody else."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What of a request says who makes it."""

    headers: Headers
    cookies: Mapping[str, str]
    address: str

    def only(self, name: str) -> str:
        """A header that is there once; empty where it is missing, or where somebody has sent another along."""
        found = self.headers.getlist(name)
        if len(found) != 1:
            return ""
        try:
            return found[0].strip().encode("latin-1").decode()  # proxies send UTF-8
        except UnicodeError:
            return ""

    @property
    def bearer(self) -> str:
        """The token in its Authorization header; empty where there is none."""
        value = self.headers.get("authorization", "")
        return value[len(_BEARER) :].strip() if value.lower().startswith(_BEARER) else ""


class Door(Protocol):
    """One way in."""

    mode: AuthMode

    async def identify(self, asked: Asked) -> Identity | None:
        """Who makes a request; None: somebody who has to sign in. Raises TidegateError when nobody can say."""
        ...

    def client_of(self, identity: Identity) -> KubeClient:
        """A client that does what it does in their name."""
        ...


class TokenDoor:
    """By a token: in the Authorization header, or in the cookie that signing in leaves."""

    mode = AuthMode.TOKEN

    def __init__(self, tokens: Tokens, anonymous: KubeClient, seal: Seal) -> None:
        self._tokens, self._anonymous, self._seal = tokens, anonymous, seal

    async def identify(self, asked: Asked) -> Identity | None:
        """See Door."""
        token = asked.bearer or self._seal.opened(asked.cookies.get(self._seal.cookie, "")) or ""
        return await self._tokens.identity(token, asked.address)

    async def sign_in(self, token: str, address: str) -> Identity | None:
        """Whose token it is."""
        return await self._tokens.identity(token, address)

    def client_of(self, identity: Identity) -> KubeClient:
        """See Door."""
        return self._anonymous.bearing(identity.token)


class ProxyDoor:
    """By the headers of a proxy that knows `secret`; anybody else's are not believed."""

    mode = AuthMode.PROXY

    def __init__(
        self, client: KubeClient, secret: str, *, users: Collection[str] = (), groups: Collection[str] = ()
    ) -> None:
        """`users` and `groups`: the only ones that it may name; none: any."""
        if not secret:
            message = "the proxy's secret is empty: anybody could say who they are"
            raise ValueError(message)
        self._client, self._secret = client, secret
        self._users, self._groups = frozenset(users), frozenset(groups)

    async def identify(self, asked: Asked) -> Identity | None:
        """See Door."""
        given, user, groups = (asked.only(name) for name in (PROXY_SECRET, _USER, _GROUPS))
        if not user or not hmac.compare_digest(given.encode(), self._secret.encode()):
            return None
        if user.startswith(_OF_CLUSTER) or (self._users and user not in self._users):
            return None
        named = {group.strip() for group in groups.split(",")}
        # Who may impersonate could become anybody: the API server's own groups come from nobody but itself.
        taken = sorted(group for group in named if group and not group.startswith(_OF_CLUSTER))
        if self._groups:
            taken = [group for group in taken if group in self._groups]
        return Identity(user, (*taken, "system:authenticated"))

    def client_of(self, identity: Identity) -> KubeClient:
        """See Door."""
        return self._client.impersonating(Impersonated(identity.user, identity.groups))


class LocalDoor:
    """For the one who started it: their browser shows a ticket that was printed on their terminal, then a cookie."""

    mode = AuthMode.LOCAL

    def __init__(self, client: KubeClient, identity: Identity, ticket: str, seal: Seal) -> None:
        self._client, self._identity, self._seal = client, identity, seal
        self._ticket = ticket

    async def identify(self, asked: Asked) -> Identity | None:
        """See Door."""
        shown = asked.bearer or self._seal.opened(asked.cookies.get(self._seal.cookie, "")) or ""
        return self._identity if self.fits(shown) else None

    def fits(self, ticket: str) -> bool:
        """Whether it is the one that was printed."""
        return hmac.compare_digest(ticket.encode(errors="replace"), self._ticket.encode())

    def client_of(self, identity: Identity) -> KubeClient:
        """See Door."""
        return self._client
