"""The TLS port of a real Envoy: certificates that come by SDS, are replaced under load, and stay when their Secret breaks."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import aiohttp
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa

from builders.certificates import Authority, Pair
from builders.model_access import a_model_access, a_route
from builders.waiting import eventually
from fixtures.envoy import Client, ClientTls, ControlPlane, Gateway, Load, Upstream, backend_of
from tidegate.api.meta import ObjectKey
from tidegate.routing import certificates
from tidegate.routing.credentials import SecretData
from tidegate.routing.envoy.tls import TlsSettings
from tidegate.routing.hosts import HostKey, HostKind
from tidegate.xds.inspection import SyncState
from tidegate.xds.resources import Snapshot, TypeUrl

NAME = "ctr.example.com"
CTR = (("x-tidegate-access", "ads/ctr"),)
INFER = "/v2/models/ctr/infer"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.make(tmp_path / "authority")


def secret(pair: Pair, **entries: bytes) -> SecretData:
    return SecretData({"tls.crt": pair.chain, "tls.key": pair.key, **entries})


def tls(*names: str, client_authority: str = "") -> TlsSettings:
    return TlsSettings(names or ("front",), client_authority, port=0)


async def prepared(gateway: Gateway, settings: TlsSettings, **secrets: SecretData) -> tuple[Client, Upstream]:
    """A gateway with a TLS port, and these Secrets for it; the client of its other port."""
    gateway.control_plane = ControlPlane(gateway_tls=settings)
    gateway.control_plane.hold(**secrets)
    v1 = await gateway.upstream("v1")
    access = a_model_access(routes=[a_route(timeout="30s")])
    return await gateway.start(access, backend_of("ctr", v1)), v1


async def rotate(gateway: Gateway, **secrets: SecretData) -> Snapshot:
    """Other Secrets, and nothing else; returns when the proxies run them."""
    plane = gateway.control_plane
    plane.hold(**secrets)
    snapshot = plane.builder.apply_change(plane.routing.take_change())
    plane.cache.set(snapshot)
    await plane.accepted(snapshot)
    return snapshot


async def shown(address: str, server_name: str = NAME) -> int | None:
    """The serial number of the certificate that a new connection is shown; None without a handshake."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    host, port = address.split(":")
    try:
        _, writer = await asyncio.open_connection(host, int(port), ssl=context, server_hostname=server_name)
    except (ssl.SSLError, ConnectionError):
        return None
    der: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return x509.load_der_x509_certificate(der).serial_number


def serial(pair: Pair) -> int:
    return x509.load_pem_x509_certificate(pair.chain).serial_number


def trusting(authority: Authority, name: str = NAME) -> ClientTls:
    return ClientTls(authority.certificate.read_bytes(), name)


async def rest(client: Client) -> int:
    status, _, _ = await client.rest("POST", INFER, headers=CTR, body=b"{}")
    return status


async def test_both_ports_answer_alike(gateway: Gateway, authority: Authority) -> None:
    plain, _ = await prepared(gateway, tls(), front=secret(authority.pair(NAME)))
    client = await gateway.tls_client(trusting(authority))
    for one in (plain, client):
        assert await one.infer(metadata=CTR) == "v1"
        assert await rest(one) == 200
        status, text, _ = await one.rest("POST", INFER, headers={"x-tidegate-access": "ads/none"}, body=b"{}")
        assert (status, "ads" in text or "ModelAccess" in text) == (404, True)
    by_host = await gateway.tls_client(trusting(authority), authority="ctr.ads.tidegate")
    assert await by_host.infer() == "v1"


async def test_the_tls_port_may_come_later(gateway: Gateway, authority: Authority) -> None:
    """As when the chart's value is set: the gateways are told by new xDS servers, and go on."""
    v1 = await gateway.upstream("v1")
    plain = await gateway.start(a_model_access(), backend_of("ctr", v1))
    plane = gateway.control_plane
    later = ControlPlane(gateway_tls=tls())
    plane.builder, plane.secrets, plane.routing = later.builder, later.secrets, later.routing
    plane.hold(front=secret(authority.pair(NAME)))
    async with Load(plain, CTR).running() as load:
        await load.answered(20)
        await plane.push(a_model_access(), backend_of("ctr", v1))
        client = await gateway.tls_client(trusting(authority))
        assert await client.infer(metadata=CTR) == "v1"
        assert await rest(client) == 200
        await load.answered(20)
    assert not load.errors


