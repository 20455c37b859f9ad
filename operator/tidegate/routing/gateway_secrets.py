"""The Secrets of the gateways' TLS port over time: what is good of each goes to the gateways and stays there until something better comes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from tidegate.routing.certificates import Authority, Certificate, authority, certificate
from tidegate.routing.credentials import ClientAuthority, SecretData, Unfit
from tidegate.routing.envoy.tls import TlsSettings

_READ_AGAIN: Final = timedelta(seconds=30)
"""To read a large key takes milliseconds, and this is asked at every change of a pod; only its date can make a difference."""


class SecretRole(StrEnum):
    """What the TLS port needs a Secret for."""

    CERTIFICATE = "certificate"
    CLIENT_AUTHORITY = "clientAuthority"


@dataclass(frozen=True, slots=True)
class HeldSecret:
    """One Secret of the TLS port: `content` is the last of it that was good, None before the first time.

    `problem` says why its newest content is not used, or what is wrong with that; None: nothing is.
    """

    name: str
    role: SecretRole
    content: Certificate | Authority | None
    problem: str | None

    @property
    def expires(self) -> datetime | None:
        """When `content` expires."""
        return None if self.content is None else self.content.expires


class GatewaySecrets:
    """Remembers the last good content of each Secret that `settings` names; nothing without settings."""

    def __init__(self, settings: TlsSettings | None) -> None:
        roles = [(name, SecretRole.CERTIFICATE) for name in (settings.secrets if settings else ())]
        if settings is not None and settings.client_authority:
            roles.append((settings.client_authority, SecretRole.CLIENT_AUTHORITY))
        self._held = {(name, role): HeldSecret(name, role, None, None) for name, role in roles}

        self._newest: Mapping[str, SecretData] = {}
        self._read_at: datetime | None = None

    def look(self, secrets: Mapping[str, SecretData], now: datetime) -> tuple[HeldSecret, ...]:
        """Every Secret as it stands, given the newest content of those that there are, by name."""
        if self._read_at is None or secrets != self._newest or now - self._read_at >= _READ_AGAIN:
            self._newest, self._read_at = secrets, now
            self._held = {
                key: _renewed(held, secrets.get(held.name), now) for key, held in self._held.items()
            }
        return tuple(self._held.values())


def client_authority(held: Iterable[HeldSecret]) -> ClientAuthority:
    """Whether clients' certificates can be checked with what there is."""
    authorities = [one for one in held if one.role is SecretRole.CLIENT_AUTHORITY]
    if not authorities:
        return ClientAuthority.ABSENT
    known = all(one.content is not None for one in authorities)
    return ClientAuthority.USABLE if known else ClientAuthority.UNUSABLE


def _renewed(held: HeldSecret, newest: SecretData | None, now: datetime) -> HeldSecret:
    if newest is None:
        problem = "there is no such Secret, or the xDS servers may not read it"
        return HeldSecret(held.name, held.role, held.content, problem)
    read = (certificate if held.role is SecretRole.CERTIFICATE else authority)(newest, now)
    if isinstance(read, Unfit):
        return HeldSecret(held.name, held.role, held.content, read.why)
    return HeldSecret(held.name, held.role, read, None)
