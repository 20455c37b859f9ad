"""Keeps the controllers' client certificate current, and notifies agents when the trusted CA changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Self

from tidegate.kube.client import KubeClient
from tidegate.processes.own_certificates import OwnCertificates
from tidegate.runtime.certificate_issuer import CertificateIssuer
from tidegate.runtime.clock import Clock
from tidegate.settings import ControlPlaneSettings
from tidegate.triton.client_identity import ClientIdentity

_CHECK_INTERVAL: Final = timedelta(seconds=10)


@dataclass(frozen=True, slots=True)
class AgentCredentials:
    """The client identity, and the Secrets of our own certificates if the release issues them."""

    identity: ClientIdentity
    own_certificates: OwnCertificates | None
    clock: Clock

    @classmethod
    async def wait_until_issued(
        cls, client: KubeClient, settings: ControlPlaneSettings, namespace: str, clock: Clock
    ) -> Self:
        """Wait until there is a certificate. Raises PermanentError if a Secret is missing, OSError if a file is."""
        spread = timedelta(seconds=settings.certificate_spread_s)
        own_certificates = None
        if settings.own_certificates:
            issuer = CertificateIssuer(settings.release, namespace)
            parts = frozenset(settings.own_certificates)
            own_certificates = OwnCertificates(client, issuer, parts, clock, spread, settings.tls_directory)
            await own_certificates.fill_secrets()
        return cls(ClientIdentity(settings.tls_directory, clock.now, spread), own_certificates, clock)

    async def keep_current(self, changed: Callable[[], None]) -> None:
        """Reload certificates until cancelled; call `changed` when agents must trust other authorities than before."""
        interval = min(_CHECK_INTERVAL, self.identity.spread / 8) or _CHECK_INTERVAL
        while True:
            await self.clock.sleep(interval.total_seconds())
            if self.own_certificates is not None:
                await self.own_certificates.renew_secrets()
            if self.identity.reload_files():
                changed()
