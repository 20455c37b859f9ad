"""Keeps the Secrets with the certificates that the release makes for itself: filled at first, and renewed long before they end."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

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
    Held,
    Part,
    next_step,
)
from tidegate.runtime.certificate_issuer import CertificateIssuer
from tidegate.runtime.clock import Clock

RENEW_ANNOTATION: Final = "tidegate.io/renew"
"""On one of the Secrets: whoever sets it wants new certificates now; it is taken away when they are made."""
_RETRY_S: Final = 1
_BEFORE: Final[Mapping[Part, str]] = {
    Part.CONTROLLERS: "controllers-tls",
    Part.XDS: "xds-tls",
    Part.GATEWAY: "gateway-xds-tls",
}
"""How the Secrets ended that Helm made up to 0.1; what they hold is gone on with."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class OwnCertificates:
    """The Secrets <release>-<part>-certificate of these parts.

    Every replica of the controllers keeps them, leading or not, since each write names the resourceVersion that it read.
    `folder` is where this process has its own as files.
    """

    client: KubeClient
    issuer: CertificateIssuer
    parts: Collection[Part]
    clock: Clock
    spread: timedelta
    folder: Path

    async def fill(self) -> None:
        """Returns once there is a certificate of our own and it is in its folder; those of others are filled by the way.

        Raises PermanentError when our own Secret is not there or may not be read.
        """
        await self.keep()
        while Part.CONTROLLERS in self.parts:
            try:
                if await self._family([Part.CONTROLLERS]):
                    return
            except PermanentError:
                raise
            except TidegateError as error:
                log.warning("certificates_not_filled", error=str(error))
            await self.clock.sleep(_RETRY_S)

    async def keep(self) -> None:
        """Takes the next step of each family, where one is due; what keeps it from one is logged, and met again at the next look."""
        for family in FAMILIES:
            if parts := [part for part in family if part in self.parts]:
                try:
                    await self._family(parts)
                except TidegateError as error:
                    log.warning("certificates_not_kept", parts=sorted(parts), error=str(error))

    async def _family(self, parts: Collection[Part]) -> bool:
        """The next step of one family; whether it is filled.

        Raises ConflictError when another replica was faster: the next look sees what it did.
        """
        bodies = {part: await self._secret(part) for part in parts}
        held = {part: _held(body) for part, body in bodies.items()}
        step: Mapping[Part, Held] = {}
        if all(each.current is None for each in held.values()):
            step = await self._before(parts)
        if not step:
            now = self.clock.now()
            step = next_step(held, now, self.spread, lambda of: self.issuer.issue_certificates(of, now))
        for part, content in step.items():
            await self.client.replace(SECRET, _with(bodies[part], content))
            held[part] = content
            log.info(
                "certificate_step",
                part=part.value,
                trusted=len(content.trusted),
                aside=content.following is not None,
            )
        if Part.CONTROLLERS in held:
            await asyncio.to_thread(_write, self.folder, held[Part.CONTROLLERS])
        return all(each.current is not None for each in held.values())

    async def _before(self, parts: Collection[Part]) -> Mapping[Part, Held]:
        """What an earlier release had, where it is whole."""
        found: dict[Part, Held] = {}
        for part in parts:
            key = ObjectKey(self.issuer.namespace, f"{self.issuer.release}-{_BEFORE[part]}")
            body = await self.client.get(SECRET, key)
            if body is not None and (held := _held(body)).current is not None:
                found[part] = held
        if len(found) < len(parts):
            return {}
        log.info("certificates_adopted", parts=sorted(found))
        return found

    async def _secret(self, part: Part) -> Manifest:
        key = ObjectKey(self.issuer.namespace, f"{self.issuer.release}-{part}-certificate")
        body = await self.client.get(SECRET, key)
        if body is None:
            message = f"Secret {key} is not there: the chart makes it, empty; install the release again (helm upgrade)"
            raise PermanentError(message)
        return body


def _held(body: Manifest) -> Held:
    annotations = body["metadata"].get("annotations") or {}
    return Held.parse(_decoded(body.get("data") or {}), asked=RENEW_ANNOTATION in annotations)


def _decoded(data: Mapping[str, str]) -> dict[str, bytes]:
    try:
        return {name: base64.b64decode(value, validate=True) for name, value in data.items()}
    except binascii.Error:
        return {}


def _with(body: Manifest, content: Held) -> dict[str, Any]:
    """The Secret with this content; a wish to renew is met where one is put aside."""
    metadata = dict(body["metadata"])
    annotations = dict(metadata.get("annotations") or {})
    if content.following is not None and annotations.pop(RENEW_ANNOTATION, None) is not None:
        metadata["annotations"] = annotations
    metadata.pop("managedFields", None)
    data = {name: base64.b64encode(value).decode() for name, value in content.render().items()}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata,
        "type": body.get("type", "Opaque"),
        "data": data,
    }


def _write(folder: Path, held: Held) -> None:
    """The files of one part, each replaced in one step where it differs; nobody else can read them."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if held.current is None:
        return
    files = {
        AUTHORITY_KEY: b"".join(held.trusted),
        CHAIN_KEY: held.current.chain,
        PRIVATE_KEY_KEY: held.current.key,
    }
    for name, value in files.items():
        path = folder / name
        if path.exists() and path.read_bytes() == value:
            continue
        partial = folder / f".{name}.partial"
        partial.touch(mode=0o600)
        partial.write_bytes(value)
        partial.replace(path)
