"""What of a Secret of the TLS port can be used, for how long, and what is said of the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from prometheus_client import CollectorRegistry

from builders.certificates import Authority, Pair
from tidegate.publisher.gateway_tls import GatewayTlsSecrets
from tidegate.reports.xds import XdsStatusReport
from tidegate.routing.certificates import parse_authority, parse_certificate
from tidegate.routing.credentials import InvalidContent, SecretData
from tidegate.routing.envoy.tls import TlsSettings
from tidegate.routing.gateway_secrets import GatewaySecrets, GatewaySecretState
from tidegate.xds import inspection
from tidegate.xds.metrics import XdsMetrics
from tidegate.xds.snapshot_builder import render_secrets

DAY = timedelta(days=1)


@pytest.fixture(scope="module")
def signer(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("authority"))


def now() -> datetime:
    """Tests run minutes after they are collected, and certificates begin when they are made."""
    return datetime.now(UTC)


def secret(pair: Pair, **others: bytes) -> SecretData:
    return SecretData({"tls.crt": pair.chain, "tls.key": pair.key, **others})


def test_a_chain_expires_with_the_first_of_it(signer: Authority) -> None:
    pair = signer.pair("a.com", lasting=DAY / 2)
    chained = Pair(pair.chain + signer.certificate.read_bytes(), pair.key)
    read = parse_certificate(secret(chained), now())
    assert not isinstance(read, InvalidContent)
    assert abs(read.expires - now() - DAY / 2) < timedelta(minutes=1)
    assert read.chain.count(b"BEGIN CERTIFICATE") == 2


@pytest.mark.parametrize(
    "make",
    [
        lambda: rsa.generate_private_key(65537, 2048),
        *(lambda curve=curve: ec.generate_private_key(curve) for curve in (ec.SECP384R1(), ec.SECP521R1())),
    ],
    ids=["RSA-2048", "P-384", "P-521"],
)
def test_keys_that_gateways_take(signer: Authority, make: Callable[[], rsa.RSAPrivateKey]) -> None:
    assert not isinstance(parse_certificate(secret(signer.pair("a.com", key=make())), now()), InvalidContent)


def unfit(signer: Authority) -> Mapping[str, tuple[SecretData, str]]:
    pair, other = signer.pair("a.com"), signer.pair("b.com")
    weak = signer.pair("a.com", key=rsa.generate_private_key(65537, 1024))
    odd = signer.pair("a.com", key=ed25519.Ed25519PrivateKey.generate())
    curve = signer.pair("a.com", key=ec.generate_private_key(ec.SECP256K1()))
    return {
        "empty": (SecretData({}), "it has no entry tls.crt"),
        "no key": (SecretData({"tls.crt": pair.chain}), "it has no entry tls.key"),
        "no PEM": (
            SecretData({"tls.crt": b"x", "tls.key": pair.key}),
            "tls.crt holds no certificates in PEM",
        ),
        "a key as certificate": (SecretData({"tls.crt": pair.key, "tls.key": pair.key}), "tls.crt holds no"),
        "no key in PEM": (
            SecretData({"tls.crt": pair.chain, "tls.key": b"x"}),
            "tls.key holds no private key",
        ),
        "another's": (SecretData({"tls.crt": pair.chain, "tls.key": other.key}), "tls.key is not the key of"),
        "weak": (secret(weak), "tls.key is an RSA key of 1024 bits: at least 2048 are needed"),
        "Ed25519": (secret(odd), "tls.key is of no kind that gateways take"),
        "secp256k1": (secret(curve), "tls.key is of no kind that gateways take"),
        "huge": (
            SecretData({"tls.crt": b"x" * 300_000}),
            "tls.crt has 300000 bytes: at most 262144 are taken",
        ),
        "expired": (secret(signer.pair("a.com", lasting=-DAY)), "tls.crt has expired at "),
    }


def test_the_rest_is_named_without_a_word_of_it(signer: Authority) -> None:
    for what, (bad, why) in unfit(signer).items():
        read = parse_certificate(bad, now())
        assert isinstance(read, InvalidContent), what
        assert read.reason.startswith(why), what
        assert "BEGIN" not in read.reason


def test_a_certificate_of_tomorrow_is_not_used_today(signer: Authority) -> None:
    read = parse_certificate(secret(signer.pair("a.com")), now() - DAY)
    assert isinstance(read, InvalidContent)
    assert read.reason.startswith("tls.crt is valid from ")


def test_an_authority_may_hold_old_ones_beside_a_new_one(signer: Authority) -> None:
    old, new = signer.pair(lasting=-DAY).chain, signer.certificate.read_bytes()
    assert not isinstance(parse_authority(SecretData({"ca.crt": old + new}), now()), InvalidContent)
    read = parse_authority(SecretData({"ca.crt": old}), now())
    assert isinstance(read, InvalidContent)
    assert read.reason.startswith("ca.crt has expired at ")
    assert parse_authority(SecretData({"tls.crt": new}), now()) == InvalidContent("it has no entry ca.crt")


# Over time


def look(holder: GatewaySecrets, at: datetime | None = None, **secrets: SecretData) -> GatewaySecretState:
    return holder.refresh(secrets, at or now())[0]


def test_the_last_good_content_stays_and_the_newest_is_named(signer: Authority) -> None:
    holder = GatewaySecrets(TlsSettings(("front",)))
    first = look(holder)
    assert first.content is None
    assert first.problem == "there is no such Secret, or the xDS servers may not read it"
    good = look(holder, front=secret(signer.pair("a.com")))
    assert good.problem is None
    for bad, why in unfit(signer).values():
        held = look(holder, front=bad)
        assert held.content == good.content
        assert held.problem is not None
        assert held.problem.startswith(why)
    assert look(holder).content == good.content
    newer = look(holder, front=secret(signer.pair("a.com")))
    assert newer.problem is None
    assert newer.content != good.content


def test_a_certificate_that_expires_stays_and_is_named_without_a_change(signer: Authority) -> None:
    holder = GatewaySecrets(TlsSettings(("front",)))
    entries = secret(signer.pair("a.com"))
    good = look(holder, front=entries)
    later = look(holder, now() + 2 * DAY, front=entries)
    assert later.content == good.content
    assert later.problem is not None
    assert later.problem.startswith("tls.crt has expired at ")


def test_secrets_are_checked_when_one_changes_and_every_half_minute() -> None:
    metrics = XdsMetrics(CollectorRegistry())
    secrets = GatewayTlsSecrets(TlsSettings(("front",)), "tidegate", metrics)
    start = now()
    assert secrets.needs_check(start)
    secrets.check_secrets(start)
    assert not secrets.needs_check(start + timedelta(seconds=29))
    assert secrets.needs_check(start + timedelta(seconds=30))
    secrets.subscribe(lambda: None)
    metadata = {"name": "front", "namespace": "tidegate", "uid": "1", "resourceVersion": "1"}
    secrets.stores["front"].observe("ADDED", {"metadata": metadata, "data": {}})
    assert secrets.needs_check(start)
    assert not GatewayTlsSecrets(None, "tidegate", metrics).needs_check(start)


def test_what_stands_in_is_marked_so_that_nothing_better_is_replaced_by_it(signer: Authority) -> None:
    holder = GatewaySecrets(TlsSettings(("a", "b"), "clients"))
    assert [one.name for one in render_secrets(holder.refresh({}, now()))] == ["client-authority/clients"]
    held = holder.refresh({"b": secret(signer.pair("b.com"))}, now())
    rendered = {one.name: one.is_placeholder for one in render_secrets(held)}
    assert rendered == {"certificate/a": True, "certificate/b": False, "client-authority/clients": True}


def test_no_text_shows_a_key(signer: Authority) -> None:
    pair = signer.pair("a.com")
    holder = GatewaySecrets(TlsSettings(("front",)))
    held = holder.refresh({"front": secret(pair)}, now())
    texts = f"{held} {[*render_secrets(held)]} {inspection.list_gateway_secrets(held)}"
    body = pair.key.splitlines()[1].decode()
    assert body not in texts
    assert "BEGIN PRIVATE" not in texts


def test_status_says_what_is_wrong_and_what_gateways_have(signer: Authority) -> None:
    holder = GatewaySecrets(TlsSettings(("front", "back")))
    holder.refresh({"front": secret(signer.pair("a.com"))}, now())
    documents = inspection.list_gateway_secrets(holder.refresh({"front": SecretData({})}, now()))
    report = XdsStatusReport.from_answers({"xds-1": {"proxies": [], "gatewaySecrets": documents}})
    text = "\n".join(report.render_lines(wide=False))
    assert "it has no entry tls.crt; the last good one stays" in text
    assert "gateways have none from this server" in text
    assert list(XdsStatusReport.from_answers({"xds-1": {"proxies": []}}).render_lines(wide=False)) == [
        "no proxy is connected"
    ]
