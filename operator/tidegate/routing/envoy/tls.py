"""The TLS port: versions, ciphers, whether clients may show a certificate, and the secrets for it.

Gateways subscribe by name (SDS) to the certificates and the client authority.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidegate.routing import protos
from tidegate.routing.certificates import AuthorityBundle, Certificate

TYPE: Final = "envoy.extensions.transport_sockets.tls.v3.Secret"
_CONTEXT: Final = "envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext"

# Only ciphers with forward secrecy and authenticated encryption; TLS 1.3 has no others.
_CIPHERS: Final = (
    "[ECDHE-ECDSA-AES128-GCM-SHA256|ECDHE-ECDSA-CHACHA20-POLY1305]",
    "[ECDHE-RSA-AES128-GCM-SHA256|ECDHE-RSA-CHACHA20-POLY1305]",
    "ECDHE-ECDSA-AES256-GCM-SHA384",
    "ECDHE-RSA-AES256-GCM-SHA384",
)

# How long a starting gateway waits for a certificate; then it serves the plain port without it.
_FIRST_FETCH_S: Final = 2


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """The TLS port of a gateway; `secrets` name the Secrets with its certificates, at least one.

    `client_authority` names the Secret that verifies clients' certificates; empty: clients show none.
    """

    secrets: tuple[str, ...]
    client_authority: str = ""
    port: int = 8443


def transport_socket(settings: TlsSettings) -> dict[str, object]:
    """Return the filter chain's transport socket.

    It depends on names only: certificates change without a change of the listener.
    """
    common: dict[str, object] = {
        "tls_params": {"tls_minimum_protocol_version": "TLSv1_2", "cipher_suites": list(_CIPHERS)},
        "tls_certificate_sds_secret_configs": [
            _sds_config(certificate_name(name)) for name in settings.secrets
        ],
        "alpn_protocols": ["h2", "http/1.1"],
    }
    context: dict[str, object] = {"common_tls_context": common}
    if settings.client_authority:
        name = authority_name(settings.client_authority)
        common["validation_context_sds_secret_config"] = _sds_config(name)
        # A resumed session is not verified again, however long ago its certificate expired.
        context["disable_stateless_session_resumption"] = True
        context["disable_stateful_session_resumption"] = True
    return protos.extension_config("envoy.transport_sockets.tls", _CONTEXT, context)


def _sds_config(name: str) -> dict[str, object]:
    source = {**protos.ADS_CONFIG, "initial_fetch_timeout": protos.seconds(_FIRST_FETCH_S)}
    return {"name": name, "sds_config": source}


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
