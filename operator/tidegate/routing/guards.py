"""Who is let in to one ModelAccess: from its spec and the Secret or authority that it needs, and closed where that is not to be had."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidegate.api.auth import AUTH_LABEL, AUTH_LABEL_VALUE, ApiKeys, Jwt, Mtls
from tidegate.api.meta import ObjectKey
from tidegate.api.model_access import ModelAccess
from tidegate.api.reasons import Reason
from tidegate.routing.credentials import (
    ClientAuthority,
    Credentials,
    NamedKey,
    NotAsked,
    SecretData,
    Unfit,
    api_keys,
    host_of,
    key_set,
)
from tidegate.routing.refusals import Refusal

ABOUT_CALLERS: Final = frozenset(
    {Reason.CREDENTIALS_NOT_READABLE, Reason.CREDENTIALS_INVALID, Reason.CLIENT_AUTHORITY_MISSING}
)
"""Reasons that only a process that reads the Secrets can give."""


@dataclass(frozen=True, slots=True)
class KeyGuard:
    """Lets in who sends one of `keys` in `header`."""

    header: str
    keys: tuple[NamedKey, ...]


@dataclass(frozen=True, slots=True)
class TokenGuard:
    """Lets in who sends a token that `key_set` (JSON) verifies, of this issuer and for one of these audiences."""

    issuer: str
    audiences: tuple[str, ...]
    key_set: str
    forward: bool


@dataclass(frozen=True, slots=True)
class IdentityGuard:
    """Lets in who shows a client certificate with one of these names, at least one: URIs have `://` in them, the others are of DNS."""

    identities: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClosedGuard:
    """Lets nobody in: the guard of an access whose credentials are not known to whoever planned it."""


@dataclass(frozen=True, slots=True)
class AddressGuard:
    """Lets in who calls from one of `addresses`, as the connection has it; at least one."""

    addresses: tuple[str, ...]


Guard = KeyGuard | TokenGuard | IdentityGuard | AddressGuard | ClosedGuard


@dataclass(frozen=True, slots=True)
class PlannedGuard:
    """The guard of one access (None: everybody may call), what is refused of it, and whether nobody can be let in."""

    guard: Guard | None
    refusals: tuple[Refusal, ...] = ()

    @property
    def closed(self) -> bool:
        """Whether nobody can be let in, because of what is refused."""
        return isinstance(self.guard, ClosedGuard) and bool(self.refusals)


def plan_guard(access: ModelAccess, credentials: Credentials | None) -> PlannedGuard:
    """The guard of `access`; `credentials` None: somebody else has them, so nothing is said about them here."""
    auth = access.spec.auth
    if auth is None:
        return PlannedGuard(None)
    if credentials is None:
        return PlannedGuard(ClosedGuard())
    if auth.api_keys is not None:
        return _with_secret(access, "apiKeys", auth.api_keys, credentials)
    if auth.jwt is not None and auth.jwt.jwks_uri is not None:
        return _with_address(access, auth.jwt, auth.jwt.jwks_uri, credentials)
    if auth.jwt is not None:
        return _with_secret(access, "jwt", auth.jwt, credentials)
    if auth.mtls is not None:
        return _with_identities(access, auth.mtls, credentials.client_authority)
    return PlannedGuard(ClosedGuard())


def _with_address(access: ModelAccess, jwt: Jwt, address: str, credentials: Credentials) -> PlannedGuard:
    host, found = host_of(address), credentials.fetched.get(address)
    if isinstance(found, str):
        return PlannedGuard(TokenGuard(jwt.issuer, tuple(sorted(jwt.audiences)), found, jwt.forward))
    reason = Reason.CREDENTIALS_NOT_READABLE
    if host not in credentials.key_hosts:
        message = (
            f"keys are not fetched from the host {host}, so nobody is let in: "
            "add it to the chart's auth.jwks.allowedHosts (helm upgrade --reset-then-reuse-values)"
        )
    elif isinstance(found, Unfit):
        reason = Reason.CREDENTIALS_INVALID
        message = f"{found.why}, so nobody is let in: the issuer has to publish its public keys there"
    elif isinstance(found, NotAsked):
        message = f"it is not asked for keys ({found.why}), so nobody is let in: name fewer addresses in the namespace"
    else:
        why = "it has not been asked yet" if found is None else found.why
        message = (
            f"no keys have come from there ({why}), so nobody is let in; it is asked again within a minute"
        )
    refusal = Refusal(access.key, reason, f"spec.auth.jwt.jwksUri: {address}", message)
    return PlannedGuard(ClosedGuard(), (refusal,))


def _with_identities(access: ModelAccess, asked: Mtls, authority: ClientAuthority) -> PlannedGuard:
    if authority is ClientAuthority.USABLE:
        return PlannedGuard(IdentityGuard(tuple(sorted(asked.identities))))
    if authority is ClientAuthority.ABSENT:
        why = (
            "gateways ask no client for a certificate, so nobody is let in: have the chart's gateway.tls.secrets and "
            "gateway.tls.clientAuthority set (helm upgrade --reset-then-reuse-values)"
        )
    else:
        why = (
            "the Secret of the chart's gateway.tls.clientAuthority cannot be used, so nobody is let in: "
            "tidegate xds status says what is wrong with it"
        )
    refusal = Refusal(access.key, Reason.CLIENT_AUTHORITY_MISSING, "spec.auth.mtls", why)
    return PlannedGuard(ClosedGuard(), (refusal,))


def _with_secret(
    access: ModelAccess, part: str, asked: ApiKeys | Jwt, credentials: Credentials
) -> PlannedGuard:
    assert asked.secret is not None  # noqa: S101  the API wants an address otherwise; narrows for the type checkers
    key = ObjectKey(access.key.namespace, asked.secret)
    where = f"spec.auth.{part}.secret: {asked.secret}"

    def refuse(reason: Reason, message: str) -> Refusal:
        return Refusal(access.key, reason, where, message)

    if key.namespace not in credentials.namespaces:
        message = (
            f"Secrets of namespace {key.namespace} are not read, so nobody is let in: "
            f"add the namespace to the chart's auth.namespaces (helm upgrade --reset-then-reuse-values)"
        )
        return PlannedGuard(ClosedGuard(), (refuse(Reason.CREDENTIALS_NOT_READABLE, message),))
    secret = credentials.secrets.get(key)
    if secret is None:
        message = (
            f"there is no Secret {asked.secret} with the label {AUTH_LABEL}={AUTH_LABEL_VALUE}, so nobody is let in: create it, or "
            f"kubectl -n {key.namespace} label secret {asked.secret} {AUTH_LABEL}={AUTH_LABEL_VALUE}"
        )
        return PlannedGuard(ClosedGuard(), (refuse(Reason.CREDENTIALS_NOT_READABLE, message),))
    guard, unfit = _guard(asked, secret)
    nobody = ", so nobody is let in" if isinstance(guard, ClosedGuard) else "; it is left out"
    return PlannedGuard(guard, tuple(refuse(Reason.CREDENTIALS_INVALID, f"{why}{nobody}") for why in unfit))


def _guard(asked: ApiKeys | Jwt, secret: SecretData) -> tuple[Guard, tuple[str, ...]]:
    if isinstance(asked, ApiKeys):
        keys, unfit = api_keys(secret)
        return KeyGuard(asked.header, keys) if keys else ClosedGuard(), tuple(one.why for one in unfit)
    keys_text = key_set(secret)
    if not isinstance(keys_text, str):
        return ClosedGuard(), (keys_text.why,)
    return TokenGuard(asked.issuer, tuple(sorted(asked.audiences)), keys_text, asked.forward), ()
