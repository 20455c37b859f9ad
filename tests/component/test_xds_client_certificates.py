"""Who shows which client certificate, in a real Envoy: `spec.auth.mtls`, beside accesses that ask for none."""

from __future__ import annotations

import base64
import ssl
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aiohttp
import grpc.aio
import pytest

from builders.certificates import Authority, Pair
from builders.fleet import credentials
from builders.model_access import a_model_access
from builders.waiting import eventually
from fixtures.envoy import Client, ClientTls, ControlPlane, Gateway, Load, Upstream, backend_of
from tidegate.api.model_access import ModelAccess
from tidegate.api.reasons import Reason
from tidegate.routing.credentials import CallerCredentials, ClientAuthority, SecretData
from tidegate.routing.envoy.tls import TlsSettings
from tidegate.routing.gateway_secrets import evaluate_client_authority
from tidegate.routing.protos import to_redacted_json
from tidegate.xds import inspection
from tidegate.xds.resources import TypeUrl

NAME = "ctr.example.com"
CTR = (("x-tidegate-access", "ads/ctr"),)
OPEN = (("x-tidegate-access", "ads/open"),)
INFER = "/v2/models/ctr/infer"

RANKER = "spiffe://example.com/ads/ranker"
HOST = "ranker.ads.example.com"

LET_IN = ("v1", 200)
UNKNOWN = ("UNAUTHENTICATED", 401)
FORBIDDEN = ("PERMISSION_DENIED", 403)
CLOSED = ("UNAVAILABLE", 503)
NO_HANDSHAKE = ("UNAVAILABLE", 0)

Header = tuple[str, str]


class Authorities:
    """Who signs the gateway's certificate, who signs those of clients, and who signs for nobody here."""

    def __init__(self, folder: Path) -> None:
        self.server = Authority.make(folder / "server", "server")
        self.clients = Authority.make(folder / "clients", "clients")
        self.stranger = Authority.make(folder / "stranger", "stranger")

    def front(self) -> SecretData:
        pair = self.server.pair(NAME)
        return SecretData({"tls.crt": pair.chain, "tls.key": pair.key})

    def bundle(self, *authorities: Authority) -> SecretData:
        found = authorities or (self.clients,)
        return SecretData({"ca.crt": b"".join(one.certificate.read_bytes() for one in found)})

    def shows(self, pair: Pair | None) -> ClientTls:
        trusted = self.server.certificate.read_bytes()
        return ClientTls(trusted, NAME, *((pair.key, pair.chain) if pair else ()))


@pytest.fixture
def authorities(tmp_path: Path) -> Authorities:
    return Authorities(tmp_path / "authorities")


def known_to(*identities: str, name: str = "ctr", hosts: Sequence[str] = ()) -> ModelAccess:
    return a_model_access(
        name, hosts=list(hosts), auth={"mtls": {"identities": list(identities or (RANKER, HOST))}}
    )


def checked(authority: ClientAuthority = ClientAuthority.USABLE) -> CallerCredentials:
    return credentials({}, client_authority=authority)


async def prepared(
    gateway: Gateway, authorities: Authorities, *parts: ModelAccess | CallerCredentials, **secrets: SecretData
) -> tuple[Client, Upstream]:
    """A gateway that asks for client certificates, with `ctr`, which needs one, and `open`, which does not."""
    gateway.control_plane = plane = ControlPlane(gateway_tls=TlsSettings(("front",), "clients", port=0))
    plane.hold(**(secrets or {"front": authorities.front(), "clients": authorities.bundle()}))
    v1 = await gateway.upstream("v1")
    fleet = parts or (known_to(), checked())
    return await gateway.start(*fleet, a_model_access("open"), backend_of("ctr", v1)), v1


async def calls(client: Client, *headers: Header, access: tuple[Header, ...] = CTR) -> tuple[str, int]:
    """What becomes of a gRPC call and of a REST call: who answered or the status's name, and the status, 0 without a connection."""
    try:
        answer = await client.infer(metadata=(*access, *headers))
    except grpc.aio.AioRpcError as error:
        answer = error.code().name
    try:
        status, _, _ = await client.rest("POST", INFER, headers=[*access, *headers], body=b"{}")
    except (aiohttp.ClientError, ssl.SSLError):
        status = 0
    return answer, status


