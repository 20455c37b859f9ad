"""Issuer of certificates whose authority's key is discarded, so that no other certificate can be signed with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tidegate.planning.certificates import CertificatePair, CertificatePart, IssuedPairs

VALIDITY: Final = timedelta(days=365)
_SKEW: Final = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class CertificateIssuer:
    """Issuer for one Helm release; the xDS service is `release`-xds.`namespace`."""

    release: str
    namespace: str

    def issue_certificates(self, parts: Sequence[CertificatePart], now: datetime) -> IssuedPairs:
        """Issue an authority and a certificate with its key for each part, valid for VALIDITY from `now` on."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = _make_name(f"{now:%Y-%m-%d %H:%M:%S} {self.release} {' '.join(parts)}")
        authority = (
            _make_builder(name, name, key, now)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(authority=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        pairs = {part: self._issue_pair(part, (name, key), now) for part in parts}
        return IssuedPairs(authority.public_bytes(serialization.Encoding.PEM), pairs)

    def dns_names(self) -> Mapping[CertificatePart, tuple[str, ...]]:
        """Return the DNS names in the certificate of each part."""
        host = f"{self.release}-xds.{self.namespace}"
        return {
            CertificatePart.CONTROLLERS: ("tidegate-controllers",),
            CertificatePart.XDS: ("tidegate-xds", host, f"{host}.svc"),
            CertificatePart.GATEWAY: (f"*.{self.namespace}",),
        }

    def _issue_pair(
        self, part: CertificatePart, signer: tuple[x509.Name, ec.EllipticCurvePrivateKey], now: datetime
    ) -> CertificatePair:
        issuer, issuer_key = signer
        key = ec.generate_private_key(ec.SECP256R1())
        purpose = (
            ExtendedKeyUsageOID.SERVER_AUTH
            if part is CertificatePart.XDS
            else ExtendedKeyUsageOID.CLIENT_AUTH
        )
        alternative_names = [x509.DNSName(name) for name in self.dns_names()[part]]
        certificate = (
            _make_builder(_make_name(f"tidegate-{part}"), issuer, key, now)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(authority=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
            .add_extension(x509.SubjectAlternativeName(alternative_names), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False
            )
            .sign(issuer_key, hashes.SHA256())
        )
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return CertificatePair(certificate.public_bytes(serialization.Encoding.PEM), private)


def _make_builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + VALIDITY)
    )


def _make_name(common_name: str) -> x509.Name:
    # X.509 limits a common name to 64 characters.
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name[:64])])


def _key_usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
    )
