"""Certificate authorities and certificates for tests, written as PEM files."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import NameOID

PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, both PEM."""

    chain: bytes
    key: bytes


def client_context(certificate: Path | None = None) -> ssl.SSLContext:
    """Return what a client of an agent's control port offers; it does not ask who the agent is."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if certificate is not None:
        context.load_cert_chain(certificate)
    return context


def private_pem(key: PrivateKey) -> bytes:
    """The key as a file holds it."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate authority in a folder: `certificate` is its PEM file."""

    folder: Path
    certificate: Path
    _name: x509.Name
    _key: ec.EllipticCurvePrivateKey

    @classmethod
    def make(cls, folder: Path, common_name: str = "test authority") -> Authority:
        """Make a new authority."""
        folder.mkdir(parents=True, exist_ok=True)
        key, name = ec.generate_private_key(ec.SECP256R1()), _name(common_name)
        certificate = _build(name, name, key, key, authority=True)
        path = folder / "ca.crt"
        path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return cls(folder, path, name, key)

    def issue(self, common_name: str, *, addresses: tuple[str, ...] = ("127.0.0.1",)) -> Path:
        """Return a PEM file with a private key and the certificate for it."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _build(_name(common_name), self._name, key, self._key, addresses=addresses)
        path = self.folder / f"{common_name.replace(' ', '-')}.pem"
        path.write_bytes(private_pem(key) + certificate.public_bytes(serialization.Encoding.PEM))
        return path

    def pair(
        self,
        *names: str,
        uris: tuple[str, ...] = (),
        lasting: datetime.timedelta = datetime.timedelta(days=1),
        key: PrivateKey | None = None,
    ) -> Pair:
        """A key and a certificate for these DNS names and URIs, which is valid `lasting` from now on, or was if that is negative."""
        key = key or ec.generate_private_key(ec.SECP256R1())
        certificate = _build(
            _name("pair"), self._name, key, self._key, names=names, uris=uris, lasting=lasting
        )
        return Pair(certificate.public_bytes(serialization.Encoding.PEM), private_pem(key))

    def issue_into(self, folder: Path, *names: str) -> Path:
        """Write ca.crt, tls.crt and tls.key for these DNS names into `folder`, over what is there; return it."""
        folder.mkdir(parents=True, exist_ok=True)
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _build(_name("pair"), self._name, key, self._key, names=names)
        private = private_pem(key)
        (folder / "ca.crt").write_bytes(self.certificate.read_bytes())
        (folder / "tls.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        (folder / "tls.key").write_bytes(private)
        return folder


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _build(
    subject: x509.Name,
    issuer: x509.Name,
    key: PrivateKey,
    issuer_key: ec.EllipticCurvePrivateKey,
    *,
    authority: bool = False,
    addresses: tuple[str, ...] = (),
    names: tuple[str, ...] = (),
    uris: tuple[str, ...] = (),
    lasting: datetime.timedelta = datetime.timedelta(days=1),
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    begin = min(now, now + lasting) - datetime.timedelta(minutes=5)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(now + lasting)
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
    )
    known: list[x509.GeneralName] = [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
    known += [x509.DNSName(name) for name in names]
    known += [x509.UniformResourceIdentifier(uri) for uri in uris]
    if known:
        builder = builder.add_extension(x509.SubjectAlternativeName(known), critical=False)
    return builder.sign(issuer_key, hashes.SHA256())
