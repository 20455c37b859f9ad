"""Client identity of the controllers: their certificate, and the authorities that agents are told to trust."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import structlog

from tidegate.planning.certificates import AUTHORITY_KEY, CHAIN_KEY, PRIVATE_KEY_KEY, split_bundle

_ALWAYS: Final = datetime.min.replace(tzinfo=UTC)

log = structlog.get_logger(__name__)

Files = tuple[bytes, bytes, bytes]


def client_context(tls_directory: Path) -> ssl.SSLContext:
    """Return a TLS context with the controllers' certificate, by which agents authenticate us.

    The agent's own certificate is made at its start and proves nothing: an attacker at a pod's address could replace the model
    itself, and learns nothing here but version numbers.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(tls_directory / CHAIN_KEY, tls_directory / PRIVATE_KEY_KEY)
    return context


class ClientIdentity:
    """Files ca.crt, tls.crt and tls.key of a folder, reloaded without a restart and without a failed call.

    Agents first learn of a new authority; the certificate that came with it is used after `spread`, the longest time that a
    ConfigMap takes to reach all of them. The previous authority stays trusted for as long again.
    """

    def __init__(self, folder: Path, now: Callable[[], datetime], spread: timedelta) -> None:
        """Load the files; raise OSError or ssl.SSLError when they cannot be read or do not match."""
        self.spread: Final = spread
        self._folder, self._now = folder, now
        self.context: Final = client_context(folder)
        self._files = self._read_files()
        self._announced_at = dict.fromkeys(split_bundle(self._files[0]), _ALWAYS)
        self._switched = _ALWAYS

    @property
    def trusted_pem(self) -> str:
        """Return the authorities that agents must trust, as PEM."""
        return b"".join(self._announced_at).decode()

    def reload_files(self) -> bool:
        """Reload the files and return whether agents must be told of other authorities than before."""
        before = self.trusted_pem
        try:
            files = self._read_files()
        except OSError as error:
            log.warning("client_certificate_unreadable", error=str(error))
            return False
        current, now = split_bundle(files[0]), self._now()
        if not current:
            log.warning("client_authority_unreadable", file=str(self._folder / AUTHORITY_KEY))
            return False
        for authority in current:
            self._announced_at.setdefault(authority, now)
        if files[1:] != self._files[1:] and all(
            now - self._announced_at[authority] >= self.spread for authority in current
        ):
            self._switch_to(files)
        if files[1:] == self._files[1:] and now - self._switched >= self.spread:
            self._announced_at = {
                authority: since for authority, since in self._announced_at.items() if authority in current
            }
        return self.trusted_pem != before

    def _switch_to(self, files: Files) -> None:
        try:
            # Try the pair in a new context first: one that has loaded half of a pair fails every call.
            client_context(self._folder)
            if self._read_files() != files:
                return  # the files are being replaced; the next reload reads them complete
            self.context.load_cert_chain(self._folder / CHAIN_KEY, self._folder / PRIVATE_KEY_KEY)
        except (OSError, ssl.SSLError) as error:
            log.warning("client_certificate_unusable", folder=str(self._folder), error=str(error))
            return
        self._files, self._switched = files, self._now()
        log.info("client_certificate_renewed")

    def _read_files(self) -> Files:
        authority, chain, key = (
            (self._folder / name).read_bytes() for name in (AUTHORITY_KEY, CHAIN_KEY, PRIVATE_KEY_KEY)
        )
        return authority, chain, key
