"""The guard of one ModelAccess, from its spec and credentials; it is closed if these are not available."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidegate.api.auth import AUTH_LABEL, AUTH_LABEL_VALUE, ApiKeys, JwtAuth, MtlsAuth
from tidegate.api.meta import ObjectKey
from tidegate.api.model_access import ModelAccess
from tidegate.api.reasons import Reason
from tidegate.routing.credentials import (
    CallerCredentials,
    ClientAuthority,
    InvalidContent,
    KeyFetchSkipped,
    NamedKey,
    SecretData,
    host_from_address,
    parse_api_keys,
    parse_key_set,
)
from tidegate.routing.refusals import RoutingRefusal

CALLER_REASONS: Final = frozenset(
    {Reason.CREDENTIALS_NOT_READABLE, Reason.CREDENTIALS_INVALID, Reason.CLIENT_AUTHORITY_MISSING}
)
"""Reasons that only a process with access to the Secrets can find."""


@dataclass(frozen=True, slots=True)
class KeyGuard:
    """Admits callers that send one of `keys` in `header`."""

    header: str
    keys: tuple[NamedKey, ...]


@dataclass(frozen=True, slots=True)
class TokenGuard:
    """Admits callers whose token `key_set` (JSON) verifies, of this issuer and for one of these audiences."""

    issuer: str
    audiences: tuple[str, ...]
    key_set: str
    forward: bool


@dataclass(frozen=True, slots=True)
class IdentityGuard:
    """Admits callers with a client certificate for one of these identities, at least one.

    URIs contain `://`; the others are DNS names.
    """

    identities: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClosedGuard:
    """Admits no caller: its credentials are missing, or the process that planned it may not read them."""


@dataclass(frozen=True, slots=True)
class AddressGuard:
    """Admits callers that connect from one of `addresses`, at least one."""

    addresses: tuple[str, ...]


Guard = KeyGuard | TokenGuard | IdentityGuard | AddressGuard | ClosedGuard


@dataclass(frozen=True, slots=True)
class PlannedGuard:
    """The guard of one access (None: every caller is admitted), and what is refused of it."""

    guard: Guard | None
    refusals: tuple[RoutingRefusal, ...] = ()

    @property
    def is_closed(self) -> bool:
        """Return whether no caller can be admitted because of what is refused."""
        return isinstance(self.guard, ClosedGuard) and bool(self.refusals)


def plan_guard(access: ModelAccess, credentials: CallerCredentials | None) -> PlannedGuard:
    """Plan the guard of `access`; without `credentials`, another process has them, and reports the refusals for them."""
    auth = access.spec.auth
    if auth is None:
        return PlannedGuard(None)
    if credentials is None:
        return PlannedGuard(ClosedGuard())
    if auth.api_keys is not None:
        return _guard_with_secret(access, "apiKeys", auth.api_keys, credentials)
    if auth.jwt is not None and auth.jwt.jwks_uri is not None:
        return _guard_with_fetched_keys(access, auth.jwt, auth.jwt.jwks_uri, credentials)
    if auth.jwt is not None:
        return _guard_with_secret(access, "jwt", auth.jwt, credentials)
    if auth.mtls is not None:
        return _guard_with_identities(access, auth.mtls, credentials.client_authority)
    return PlannedGuard(ClosedGuard())


def _guard_with_fetched_keys(
    access: ModelAccess, jwt: JwtAuth, address: str, credentials: CallerCredentials
) -> PlannedGuard:
    host, fetched = host_from_address(address), credentials.fetched.get(address)
    if isinstance(fetched, str):
        return PlannedGuard(TokenGuard(jwt.issuer, tuple(sorted(jwt.audiences)), fetched, jwt.forward))
    reason = Reason.CREDENTIALS_NOT_READABLE
    if host not in credentials.key_hosts:
        message = (
            f"keys are not fetched from the host {host}, so nobody is let in: "
            "add it to the chart's auth.jwks.allowedHosts (helm upgrade --reset-then-reuse-values)"
        )
    elif isinstance(fetched, InvalidContent):
        reason = Reason.CREDENTIALS_INVALID
        message = f"{fetched.reason}, so nobody is let in: the issuer has to publish its public keys there"
    elif isinstance(fetched, KeyFetchSkipped):
        message = f"it is not asked for keys ({fetched.reason}), so nobody is let in: name fewer addresses in the namespace"
    else:
        cause = "it has not been asked yet" if fetched is None else fetched.reason
        message = (
            f"no keys have come from there ({cause}), so nobody is let in; it is asked again within a minute"
        )
    refusal = RoutingRefusal(access.key, reason, f"spec.auth.jwt.jwksUri: {address}", message)
    return PlannedGuard(ClosedGuard(), (refusal,))


def _guard_with_identities(access: ModelAccess, mtls: MtlsAuth, authority: ClientAuthority) -> PlannedGuard:
    if authority is ClientAuthority.USABLE:
        return PlannedGuard(IdentityGuard(tuple(sorted(mtls.identities))))
    if authority is ClientAuthority.ABSENT:
        message = (
            "gateways ask no client for a certificate, so nobody is let in: have the chart's gateway.tls.secrets and "
            "gateway.tls.clientAuthority set (helm upgrade --reset-then-reuse-values)"
        )
    else:
        message = (
            "the Secret of the chart's gateway.tls.clientAuthority cannot be used, so nobody is let in: "
            "tidegate xds status says what is wrong with it"
        )
    refusal = RoutingRefusal(access.key, Reason.CLIENT_AUTHORITY_MISSING, "spec.auth.mtls", message)
    return PlannedGuard(ClosedGuard(), (refusal,))


def _guard_with_secret(
    access: ModelAccess, part: str, auth: ApiKeys | JwtAuth, credentials: CallerCredentials
) -> PlannedGuard:
    assert auth.secret is not None  # noqa: S101  the API wants an address otherwise; narrows for the type checkers
    key = ObjectKey(access.key.namespace, auth.secret)
    field = f"spec.auth.{part}.secret: {auth.secret}"

    def to_refusal(reason: Reason, message: str) -> RoutingRefusal:
        return RoutingRefusal(access.key, reason, field, message)

    if key.namespace not in credentials.namespaces:
        message = (
            f"Secrets of namespace {key.namespace} are not read, so nobody is let in: "
            f"add the namespace to the chart's auth.namespaces (helm upgrade --reset-then-reuse-values)"
        )
        return PlannedGuard(ClosedGuard(), (to_refusal(Reason.CREDENTIALS_NOT_READABLE, message),))
    secret = credentials.secrets.get(key)
    if secret is None:
        message = (
            f"there is no Secret {auth.secret} with the label {AUTH_LABEL}={AUTH_LABEL_VALUE}, so nobody is let in: create it, or "
            f"kubectl -n {key.namespace} label secret {auth.secret} {AUTH_LABEL}={AUTH_LABEL_VALUE}"
        )
        return PlannedGuard(ClosedGuard(), (to_refusal(Reason.CREDENTIALS_NOT_READABLE, message),))
    guard, problems = _read_secret_guard(auth, secret)
    consequence = ", so nobody is let in" if isinstance(guard, ClosedGuard) else "; it is left out"
    return PlannedGuard(
        guard,
        tuple(to_refusal(Reason.CREDENTIALS_INVALID, f"{problem}{consequence}") for problem in problems),
    )


def _read_secret_guard(auth: ApiKeys | JwtAuth, secret: SecretData) -> tuple[Guard, tuple[str, ...]]:
    if isinstance(auth, ApiKeys):
        keys, problems = parse_api_keys(secret)
        return KeyGuard(auth.header, keys) if keys else ClosedGuard(), tuple(
            problem.reason for problem in problems
        )
    keys_text = parse_key_set(secret)
    if not isinstance(keys_text, str):
        return ClosedGuard(), (keys_text.reason,)
    return TokenGuard(auth.issuer, tuple(sorted(auth.audiences)), keys_text, auth.forward), ()
