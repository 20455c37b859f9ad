"""Certificates say who may do what, and their keys are private."""

import base64
import datetime
import ipaddress
import json
import stat
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tidegate_localcluster.pki import KeyPair, Pki


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    return Pki(tmp_path / "pki")


def certificate(pair: KeyPair) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pair.certificate.read_bytes())


def names(pair: KeyPair, kind: x509.ObjectIdentifier) -> list[str]:
    return [str(attribute.value) for attribute in certificate(pair).subject.get_attributes_for_oid(kind)]


def purposes(pair: KeyPair) -> list[x509.ObjectIdentifier]:
    return list(certificate(pair).extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)


@pytest.mark.parametrize(
    ("who", "user", "groups"),
    [
        ("admin", "tidegate-admin", ["system:masters"]),
        ("controller_manager", "system:kube-controller-manager", []),
        ("scheduler", "system:kube-scheduler", []),
        ("kube_proxy", "system:kube-proxy", []),
        ("apiserver_kubelet_client", "kube-apiserver-kubelet-client", ["system:masters"]),
    ],
)
def test_clients_are_the_users_that_the_bootstrap_roles_know(
    pki: Pki, who: str, user: str, groups: list[str]
) -> None:
    pair = getattr(pki, f"issue_{who}")()
    assert names(pair, NameOID.COMMON_NAME) == [user]
    assert names(pair, NameOID.ORGANIZATION_NAME) == groups
    assert purposes(pair) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    certificate(pair).verify_directly_issued_by(certificate(pki.authority))


def test_a_kubelet_is_its_node(pki: Pki) -> None:
    client, server = pki.issue_kubelet_client("n0"), pki.issue_kubelet_server("n0", ["10.88.0.1"])
    assert names(client, NameOID.COMMON_NAME) == ["system:node:n0"]
    assert names(client, NameOID.ORGANIZATION_NAME) == ["system:nodes"]
    assert purposes(server) == [ExtendedKeyUsageOID.SERVER_AUTH]
    alternatives = certificate(server).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert alternatives.get_values_for_type(x509.DNSName) == ["n0"]
    assert alternatives.get_values_for_type(x509.IPAddress) == [ipaddress.ip_address("10.88.0.1")]


def test_aggregated_apis_trust_an_authority_of_their_own(pki: Pki) -> None:
    front = certificate(pki.issue_front_proxy_client())
    front.verify_directly_issued_by(certificate(pki.front_proxy_authority))
    with pytest.raises(ValueError, match="issuer"):
        front.verify_directly_issued_by(certificate(pki.authority))


def test_leaves_cannot_sign_and_the_authority_can(pki: Pki) -> None:
    def signs(pair: KeyPair) -> bool:
        return certificate(pair).extensions.get_extension_for_class(x509.BasicConstraints).value.ca

    assert signs(pki.authority)
    assert not signs(pki.issue_admin())


def test_is_valid_now_and_for_months(pki: Pki) -> None:
    now = datetime.datetime.now(datetime.UTC)
    leaf = certificate(pki.issue_server("s", ["127.0.0.1"]))
    assert leaf.not_valid_before_utc < now < now + datetime.timedelta(days=90) < leaf.not_valid_after_utc


def test_the_authority_outlives_its_object_and_leaves_follow_addresses(pki: Pki) -> None:
    first = pki.issue_server("s", ["127.0.0.1"]).certificate.read_bytes()
    again = Pki(pki.directory)
    second = again.issue_server("s", ["10.0.0.1"])
    assert second.certificate.read_bytes() != first
    certificate(second).verify_directly_issued_by(certificate(pki.authority))


def test_everything_is_private(pki: Pki) -> None:
    pki.issue_admin()
    assert stat.S_IMODE(pki.directory.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in pki.directory.iterdir()} == {0o600}


def test_a_kubeconfig_is_private_and_complete(pki: Pki, tmp_path: Path) -> None:
    path = pki.write_kubeconfig(
        tmp_path / "kubeconfig", server="https://127.0.0.1:6443", credentials=pki.issue_admin()
    )
    document = json.loads(path.read_text())
    cluster, user = document["clusters"][0]["cluster"], document["users"][0]["user"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert cluster["server"] == "https://127.0.0.1:6443"
    assert base64.b64decode(cluster["certificate-authority-data"]) == pki.authority.certificate.read_bytes()
    assert set(cluster) == {"server", "certificate-authority-data"}
    assert set(user) == {"client-certificate-data", "client-key-data"}
