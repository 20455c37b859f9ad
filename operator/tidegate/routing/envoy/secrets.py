"""The certificates and the client authority of the TLS port, to which gateways subscribe by name (SDS)."""

from __future__ import annotations

from typing import Final

from tidegate.routing import protos
from tidegate.routing.certificates import AuthorityBundle, Certificate

TYPE: Final = "envoy.extensions.transport_sockets.tls.v3.Secret"


def certificate_name(secret: str) -> str:
    """Return the resource name of the certificate in a Secret."""
    return f"certificate/{secret}"


def authority_name(secret: str) -> str:
    """Return the resource name of the client authority in a Secret."""
    return f"client-authority/{secret}"


def encode_certificate(name: str, certificate: Certificate) -> bytes:
    """Serialise the secret with a certificate and its key."""
    pair = {
        "certificate_chain": {"inline_bytes": certificate.chain},
        "private_key": {"inline_bytes": certificate.key},
    }
    return protos.encode(TYPE, {"name": name, "tls_certificate": pair})


def encode_authority(name: str, authority: AuthorityBundle | None) -> bytes:
    """Serialise the secret that verifies clients' certificates.

    None makes an empty one, with which no client is verified.
    """
    trusted = {} if authority is None else {"trusted_ca": {"inline_bytes": authority.bundle}}
    return protos.encode(TYPE, {"name": name, "validation_context": trusted})
