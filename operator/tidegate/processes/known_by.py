"""By what agents know the controllers, whoever makes it: the files are kept up to date, taken up, and agents told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Self

from tidegate.kube.client import KubeClient
from tidegate.processes.own_certificates import OwnCertificates
from tidegate.runtime.certificate_issuer import CertificateIssuer
from tidegate.runtime.clock import Clock
from tidegate.settings import Settings
from tidegate.triton.client_identity import ClientIdentity

_LOOK_EVERY: Final = timedelta(seconds=10)


@dataclass(frozen=True, slots=True)
class KnownBy:
    """The identity, and the Secrets that are kept beside it where they are the release's own."""

    identity: ClientIdentity
    own: OwnCertificates | None
    clock: Clock

    @classmethod
    async def begin(cls, client: KubeClient, settings: Settings, namespace: str, clock: Clock) -> Self:
        """Once there is a certificate. Raises PermanentError when a Secret is missing, OSError when a file is."""
        spread = timedelta(seconds=settings.certificate_spread_s)
        own = None
        if settings.own_certificates:
            issuer = CertificateIssuer(settings.release, namespace)
            parts = frozenset(settings.own_certificates)
            own = OwnCertificates(client, issuer, parts, clock, spread, settings.tls_directory)
            await own.fill()
        return cls(ClientIdentity(settings.tls_directory, clock.now, spread), own, clock)

    async def keep(self, changed: Callable[[], None]) -> None:
        """Takes up what is new until cancelled; `changed` is called when agents are to trust others than before."""
        every = min(_LOOK_EVERY, self.identity.spread / 8) or _LOOK_EVERY
        while True:
            await self.clock.sleep(every.total_seconds())
            if self.own is not None:
                await self.own.keep()
            if self.identity.reload_files():
                changed()