async def test_an_identity_lets_in_and_goes_no_further(gateway: Gateway, authorities: Authorities) -> None:
    _, v1 = await prepared(gateway, authorities)
    of_uri = authorities.clients.pair(uris=("urn:other", RANKER))
    of_host = authorities.clients.pair(HOST, uris=("urn:other",))
    for pair in (of_uri, of_host):
        client = await gateway.tls_client(authorities.shows(pair))
        claimed = ("x-forwarded-client-cert", f"URI={RANKER}"), ("x-user", "u1")
        assert await calls(client, *claimed) == LET_IN
        assert v1.headers["x-user"] == "u1"
        assert "x-forwarded-client-cert" not in {name.lower() for name in v1.headers}
        assert await calls(client, access=OPEN) == LET_IN


async def test_without_a_certificate_only_what_asks_for_none_answers(
    gateway: Gateway, authorities: Authorities
) -> None:
    plain, v1 = await prepared(gateway, authorities)
    pair = authorities.clients.pair(uris=(RANKER,))
    for client in (plain, await gateway.tls_client(authorities.shows(None))):
        assert await calls(client) == UNKNOWN
        for claim in (
            ("x-forwarded-client-cert", f"URI={RANKER}"),
            ("x-client-cert", pair.chain.decode().replace("\n", "")),
            ("x-tidegate-target", "access/ads/open"),
        ):
            assert await calls(client, claim) == UNKNOWN
        assert v1.inferences == 0
        assert await calls(client, access=OPEN) == LET_IN
        v1.calls.clear()
    _, text, headers = await plain.rest("POST", INFER, headers=CTR, body=b"{}")
    assert "client certificate" in text
    assert "retry-after" not in {name.lower() for name in headers}


NOT_THEM = {
    "another URI": {"uris": ("spiffe://example.com/ads/other",)},
    "a longer one": {"uris": (f"{RANKER}/x",)},
    "a shorter one": {"uris": (RANKER[:-1],)},
    "other letters": {"uris": (RANKER.upper(),)},
    "a URI in DNS": {"names": (f"URI={HOST}",)},
    "another host": {"names": ("other.ads.example.com",)},
    "a dot that is another letter": {"names": ("rankerxads.example.com",)},
    "a wildcard": {"names": ("*.ads.example.com",)},
    "a host as URI": {"uris": (f"spiffe://{HOST}",)},
    "nothing": {},
}


@pytest.mark.no_rerun("a refused caller reaches a model")
async def test_nobody_else_is_let_in(gateway: Gateway, authorities: Authorities) -> None:
    _, v1 = await prepared(gateway, authorities)
    seen = {}
    for what, name in NOT_THEM.items():
        pair = authorities.clients.pair(*name.get("names", ()), uris=name.get("uris", ()))
        client = await gateway.tls_client(authorities.shows(pair))
        seen[what] = await calls(client)
        assert await calls(client, access=OPEN) == LET_IN
        v1.calls.clear()
    assert seen == dict.fromkeys(NOT_THEM, FORBIDDEN)


async def test_the_common_name_is_no_identity(gateway: Gateway, authorities: Authorities) -> None:
    # Every certificate of the builder has the common name `pair`.
    await prepared(gateway, authorities, known_to("pair"), checked())
    client = await gateway.tls_client(authorities.shows(authorities.clients.pair("other.com")))
    assert await calls(client) == FORBIDDEN


async def test_who_is_signed_by_somebody_else_does_not_even_connect(
    gateway: Gateway, authorities: Authorities
) -> None:
    _, v1 = await prepared(gateway, authorities)
    for pair in (
        authorities.stranger.pair(uris=(RANKER,)),
        authorities.clients.pair(uris=(RANKER,), lasting=timedelta(days=-1)),
    ):
        client = await gateway.tls_client(authorities.shows(pair))
        assert await calls(client) == NO_HANDSHAKE
        assert await calls(client, access=OPEN) == NO_HANDSHAKE
    assert v1.inferences == 0
    page = await gateway.envoy.get_admin("/stats/prometheus")
    (line,) = [line for line in page.splitlines() if line.startswith("envoy_listener_ssl_fail_verify_error{")]
    assert float(line.rsplit(" ", 1)[1]) >= 4


