"""Who a proxy is: the xDS server's own certificate, and what a proxy's certificate lets it call itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import grpc
import structlog
from cryptography import x509

_NAMES: Final = "x509_subject_alternative_name"

_log = structlog.stdlib.get_logger(__name__)


class ServerCertificate:
    """The files ca.crt, tls.crt and tls.key of a folder, read again when they change: a new connection gets the newest."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError when one of them cannot be read."""
        self._folder = folder
        self._served = self._read()

    def credentials(self) -> grpc.ServerCredentials:
        """What to listen with; a client without a certificate of the authority's does not get in."""
        # The stubs of grpc leave out that None means no change.
        renewed: Any = self._renewed
        return grpc.dynamic_ssl_server_credentials(
            _configuration(*self._served), renewed, require_client_authentication=True
        )

    def expires_at(self) -> float:
        """When the certificate in the file expires, in seconds since 1970; 0 when there is none that can be read."""
        try:
            _, certificate, _ = self._read()
            return x509.load_pem_x509_certificate(certificate).not_valid_after_utc.timestamp()
        except (OSError, ValueError):
            return 0.0

    def _renewed(self) -> grpc.ServerCertificateConfiguration | None:
        """Asked at every handshake; None keeps what is served."""
        try:
            now = self._read()
        except OSError as error:
            _log.warning("certificate_unreadable", error=str(error))
            return None
        if now == self._served:
            return None
        self._served = now
        _log.info("certificate_renewed")
        return _configuration(*now)

    def _read(self) -> tuple[bytes, bytes, bytes]:
        authority, certificate, key = (
            (self._folder / name).read_bytes() for name in ("ca.crt", "tls.crt", "tls.key")
        )
        return authority, certificate, key


def _configuration(authority: bytes, certificate: bytes, key: bytes) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(key, certificate)], root_certificates=authority)


def names_of(auth_context: Mapping[str, Iterable[bytes]]) -> tuple[str, ...]:
    """The alternative names in a peer's certificate, as grpc hands them out; none without one."""
    return tuple(name.decode(errors="replace") for name in auth_context.get(_NAMES, ()))


def may_call_itself(node: str, names: Iterable[str]) -> bool:
    """Whether a certificate with these names is one for `node`: letter by letter, or by `*.` in place of all before the first dot."""
    first, dot, rest = node.partition(".")
    return bool(first) and any(name == node or (bool(dot and rest) and name == f"*.{rest}") for name in names)


def is_of(node: str, namespace: str) -> bool:
    """Whether all after the first dot of a node id is that namespace, as in those of its pods; with "" each does."""
    return not namespace or node.partition(".")[2] == namespace
