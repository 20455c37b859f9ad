"""The certificate authorities for issuers' hosts: a PEM file that is read again when it changes."""

from __future__ import annotations

import ssl
from pathlib import Path

import structlog

from tidegate.routing.credentials import KeyFetchFailed

_log = structlog.stdlib.get_logger(__name__)


class AuthorityFile:
    """The certificates in a PEM file; without a file those of the system."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._loaded: bytes | None = None
        self._context: ssl.SSLContext | None = None

    def load_context(self) -> ssl.SSLContext | KeyFetchFailed:
        """Return a TLS context with the newest content of the file, never with an older one."""
        try:
            content = b"" if self._file is None else self._file.read_bytes()
            if self._context is None or content != self._loaded:
                # Reset first: a broken file must not leave the older certificates in use.
                self._context = None
                self._context = ssl.create_default_context(cafile=self._file)
                self._loaded = content
        except (OSError, ValueError) as error:
            _log.warning("authorities_unreadable", file=str(self._file), error=str(error))
            return KeyFetchFailed(
                "no certificate can be checked: the ConfigMap in the chart's auth.jwks.caConfigMap needs "
                f"certificates as PEM in ca.crt ({type(error).__name__})"
            )
        return self._context