async def test_a_certificate_is_asked_for_by_host_as_well(gateway: Gateway, authorities: Authorities) -> None:
    await prepared(gateway, authorities, known_to(hosts=[NAME]), checked())

    async def called(pair: Pair | None) -> str:
        client = await gateway.tls_client(authorities.shows(pair), authority=NAME)
        try:
            return await client.infer()
        except grpc.aio.AioRpcError as error:
            return error.code().name

    assert await called(authorities.clients.pair(uris=(RANKER,))) == "v1"
    assert await called(authorities.clients.pair(uris=("spiffe://x/y",))) == "PERMISSION_DENIED"
    assert await called(None) == "UNAUTHENTICATED"


async def test_an_identity_that_is_taken_back_opens_no_more_on_open_connections(
    gateway: Gateway, authorities: Authorities
) -> None:
    _, v1 = await prepared(gateway, authorities)
    client = await gateway.tls_client(authorities.shows(authorities.clients.pair(uris=(RANKER,))))
    assert await calls(client) == LET_IN
    plane = gateway.control_plane
    await plane.push(known_to(HOST), a_model_access("open"), backend_of("ctr", v1), checked())
    assert await calls(client) == FORBIDDEN
    await plane.push(a_model_access(), a_model_access("open"), backend_of("ctr", v1), checked())
    assert await calls(client) == LET_IN


async def test_another_authority_counts_for_new_connections_and_drops_none(
    gateway: Gateway, authorities: Authorities
) -> None:
    await prepared(gateway, authorities)
    old = authorities.shows(authorities.clients.pair(uris=(RANKER,)))
    new = authorities.shows(authorities.stranger.pair(uris=(RANKER,)))
    client, later = await gateway.tls_client(old), await gateway.tls_client(new)
    assert await calls(client) == LET_IN
    plane, front = gateway.control_plane, authorities.front()

    async def trust(*trusted: Authority) -> None:
        plane.hold(front=front, clients=authorities.bundle(*trusted))
        snapshot = plane.builder.apply_change(plane.routing.take_change())
        plane.cache.set(snapshot)
        await plane.accepted(snapshot)

    async with Load(client, CTR).running() as load:
        await load.answered(20)
        await trust(authorities.clients, authorities.stranger)
        assert await calls(later) == LET_IN
        await trust(authorities.stranger)
        assert await calls(await gateway.tls_client(old)) == NO_HANDSHAKE
        await load.answered(20)
    assert not load.errors


@pytest.mark.parametrize("authority", [ClientAuthority.ABSENT, ClientAuthority.UNUSABLE])
async def test_without_an_authority_nobody_is_let_in_and_others_are_untouched(
    gateway: Gateway, authorities: Authorities, authority: ClientAuthority
) -> None:
    plain, v1 = await prepared(
        gateway, authorities, known_to(), checked(authority), front=authorities.front()
    )
    client = await gateway.tls_client(authorities.shows(authorities.clients.pair(uris=(RANKER,))))
    for one in (plain, client):
        assert await calls(one) == CLOSED
        assert await calls(one, access=OPEN) == LET_IN
        assert v1.inferences == 2
        v1.calls.clear()
    (refusal,) = gateway.control_plane.ledger.build_report().refusals
    assert (refusal.reason, refusal.part) == (Reason.CLIENT_AUTHORITY_MISSING, "spec.auth.mtls")


async def test_an_authority_that_was_never_good_knows_nobody(
    gateway: Gateway, authorities: Authorities
) -> None:
    """Whatever the plan says: an Envoy without an authority takes no certificate for one that it verified."""
    held = {"front": authorities.front(), "clients": SecretData({})}
    await prepared(gateway, authorities, known_to(), checked(), **held)
    client = await gateway.tls_client(authorities.shows(authorities.clients.pair(uris=(RANKER,))))
    assert await calls(client) == UNKNOWN
    plane = gateway.control_plane
    assert (
        evaluate_client_authority(plane.secrets.refresh(held, datetime.now(UTC))) is ClientAuthority.UNUSABLE
    )
    assert (
        evaluate_client_authority(plane.hold(**held | {"clients": authorities.bundle()}))
        is ClientAuthority.USABLE
    )


