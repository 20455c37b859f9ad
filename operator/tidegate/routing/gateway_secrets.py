"""The Secrets of the gateways' TLS port over time.

Gateways keep the last valid content of each Secret until a newer one is valid.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from tidegate.routing.certificates import AuthorityBundle, Certificate, parse_authority, parse_certificate
from tidegate.routing.credentials import ClientAuthority, InvalidContent, SecretData
from tidegate.routing.envoy.tls import TlsSettings


class SecretRole(StrEnum):
    """What the TLS port needs a Secret for."""

    CERTIFICATE = "certificate"
    CLIENT_AUTHORITY = "clientAuthority"


@dataclass(frozen=True, slots=True)
class GatewaySecretState:
    """One Secret of the TLS port; `content` is the last one that was valid, None before the first.

    `problem` is why its newest content is not used, or None.
    """

    name: str
    role: SecretRole
    content: Certificate | AuthorityBundle | None
    problem: str | None

    @property
    def expires_at(self) -> datetime | None:
        """Expiry of `content`."""
        return None if self.content is None else self.content.expires


class GatewaySecrets:
    """Remembers the last valid content of each Secret that `settings` names; nothing without settings."""

    def __init__(self, settings: TlsSettings | None) -> None:
        roles = [(name, SecretRole.CERTIFICATE) for name in (settings.secrets if settings else ())]
        if settings is not None and settings.client_authority:
            roles.append((settings.client_authority, SecretRole.CLIENT_AUTHORITY))
        self._states = {(name, role): GatewaySecretState(name, role, None, None) for name, role in roles}

    def refresh(self, secrets: Mapping[str, SecretData], now: datetime) -> tuple[GatewaySecretState, ...]:
        """Return the state of every Secret, given the newest contents by name."""
        self._states = {
            key: _refresh_state(state, secrets.get(state.name), now) for key, state in self._states.items()
        }
        return tuple(self._states.values())


def evaluate_client_authority(secrets: Iterable[GatewaySecretState]) -> ClientAuthority:
    """Return whether gateways can verify client certificates with these Secrets."""
    authorities = [secret for secret in secrets if secret.role is SecretRole.CLIENT_AUTHORITY]
    if not authorities:
        return ClientAuthority.ABSENT
    has_content = all(secret.content is not None for secret in authorities)
    return ClientAuthority.USABLE if has_content else ClientAuthority.UNUSABLE


def _refresh_state(state: GatewaySecretState, newest: SecretData | None, now: datetime) -> GatewaySecretState:
    if newest is None:
        problem = "there is no such Secret, or the xDS servers may not read it"
        return GatewaySecretState(state.name, state.role, state.content, problem)
    content = (parse_certificate if state.role is SecretRole.CERTIFICATE else parse_authority)(newest, now)
    if isinstance(content, InvalidContent):
        return GatewaySecretState(state.name, state.role, state.content, content.reason)
    return GatewaySecretState(state.name, state.role, content, None)
