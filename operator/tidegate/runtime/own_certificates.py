"""Keeps the release's own certificates in their Secrets, and the controllers' client certificate, current."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Self

import structlog

from tidegate.api.meta import ObjectKey
from tidegate.errors import PermanentError, TidegateError
from tidegate.kube.client import KubeClient
from tidegate.kube.kinds import SECRET
from tidegate.kube.port import Manifest
from tidegate.planning.certificates import (
    AUTHORITY_KEY,
    CHAIN_KEY,
    FAMILIES,
    PRIVATE_KEY_KEY,
    CertificatePart,
    SecretContent,
    plan_rotation,
)
from tidegate.runtime.certificate_issuer import CertificateIssuer
from tidegate.runtime.clock import Clock
from tidegate.settings import ControlPlaneSettings
from tidegate.triton.client_identity import ClientIdentity

RENEW_ANNOTATION: Final = "tidegate.io/renew"
"""On one of the Secrets: requests new certificates now; it is removed once they are issued."""
_RETRY_S: Final = 1
_CHECK_INTERVAL: Final = timedelta(seconds=10)

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class OwnCertificates:
    """The Secrets <release>-<part>-certificate of these parts.

    Every replica of the controllers keeps them, leading or not, since each write names the resourceVersion that it
    read. `folder` is where this process stores its own certificate as files.
    """

    client: KubeClient
    issuer: CertificateIssuer
    parts: Collection[CertificatePart]
    clock: Clock
    spread: timedelta
    folder: Path

    async def fill_secrets(self) -> None:
        """Wait until the controllers' certificate exists and its files are written; fill the other Secrets on the way.

        Raises PermanentError if the controllers' Secret does not exist or may not be read.
        """
        await self.renew_secrets()
        while CertificatePart.CONTROLLERS in self.parts:
            try:
                if await self._advance_family([CertificatePart.CONTROLLERS]):
                    return
            except PermanentError:
                raise
            except TidegateError as error:
                log.warning("certificates_not_filled", error=str(error))
            await self.clock.sleep(_RETRY_S)

    async def renew_secrets(self) -> None:
        """Take the next step of each family that is due; a failure is logged, and retried at the next call."""
        for family in FAMILIES:
            if parts := [part for part in family if part in self.parts]:
                try:
                    await self._advance_family(parts)
                except TidegateError as error:
                    log.warning("certificates_not_kept", parts=sorted(parts), error=str(error))

    async def _advance_family(self, parts: Collection[CertificatePart]) -> bool:
        """Take the next step of one family; return whether it is filled.

        Raises ConflictError if another replica was first; the next call sees what that one wrote.
        """
        bodies = {part: await self._read_secret(part) for part in parts}
        contents = {part: _parse_secret(body) for part, body in bodies.items()}
        now = self.clock.now()
        step = plan_rotation(
            contents, now, self.spread, lambda authority: self.issuer.issue_certificates(authority, now)
        )
        for part, content in step.items():
            await self.client.replace(SECRET, _replace_content(bodies[part], content))
            contents[part] = content
            log.info(
                "certificate_step",
                part=part.value,
                trusted=len(content.trusted),
                aside=content.following is not None,
            )
        if CertificatePart.CONTROLLERS in contents:
            await asyncio.to_thread(_write_files, self.folder, contents[CertificatePart.CONTROLLERS])
        return all(secret.current is not None for secret in contents.values())

    async def _read_secret(self, part: CertificatePart) -> Manifest:
        key = ObjectKey(self.issuer.namespace, f"{self.issuer.release}-{part}-certificate")
        body = await self.client.get(SECRET, key)
        if body is None:
            message = f"Secret {key} not found: the chart creates it empty; restore it with helm upgrade"
            raise PermanentError(message)
        return body


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


def _parse_secret(body: Manifest) -> SecretContent:
    annotations = body["metadata"].get("annotations") or {}
    return SecretContent.from_data(
        _decode_entries(body.get("data") or {}), requested=RENEW_ANNOTATION in annotations
    )


def _decode_entries(data: Mapping[str, str]) -> dict[str, bytes]:
    try:
        return {name: base64.b64decode(value, validate=True) for name, value in data.items()}
    except binascii.Error:
        return {}


def _replace_content(body: Manifest, content: SecretContent) -> dict[str, Any]:
    """Return the Secret with this content; its renew annotation is removed once new certificates are prepared."""
    metadata = dict(body["metadata"])
    annotations = dict(metadata.get("annotations") or {})
    if content.following is not None and annotations.pop(RENEW_ANNOTATION, None) is not None:
        metadata["annotations"] = annotations
    metadata.pop("managedFields", None)
    data = {name: base64.b64encode(value).decode() for name, value in content.to_data().items()}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata,
        "type": body.get("type", "Opaque"),
        "data": data,
    }


def _write_files(folder: Path, content: SecretContent) -> None:
    """Write the files of one part, readable by this user only; each one that differs is replaced atomically."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if content.current is None:
        return
    files = {
        AUTHORITY_KEY: b"".join(content.trusted),
        CHAIN_KEY: content.current.chain,
        PRIVATE_KEY_KEY: content.current.key,
    }
    for name, value in files.items():
        path = folder / name
        if path.exists() and path.read_bytes() == value:
            continue
        partial = folder / f".{name}.partial"
        partial.touch(mode=0o600)
        partial.write_bytes(value)
        partial.replace(path)
