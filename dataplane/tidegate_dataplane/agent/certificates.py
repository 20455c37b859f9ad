"""TLS of the control port: a server certificate made at start, and the pod's client authority."""

import datetime
import ipaddress
import os
import ssl
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CLIENT_COMMON_NAME = "tidegate-controllers"
VALID_FOR = datetime.timedelta(days=3650)


def make_server_certificate(names: tuple[str, ...], now: datetime.datetime) -> bytes:
    """Return a fresh private key and its self-signed certificate as one PEM, for host names and addresses."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + VALID_FOR)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return private + certificate.public_bytes(serialization.Encoding.PEM)


def server_context(server_pem: bytes, client_authority: Path) -> ssl.SSLContext:
    """Return a context that admits only clients whose certificate `client_authority` signed.

    Raises:
        OSError, ssl.SSLError: the authority file is absent or not a certificate.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # Resumed sessions skip the check of the certificate: without tickets, removing an authority takes effect at once.
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(client_authority)
    with _in_memory(server_pem) as path:
        context.load_cert_chain(path)
    return context


def common_name(certificate: object) -> str | None:
    """Return the common name of a peer certificate as the ssl module gives it."""
    if not isinstance(certificate, dict):
        return None
    subject: object = certificate.get("subject", ())
    if not isinstance(subject, tuple):
        return None
    for relative in subject:
        for attribute in relative:
            if attribute[0] == "commonName":
                return str(attribute[1])
    return None


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


@contextmanager
def _in_memory(content: bytes) -> Generator[str, None, None]:
    """Yield the path of an in-memory file with `content`, for APIs that accept only a path."""
    descriptor = os.memfd_create("tidegate-agent-tls", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, content)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
