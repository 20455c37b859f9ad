"""Parsing of the Secrets of the gateways' TLS port: a certificate with its key, and the authority of clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from tidegate.routing.credentials import InvalidContent, SecretData

CHAIN_KEY: Final = "tls.crt"
PRIVATE_KEY_KEY: Final = "tls.key"
AUTHORITY_KEY: Final = "ca.crt"

_MAX_BYTES: Final = 256 << 10
# The keys that Envoy accepts; it rejects others, and with them the whole port.
_MIN_RSA_BITS: Final = 2_048
_CURVES: Final = (ec.SECP256R1, ec.SECP384R1, ec.SECP521R1)


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate with its intermediates (PEM) and its key; repr() shows neither.

    `expires` is the earliest expiry of them.
    """

    chain: bytes = field(repr=False)
    key: bytes = field(repr=False)
    expires: datetime


@dataclass(frozen=True, slots=True)
class AuthorityBundle:
    """The certificates (PEM), one of which must have signed a client's; `expires` is the latest expiry of them."""

    bundle: bytes = field(repr=False)
    expires: datetime


def parse_certificate(secret: SecretData, now: datetime) -> Certificate | InvalidContent:
    """Parse the certificate in `secret`, re-encoded in one form; `now` has a time zone."""
    chain = _load_certificates(secret, CHAIN_KEY)
    if isinstance(chain, InvalidContent):
        return chain
    key = _load_private_key(secret)
    if isinstance(key, InvalidContent):
        return key
    if key.public_key() != chain[0].public_key():
        return InvalidContent(
            f"{PRIVATE_KEY_KEY} is not the key of the first certificate in {CHAIN_KEY}: put in the one that it was made for"
        )
    for certificate in chain:
        if not certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc:
            return InvalidContent(f"{CHAIN_KEY} {_describe_validity(certificate, now)}")
    return Certificate(
        _to_pem(chain),
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
        min(certificate.not_valid_after_utc for certificate in chain),
    )


def parse_authority(secret: SecretData, now: datetime) -> AuthorityBundle | InvalidContent:
    """Parse the authority in `secret`; one valid certificate of several is enough, so that they can be rotated."""
    bundle = _load_certificates(secret, AUTHORITY_KEY)
    if isinstance(bundle, InvalidContent):
        return bundle
    last = max(bundle, key=lambda certificate: certificate.not_valid_after_utc)
    if not any(
        certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc for certificate in bundle
    ):
        return InvalidContent(f"{AUTHORITY_KEY} {_describe_validity(last, now)}")
    return AuthorityBundle(_to_pem(bundle), last.not_valid_after_utc)


def _describe_validity(certificate: x509.Certificate, now: datetime) -> str:
    if now < certificate.not_valid_before_utc:
        return f"is valid from {certificate.not_valid_before_utc:%Y-%m-%dT%H:%M:%SZ} on, and not yet"
    return f"has expired at {certificate.not_valid_after_utc:%Y-%m-%dT%H:%M:%SZ}: put in a newer one"


def _load_certificates(secret: SecretData, entry: str) -> Sequence[x509.Certificate] | InvalidContent:
    text = _read_entry(secret, entry)
    if isinstance(text, InvalidContent):
        return text
    try:
        certificates = x509.load_pem_x509_certificates(text)
        for certificate in certificates:
            certificate.public_key()
    except (ValueError, UnsupportedAlgorithm):
        return InvalidContent(f"{entry} holds no certificates in PEM")
    return certificates


def _to_pem(certificates: Sequence[x509.Certificate]) -> bytes:
    return b"".join(certificate.public_bytes(serialization.Encoding.PEM) for certificate in certificates)


def _load_private_key(secret: SecretData) -> rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | InvalidContent:
    text = _read_entry(secret, PRIVATE_KEY_KEY)
    if isinstance(text, InvalidContent):
        return text
    try:
        key = serialization.load_pem_private_key(text, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return InvalidContent(
            f"{PRIVATE_KEY_KEY} holds no private key in PEM that is readable without a password"
        )
    if isinstance(key, rsa.RSAPrivateKey):
        if key.key_size >= _MIN_RSA_BITS:
            return key
        return InvalidContent(
            f"{PRIVATE_KEY_KEY} is an RSA key of {key.key_size} bits: at least {_MIN_RSA_BITS} are needed"
        )
    if isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, _CURVES):
        return key
    return InvalidContent(
        f"{PRIVATE_KEY_KEY} is of no kind that gateways take: make it RSA, P-256, P-384 or P-521"
    )


def _read_entry(secret: SecretData, entry: str) -> bytes | InvalidContent:
    text = secret.entries.get(entry)
    if text is None:
        return InvalidContent(f"it has no entry {entry}")
    if len(text) > _MAX_BYTES:
        return InvalidContent(f"{entry} has {len(text)} bytes: at most {_MAX_BYTES} are taken")
    return text
