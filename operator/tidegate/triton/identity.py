"""By what agents know the controllers: their certificate, and the authorities that agents are told to trust."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import structlog

from tidegate.planning.certificates import AUTHORITY_KEY, CHAIN_KEY, PRIVATE_KEY_KEY, authorities

_ALWAYS: Final = datetime.min.replace(tzinfo=UTC)

log = structlog.get_logger(__name__)

Files = tuple[bytes, bytes, bytes]


def client_context(tls_directory: Path) -> ssl.SSLContext:
    """TLS as the controllers: our certificate is what an agent accepts us by.

    The agent's own certificate is made at its start and proves nothing: whoever could stand in for a pod's
    address could stand in for the model itself, and learns nothing here but version numbers.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(tls_directory / CHAIN_KEY, tls_directory / PRIVATE_KEY_KEY)
    return context


class ClientIdentity:
    """The files ca.crt, tls.crt and tls.key of a folder, whoever writes them, taken up without a restart and without a refused call.

    Agents are told first of an authority that is new; a certificate that came with it is shown once they have had `spread`, the
    longest that a ConfigMap takes to all of them. The authority before stays trusted as long again.
    """

    def __init__(self, folder: Path, now: Callable[[], datetime], spread: timedelta) -> None:
        """Raises OSError or ssl.SSLError when the files cannot be read or are no pair."""
        self.spread: Final = spread
        self._folder, self._now = folder, now
        self.context: Final = client_context(folder)
        self._used = self._read()
        self._told = dict.fromkeys(authorities(self._used[0]), _ALWAYS)
        self._switched = _ALWAYS

    @property
    def trusted(self) -> str:
        """The authorities that agents are to trust, as PEM."""
        return b"".join(self._told).decode()

    def look(self) -> bool:
        """Takes up what the files say by now; whether agents are to be told of other authorities than before."""
        before = self.trusted
        try:
            files = self._read()
        except OSError as error:
            log.warning("client_certificate_unreadable", error=str(error))
            return False
        wanted, now = authorities(files[0]), self._now()
        if not wanted:
            log.warning("client_authority_unreadable", file=str(self._folder / AUTHORITY_KEY))
            return False
        for authority in wanted:
            self._told.setdefault(authority, now)
        if files[1:] != self._used[1:] and all(now - self._told[each] >= self.spread for each in wanted):
            self._use(files)
        if files[1:] == self._used[1:] and now - self._switched >= self.spread:
            self._told = {each: since for each, since in self._told.items() if each in wanted}
        return self.trusted != before

    def _use(self, files: Files) -> None:
        try:
            # Tried apart first: a context that has taken half of a pair refuses every call.
            client_context(self._folder)
            if self._read() != files:
                return  # they are being replaced: the next look sees them whole
            self.context.load_cert_chain(self._folder / CHAIN_KEY, self._folder / PRIVATE_KEY_KEY)
        except (OSError, ssl.SSLError) as error:
            log.warning("client_certificate_unusable", folder=str(self._folder), error=str(error))
            return
        self._used, self._switched = files, self._now()
        log.info("client_certificate_renewed")

    def _read(self) -> Files:
        authority, chain, key = (
            (self._folder / name).read_bytes() for name in (AUTHORITY_KEY, CHAIN_KEY, PRIVATE_KEY_KEY)
        )
        return authority, chain, key