async def test_a_rotation_under_load_drops_no_connection(gateway: Gateway, authority: Authority) -> None:
    first, second = authority.pair(NAME), authority.pair(NAME)
    await prepared(gateway, tls(), front=secret(first))
    client = await gateway.tls_client(trusting(authority))
    envoy = gateway.envoy
    connector = aiohttp.TCPConnector(limit=2, ssl=trusting(authority).context())
    done, statuses = asyncio.Event(), list[int]()

    async def keep_asking(session: aiohttp.ClientSession) -> None:
        while not done.is_set():
            url = f"https://{client.address}{INFER}"
            async with session.post(url, headers=CTR, data=b"{}", server_hostname=NAME) as answer:
                await answer.read()
                statuses.append(answer.status)

    async def counters() -> Mapping[str, int]:
        names = ("downstream_cx_total", "downstream_cx_destroy", "downstream_cx_active")
        return {name: await envoy.stat(f"http.gateway.{name}") for name in names}

    async with (
        aiohttp.ClientSession(connector=connector) as session,
        Load(client, CTR).running() as load,
        asyncio.TaskGroup() as tasks,
    ):
        for _ in range(2):
            tasks.create_task(keep_asking(session))

        async def both(count: int) -> None:
            goal = len(statuses) + count
            await load.answered(count)

            async def enough() -> bool:
                return len(statuses) >= goal

            await eventually(enough, f"{count} more answers over REST")

        await both(50)
        before = await counters()
        assert before["downstream_cx_active"] == 3  # one of gRPC, two of REST
        for pair in (second, first, second):
            await rotate(gateway, front=secret(pair))
            assert await shown(client.address) == serial(pair)
            await both(50)
        after = await counters()
        done.set()
    assert not load.errors
    assert set(statuses) == {200}
    # The three handshakes that looked at the certificate, and no other connection came or went.
    assert {name: after[name] - before[name] for name in before} == {
        "downstream_cx_total": 3,
        "downstream_cx_destroy": 3,
        "downstream_cx_active": 0,
    }


async def test_the_name_that_a_client_asks_for_chooses_the_certificate(
    gateway: Gateway, authority: Authority
) -> None:
    one, other, wild = authority.pair("one.com"), authority.pair("other.com"), authority.pair("*.wild.com")
    await prepared(gateway, tls("a", "b", "c"), a=secret(one), b=secret(other), c=secret(wild))
    address = await gateway.envoy.tls_listening()
    seen = [await shown(address, name) for name in ("one.com", "other.com", "x.wild.com", "unknown.com")]
    assert seen == [serial(one), serial(other), serial(wild), serial(one)]


async def test_one_without_a_certificate_keeps_the_others_up_and_comes_later(
    gateway: Gateway, authority: Authority
) -> None:
    one, other = authority.pair("one.com"), authority.pair("other.com")
    await prepared(gateway, tls("a", "b"), b=secret(other))
    address = await gateway.envoy.tls_listening()
    assert [await shown(address, name) for name in ("one.com", "other.com")] == [serial(other)] * 2
    other = authority.pair("other.com")
    await rotate(gateway, b=secret(other))
    assert [await shown(address, name) for name in ("one.com", "other.com")] == [serial(other)] * 2
    await rotate(gateway, a=secret(one), b=secret(other))
    assert [await shown(address, name) for name in ("one.com", "other.com")] == [serial(one), serial(other)]


def broken(authority: Authority) -> dict[str, SecretData | None]:
    pair, other = authority.pair(NAME), authority.pair(NAME)
    return {
        "missing": None,
        "empty": SecretData({}),
        "no PEM": SecretData({"tls.crt": b"x", "tls.key": pair.key}),
        "another's key": SecretData({"tls.crt": pair.chain, "tls.key": other.key}),
        "expired": secret(authority.pair(NAME, lasting=timedelta(hours=-1))),
    }


async def test_a_broken_secret_leaves_the_last_good_one(gateway: Gateway, authority: Authority) -> None:
    good = authority.pair(NAME)
    await prepared(gateway, tls(), front=secret(good))
    client = await gateway.tls_client(trusting(authority))
    async with Load(client, CTR).running() as load:
        for what, bad in broken(authority).items():
            plane = gateway.control_plane
            (held,) = plane.hold(**({} if bad is None else {"front": bad}))
            assert held.problem, what
            assert held.expires_at is not None
            await rotate(gateway, **({} if bad is None else {"front": bad}))
            assert await shown(client.address) == serial(good), what
        await load.answered(20)
    assert not load.errors