async def test_refused_calls_are_counted_by_access_and_why(
    gateway: Gateway, authorities: Authorities
) -> None:
    plain, _ = await prepared(gateway, authorities)
    other = await gateway.tls_client(authorities.shows(authorities.clients.pair(uris=("spiffe://x/y",))))
    known = await gateway.tls_client(authorities.shows(authorities.clients.pair(uris=(RANKER,))))
    for client in (plain, plain, other, known):
        await calls(client)
    page = await gateway.envoy.get_admin("/stats/prometheus")
    counted = dict(line.rsplit(" ", 1) for line in page.splitlines() if "tidegate_refused{" in line)
    assert counted == {
        f'envoy_tidegate_refused{{route="access/ads/ctr/default/{protocol}",'
        f'reason="rbac_access_denied_matched_policy[{why}]",'
        f'envoy_cluster_name="inference/ads/ctr/{protocol}"}}': count
        for protocol in ("grpc", "http")
        for why, count in (("no_client_certificate", "2"), ("another_client", "1"))
    }


@pytest.mark.no_rerun("a secret is seen")
async def test_keys_and_certificates_are_in_no_dump_report_or_log(
    gateway: Gateway, authorities: Authorities, capfd: pytest.CaptureFixture[str]
) -> None:
    front = authorities.front()
    await prepared(gateway, authorities, known_to(), checked(), front=front, clients=authorities.bundle())
    plane = gateway.control_plane
    before = plane.cache.snapshot
    client = await gateway.tls_client(authorities.shows(authorities.clients.pair(uris=(RANKER,))))
    await calls(client)
    broken = SecretData({"tls.crt": front.entries["tls.crt"], "tls.key": front.entries["tls.key"][:-40]})
    renewed = authorities.front()
    for one in (broken, renewed):
        held = plane.hold(front=one, clients=authorities.bundle())
        plane.cache.set(plane.builder.apply_change(plane.routing.take_change()))
    after = plane.cache.snapshot
    assert before is not None
    assert after is not None
    await plane.accepted(after)
    names = [name for kind in TypeUrl for name in after.resources[kind]]

    async def envoy_has_it() -> str | None:
        dump = await gateway.envoy.get_admin("/config_dump?include_eds")
        return dump if "certificate/front" in dump else None

    places = {
        "Envoy's configuration": await eventually(envoy_has_it, "Envoy shows its secrets"),
        "Envoy's statistics": await gateway.envoy.get_admin("/stats"),
        "Envoy's statistics for Prometheus": await gateway.envoy.get_admin("/stats/prometheus"),
        "Envoy's logs": (gateway.envoy.folder / "envoy.log").read_text(),
        "the report": plane.ledger.build_report().model_dump_json(),
        "the logs": "".join(capfd.readouterr()),
        "the status of Secrets": str(inspection.list_gateway_secrets(held)),
        "our own dump": str(
            [inspection.dump_versions(after), *(inspection.dump_contents(after, name) for name in names)]
        ),
        "our own diff": str(
            [
                inspection.diff_versions(before, after),
                *(inspection.diff_contents(before, after, name) for name in names),
            ]
        ),
        "Envoy's words in ours": str(
            [to_redacted_json(one.body) for one in after.resources[TypeUrl.SECRET].values()]
        ),
        "the objects' texts": f"{after.resources[TypeUrl.SECRET]} {[*after.resources[TypeUrl.SECRET].values()]} {held}",
    }
    for place in ("Envoy's configuration", "our own dump", "our own diff"):
        assert "certificate/front" in places[place], place
    for secret in (front, renewed):
        lines = secret.entries["tls.key"].splitlines()[1:-1]
        for place, text in places.items():
            for line in lines:
                assert line.decode() not in text, place
                # Envoy and protobuf write bytes in base64.
                assert _encoded(secret.entries["tls.key"])[8:60] not in text, place


def _encoded(value: bytes) -> str:
    return base64.b64encode(value).decode()
