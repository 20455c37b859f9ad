"""The cluster's certificate authorities, the certificates that they sign, and kubeconfig files with them."""

import base64
import datetime
import ipaddress
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tidegate_localcluster.errors import LocalClusterError

VALID_FOR = datetime.timedelta(days=365)
FRONT_PROXY = "front-proxy-client"
CLOCK_SKEW = datetime.timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class KeyPair:
    """The paths of a certificate and its private key, both PEM; only the owner can read the key."""

    certificate: Path
    key: Path


class Pki:
    """The certificate authorities in one folder (0700), which are created on first use.

    Every call signs a new leaf certificate: it takes a millisecond and follows changed addresses.
    Users and groups are those of Kubernetes' bootstrap roles.
    """

    def __init__(self, directory: Path) -> None:
        """Load the authorities and the ServiceAccount key from `directory`, or create them there."""
        self.directory = directory
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.authority = KeyPair(directory / "ca.crt", directory / "ca.key")
        # A client with a certificate of this second authority may impersonate users: the proxy of aggregated APIs.
        self.front_proxy_authority = KeyPair(
            directory / "front-proxy-ca.crt", directory / "front-proxy-ca.key"
        )
        self.service_account_key = directory / "service-account.key"
        self.service_account_public_key = directory / "service-account.pub"
        for authority in (self.authority, self.front_proxy_authority):
            if not authority.certificate.exists():
                _make_authority(authority)
        if not self.service_account_public_key.exists():
            self._make_service_account_key()

    def issue_server(self, name: str, addresses: Iterable[str]) -> KeyPair:
        """Sign a serving certificate for `addresses` (IP addresses and DNS names), stored as `name`."""
        return self._issue_certificate(
            name, common_name=name, addresses=tuple(addresses), purpose=ExtendedKeyUsageOID.SERVER_AUTH
        )

    def issue_client(self, name: str, *, user: str, groups: Iterable[str] = ()) -> KeyPair:
        """Sign a client certificate for a Kubernetes user with groups, stored as `name`."""
        return self._issue_certificate(
            name, common_name=user, groups=tuple(groups), purpose=ExtendedKeyUsageOID.CLIENT_AUTH
        )

    def issue_admin(self) -> KeyPair:
        """Sign the client certificate of the cluster's administrator."""
        return self.issue_client("admin", user="tidegate-admin", groups=["system:masters"])

    def issue_controller_manager(self) -> KeyPair:
        """Sign the client certificate of the kube-controller-manager."""
        return self.issue_client("kube-controller-manager", user="system:kube-controller-manager")

    def issue_scheduler(self) -> KeyPair:
        """Sign the client certificate of the kube-scheduler."""
        return self.issue_client("kube-scheduler", user="system:kube-scheduler")

    def issue_kube_proxy(self) -> KeyPair:
        """Sign the client certificate of the kube-proxy of every node."""
        return self.issue_client("kube-proxy", user="system:kube-proxy")

    def issue_apiserver_kubelet_client(self) -> KeyPair:
        """Sign the API server's client certificate for kubelets (logs, exec, port-forward, proxy)."""
        return self.issue_client(
            "kube-apiserver-kubelet-client", user="kube-apiserver-kubelet-client", groups=["system:masters"]
        )

    def issue_front_proxy_client(self) -> KeyPair:
        """Sign the API server's client certificate for aggregated API servers."""
        return self._issue_certificate(
            FRONT_PROXY,
            common_name=FRONT_PROXY,
            purpose=ExtendedKeyUsageOID.CLIENT_AUTH,
            authority=self.front_proxy_authority,
        )

    def issue_kubelet_client(self, node: str) -> KeyPair:
        """Sign the client certificate of the kubelet of `node`, which the node authorizer limits to its own pods."""
        return self.issue_client(
            f"kubelet-client-{node}", user=f"system:node:{node}", groups=["system:nodes"]
        )

    def issue_kubelet_server(self, node: str, addresses: Iterable[str]) -> KeyPair:
        """Sign the serving certificate of the kubelet of `node`; the API server verifies it."""
        return self._issue_certificate(
            f"kubelet-server-{node}",
            common_name=f"system:node:{node}",
            groups=("system:nodes",),
            addresses=(node, *addresses),
            purpose=ExtendedKeyUsageOID.SERVER_AUTH,
        )

    def write_kubeconfig(
        self, path: Path, *, server: str, credentials: KeyPair, cluster: str = "tidegate"
    ) -> Path:
        """Write a self-contained kubeconfig (0600) for `server` (an https URL) and return its path."""
        user = credentials.certificate.stem
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": cluster,
                    "cluster": {
                        "server": server,
                        "certificate-authority-data": _read_base64(self.authority.certificate),
                    },
                }
            ],
            "users": [
                {
                    "name": user,
                    "user": {
                        "client-certificate-data": _read_base64(credentials.certificate),
                        "client-key-data": _read_base64(credentials.key),
                    },
                }
            ],
            "contexts": [{"name": cluster, "context": {"cluster": cluster, "user": user}}],
            "current-context": cluster,
        }
        # JSON is YAML, and every client reads it.
        _write_private_file(path, (json.dumps(document, indent=2) + "\n").encode())
        return path

    def _make_service_account_key(self) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        _write_private_file(self.service_account_key, _encode_key(key))
        _write_private_file(
            self.service_account_public_key,
            key.public_key().public_bytes(
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            ),
        )

    def _issue_certificate(
        self,
        name: str,
        *,
        common_name: str,
        purpose: x509.ObjectIdentifier,
        groups: tuple[str, ...] = (),
        addresses: tuple[str, ...] = (),
        authority: KeyPair | None = None,
    ) -> KeyPair:
        signer = authority or self.authority
        signer_certificate = x509.load_pem_x509_certificate(signer.certificate.read_bytes())
        signer_key = serialization.load_pem_private_key(signer.key.read_bytes(), password=None)
        if not isinstance(signer_key, ec.EllipticCurvePrivateKey):
            raise LocalClusterError(f"{signer.key} holds no elliptic curve key: remove {self.directory}")
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.datetime.now(datetime.UTC)
        subject = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([*subject, x509.NameAttribute(NameOID.COMMON_NAME, common_name)]))
            .issuer_name(signer_certificate.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - CLOCK_SKEW)
            .not_valid_after(now + VALID_FOR)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_make_key_usage(authority=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(signer_key.public_key()), critical=False
            )
        )
        if addresses:
            names = [_parse_general_name(address) for address in dict.fromkeys(addresses)]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        certificate = builder.sign(signer_key, hashes.SHA256())
        pair = KeyPair(self.directory / f"{name}.crt", self.directory / f"{name}.key")
        _write_private_file(pair.key, _encode_key(key))
        _write_private_file(pair.certificate, certificate.public_bytes(serialization.Encoding.PEM))
        return pair


def _make_authority(pair: KeyPair) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name(
        [x509.NameAttribute(NameOID.COMMON_NAME, f"tidegate local cluster {pair.certificate.stem}")]
    )
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + 10 * VALID_FOR)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(_make_key_usage(authority=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    _write_private_file(pair.key, _encode_key(key))
    _write_private_file(pair.certificate, certificate.public_bytes(serialization.Encoding.PEM))


def _make_key_usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=not authority,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
    )


def _parse_general_name(address: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(address))
    except ValueError:
        return x509.DNSName(address)


def _encode_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    # SEC1, not PKCS 8: the API server reads an elliptic ServiceAccount key only in this format.
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )


def _read_base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def _write_private_file(path: Path, content: bytes) -> None:
    """Replace `path` in one step with a file that only its owner can read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    partial.replace(path)