async def test_a_broken_secret_leaves_it_even_to_a_server_that_never_saw_it_whole(
    gateway: Gateway, authority: Authority
) -> None:
    names = "front", "other"
    pairs = {name: authority.pair(f"{name}.com") for name in names}
    _, v1 = await prepared(gateway, tls(*names), **{name: secret(pair) for name, pair in pairs.items()})
    client = await gateway.tls_client(trusting(authority, "front.com"))
    async with Load(client, CTR).running() as load:
        await load.answered(20)
        before = gateway.control_plane
        await gateway.lose_control_plane()
        gateway.control_plane = after = ControlPlane(gateway_tls=tls(*names))
        after.hold(**{name: secret(pair) for name, pair in pairs.items() if name != "front"})
        snapshot = after.set(a_model_access(), backend_of("ctr", v1))
        await after.start(before.port)
        await after.accepted(snapshot)
        assert [await shown(client.address, f"{name}.com") for name in names] == [
            serial(pairs[name]) for name in names
        ]
        # What comes then counts.
        newer = authority.pair("front.com")
        others = {name: secret(pair) for name, pair in pairs.items() if name != "front"}
        await rotate(gateway, front=secret(newer), **others)
        assert await shown(client.address, "front.com") == serial(newer)
        await load.answered(20)
    # Requests went on while the xDS server was away.
    assert not load.errors


async def test_without_any_certificate_the_other_port_serves(gateway: Gateway, authority: Authority) -> None:
    plain, _ = await prepared(gateway, tls())

    async def ready() -> bool:
        return (await gateway.envoy.get_admin("/ready")).strip() == "LIVE"

    # It waits for a certificate, and not for long.
    await eventually(ready, "the gateway is ready")
    assert await plain.infer(metadata=CTR) == "v1"
    address = await gateway.envoy.tls_listening()
    assert await shown(address) is None
    pair = authority.pair(NAME)
    await rotate(gateway, front=secret(pair))
    assert await shown(address) == serial(pair)


async def test_a_certificate_that_envoy_refuses_keeps_nobodys_routes_waiting(
    gateway: Gateway, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that passed our own checks and not Envoy's; here by leaving ours out."""
    good, weak = authority.pair(NAME), authority.pair(NAME, key=rsa.generate_private_key(65537, 1024))
    _, v1 = await prepared(gateway, tls(), front=secret(good))
    client = await gateway.tls_client(trusting(authority))
    (held,) = gateway.control_plane.hold(front=secret(weak))
    assert held.problem == "tls.key is an RSA key of 1024 bits: at least 2048 are needed"
    monkeypatch.setattr(certificates, "_MIN_RSA_BITS", 1024)
    gateway.control_plane.hold(front=secret(weak, more=b""))
    plane = gateway.control_plane
    plane.set(a_model_access(), a_model_access("other"), backend_of("ctr", v1))
    other = HostKey(HostKind.ACCESS, ObjectKey("ads", "other"))

    async def runs_it() -> bool:
        return (
            plane.ledger.is_programmed(other, 1) and plane.ledger.build_report().proxies[0].nack is not None
        )

    await eventually(runs_it, "the gateway runs the other access, and refuses the certificate")
    (proxy,) = plane.ledger.build_report().proxies
    assert "2048" in (proxy.nack or "")
    (state,) = plane.server.proxy_states()
    assert state.types[TypeUrl.SECRET] is SyncState.NACKED
    assert await client.infer(metadata=(("x-tidegate-access", "ads/other"),)) == "v1"
    assert await shown(client.address) == serial(good)
    await rotate(gateway, front=secret(good))
    (proxy,) = plane.ledger.build_report().proxies
    assert proxy.nack is None


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1:DeprecationWarning")
async def test_old_versions_of_tls_are_not_spoken(gateway: Gateway, authority: Authority) -> None:
    await prepared(gateway, tls(), front=secret(authority.pair(NAME)))
    address = await gateway.envoy.tls_listening()
    spoken = {
        version: await handshakes(address, version)
        for version in (ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)
    }
    assert list(spoken.values()) == [None, "h2", "h2"]


async def handshakes(address: str, version: ssl.TLSVersion) -> str | None:
    """The protocol that is agreed on over this version of TLS; None without a handshake."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = version
    context.set_alpn_protocols(["h2", "http/1.1"])
    host, port = address.split(":")
    try:
        _, writer = await asyncio.open_connection(host, int(port), ssl=context, server_hostname=NAME)
    except (ssl.SSLError, ConnectionError):
        return None
    agreed: str = writer.get_extra_info("ssl_object").selected_alpn_protocol()
    writer.close()
    return agreed
