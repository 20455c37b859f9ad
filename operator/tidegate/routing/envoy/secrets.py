"""What the TLS port shows and checks with, in Envoy's words: the secrets that gateways ask for by name (SDS)."""

from __future__ import annotations

from typing import Final

from tidegate.routing import protos
from tidegate.routing.certificates import Authority, Certificate

TYPE: Final = "envoy.extensions.transport_sockets.tls.v3.Secret"


def certificate_name(secret: str) -> str:
    """What the certificate in the Secret of this name is called among the resources."""
    return f"certificate/{secret}"


def authority_name(secret: str) -> str:
    """What the authority in the Secret of this name is called."""
    return f"client-authority/{secret}"


def encode_certificate(name: str, certificate: Certificate) -> bytes:
    """The serialised Secret with a certificate and its key."""
    pair = {
        "certificate_chain": {"inline_bytes": certificate.chain},
        "private_key": {"inline_bytes": certificate.key},
    }
    return protos.encode(TYPE, {"name": name, "tls_certificate": pair})


def encode_authority(name: str, authority: Authority | None) -> bytes:
    """The serialised Secret with what clients' certificates are checked by; None: no client is asked for one, so none is known."""
    trusted = {} if authority is None else {"trusted_ca": {"inline_bytes": authority.bundle}}
    return protos.encode(TYPE, {"name": name, "validation_context": trusted})
