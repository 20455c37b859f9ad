"""The TLS port's own part of the listener: which certificates, which versions of TLS, and whether clients may show one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidegate.routing import protos
from tidegate.routing.envoy import secrets

_CONTEXT: Final = "envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext"

# Forward secrecy and authenticated encryption alone; TLS 1.3 has nothing else.
_CIPHERS: Final = (
    "[ECDHE-ECDSA-AES128-GCM-SHA256|ECDHE-ECDSA-CHACHA20-POLY1305]",
    "[ECDHE-RSA-AES128-GCM-SHA256|ECDHE-RSA-CHACHA20-POLY1305]",
    "ECDHE-ECDSA-AES256-GCM-SHA384",
    "ECDHE-RSA-AES256-GCM-SHA384",
)

# A gateway that starts waits for so long for a certificate that nobody has, and then serves the port without TLS all the same.
_FIRST_FETCH_S: Final = 2


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """The TLS port of a gateway: `secrets` name the Secrets with its certificates, at least one.

    `client_authority` names the Secret by which clients' certificates are checked; empty: no client is asked for one.
    """

    secrets: tuple[str, ...]
    client_authority: str = ""
    port: int = 8443


def transport_socket(settings: TlsSettings) -> dict[str, object]:
    """The filter chain's transport socket. It depends on names alone: certificates come and go without a change of the listener."""
    common: dict[str, object] = {
        "tls_params": {"tls_minimum_protocol_version": "TLSv1_2", "cipher_suites": list(_CIPHERS)},
        "tls_certificate_sds_secret_configs": [
            _asked_for(secrets.certificate_name(name)) for name in settings.secrets
        ],
        "alpn_protocols": ["h2", "http/1.1"],
    }
    context: dict[str, object] = {"common_tls_context": common}
    if settings.client_authority:
        name = secrets.authority_name(settings.client_authority)
        common["validation_context_sds_secret_config"] = _asked_for(name)
        # A session that is taken up again is not checked again, however long ago its certificate expired.
        context["disable_stateless_session_resumption"] = True
        context["disable_stateful_session_resumption"] = True
    return protos.extension("envoy.transport_sockets.tls", _CONTEXT, context)


def _asked_for(name: str) -> dict[str, object]:
    source = {**protos.ADS, "initial_fetch_timeout": protos.seconds(_FIRST_FETCH_S)}
    return {"name": name, "sds_config": source}
