"""The identity of proxies: the xDS server's own certificate, and the node ids that a proxy's certificate allows."""

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
    """The files ca.crt, tls.crt and tls.key of a folder; each new connection uses the newest."""

    def __init__(self, folder: Path) -> None:
        """Read the files. Raises OSError when one of them cannot be read."""
        self._folder = folder
        self._served = self._read_files()

    def server_credentials(self) -> grpc.ServerCredentials:
        """Return credentials to listen with; a client needs a certificate of the same authority."""
        # grpc's stubs lack that None means no change.
        renewed: Any = self._load_renewed
        return grpc.dynamic_ssl_server_credentials(
            _certificate_configuration(*self._served), renewed, require_client_authentication=True
        )

    def expires_at(self) -> float:
        """Return the expiry of the certificate in the file, in seconds since 1970; 0 if it cannot be read."""
        try:
            _, certificate, _ = self._read_files()
            return x509.load_pem_x509_certificate(certificate).not_valid_after_utc.timestamp()
        except (OSError, ValueError):
            return 0.0

    def _load_renewed(self) -> grpc.ServerCertificateConfiguration | None:
        """Return a changed certificate, None if it is unchanged; gRPC calls this at every handshake."""
        try:
            newest = self._read_files()
        except OSError as error:
            _log.warning("certificate_unreadable", error=str(error))
            return None
        if newest == self._served:
            return None
        self._served = newest
        _log.info("certificate_renewed")
        return _certificate_configuration(*newest)

    def _read_files(self) -> tuple[bytes, bytes, bytes]:
        authority, certificate, key = (
            (self._folder / name).read_bytes() for name in ("ca.crt", "tls.crt", "tls.key")
        )
        return authority, certificate, key


def _certificate_configuration(
    authority: bytes, certificate: bytes, key: bytes
) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(key, certificate)], root_certificates=authority)


def certificate_names(auth_context: Mapping[str, Iterable[bytes]]) -> tuple[str, ...]:
    """Return the subject alternative names in a peer's certificate, as grpc presents them; none without one."""
    return tuple(name.decode(errors="replace") for name in auth_context.get(_NAMES, ()))


def matches_node_id(node: str, names: Iterable[str]) -> bool:
    """Return whether a certificate with these names allows the id `node`, exactly or by `*.` for its first label."""
    first, dot, rest = node.partition(".")
    return bool(first) and any(name == node or (bool(dot and rest) and name == f"*.{rest}") for name in names)


def belongs_to_namespace(node: str, namespace: str) -> bool:
    """Return whether a node id belongs to a namespace: the part after its first dot is `namespace`.

    The ids of gateways' pods have this form. Every id belongs to an empty namespace.
    """
    return not namespace or node.partition(".")[2] == namespace
