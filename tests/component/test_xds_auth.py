"""Who may call, in a real Envoy: API keys and tokens, each with those that do not open, and nothing of either to be read anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc.aio
import pytest

from builders.fleet import credentials
from builders.model_access import a_model_access
from builders.tokens import Issuer
from fixtures.envoy import Client, Gateway, Upstream, backend_of
from tidegate.api.model_access import ModelAccess
from tidegate.routing.access_rules import plan_access
from tidegate.routing.credentials import CallerCredentials
from tidegate.routing.hosts import HostKey, HostKind, find_host_owners
from tidegate.routing.incremental import RoutingChange
from tidegate.routing.protos import to_redacted_json
from tidegate.xds.resources import TypeUrl

ALICE = "canary-alice-0123456789"
BOB = "canary-bob-0123456789"
STRANGER = "canary-stranger-0123456789"
CTR = (("x-tidegate-access", "ads/ctr"),)
OTHER = (("x-tidegate-access", "ads/other"),)
INFER = "/v2/models/ctr/infer"

Header = tuple[str, str]


async def calls(client: Client, *headers: Header, access: tuple[Header, ...] = CTR) -> tuple[str, int]:
    """What becomes of a gRPC call and of a REST call with these headers: who answered or the status's name, and the status."""
    try:
        answer = await client.infer(metadata=(*access, *headers))
    except grpc.aio.AioRpcError as error:
        answer = error.code().name
    host = [("host", client.authority)] if client.authority else []
    status, _, _ = await client.rest("POST", INFER, headers=[*access, *headers, *host], body=b"{}")
    return answer, status


LET_IN = ("v1", 200)
UNKNOWN = ("UNAUTHENTICATED", 401)
FORBIDDEN = ("PERMISSION_DENIED", 403)
CLOSED = ("UNAVAILABLE", 503)


# API keys


def keyed(name: str = "ctr", *, hosts: Sequence[str] = (), **fields: Any) -> ModelAccess:
    auth = {"apiKeys": {"secret": "callers", **fields}}
    return a_model_access(name, auth=auth, hosts=list(hosts))


def keys(**secrets: dict[str, str]) -> CallerCredentials:
    return credentials(
        {name: {who: key.encode() for who, key in entries.items()} for name, entries in secrets.items()}
    )


def key(value: str) -> Header:
    return ("x-api-key", value)


async def test_a_key_lets_its_holder_in_and_goes_no_further(gateway: Gateway) -> None:
    v1, shadow = await gateway.upstream("v1"), await gateway.upstream("shadow")
    mirrored = keyed().dump()
    mirrored["spec"]["routes"][0]["mirror"] = [{"inference": "shadow", "percent": 100}]
    client = await gateway.start(
        ModelAccess.parse(mirrored),
        backend_of("ctr", v1),
        backend_of("shadow", shadow),
        keys(callers={"alice": ALICE, "bob": f"{BOB}\n"}),
    )
    assert await calls(client, key(ALICE)) == LET_IN
    # The line end that --from-file brings along is not part of a key.
    assert await calls(client, key(BOB)) == LET_IN
    assert await calls(client, key(ALICE), ("x-user", "u1")) == LET_IN
    assert v1.headers["x-user"] == "u1"
    for upstream in (v1, shadow):
        assert "x-api-key" not in {name.lower() for name in upstream.headers}
        assert "canary" not in str(upstream.headers)


NO_KEYS: tuple[tuple[Header, ...], ...] = (
    (),
    (key(""),),
    (key(STRANGER),),
    (key(ALICE[:-1]),),
    (key(f"{ALICE}x"),),
    (key(ALICE.upper()),),
    (key(f"{ALICE},{ALICE}"),),
    (key(STRANGER), key(ALICE)),
    (("authorization", f"Bearer {ALICE}"),),
    (("x-api-key-2", ALICE),),
    (("cookie", f"x-api-key={ALICE}"),),
    (("x-envoy-original-path", f"/?x-api-key={ALICE}"),),
)


@pytest.mark.no_rerun("a refused caller reaches a model")
async def test_nothing_but_a_key_lets_in(gateway: Gateway) -> None:
    v1 = await gateway.upstream("v1")
    client = await gateway.start(keyed(), backend_of("ctr", v1), keys(callers={"alice": ALICE}))
    assert {sent: await calls(client, *sent) for sent in NO_KEYS} == dict.fromkeys(NO_KEYS, UNKNOWN)
    assert v1.inferences == 0
    # The first of several keys counts, and none reaches the model.
    assert await calls(client, key(ALICE), key(STRANGER)) == LET_IN
    assert "canary" not in str(v1.headers)


async def test_a_key_is_asked_for_by_host_as_well(gateway: Gateway) -> None:
    v1 = await gateway.upstream("v1")
    access = keyed(hosts=["ctr.example.com"])
    client = await gateway.start(access, backend_of("ctr", v1), keys(callers={"alice": ALICE, "bob": BOB}))
    to_hosts = [gateway.client(authority=host) for host in ("ctr.ads.tidegate", "CTR.example.com")]

    async def by_hosts(*headers: Header) -> set[tuple[str, int]]:
        return {await calls(to_host, *headers, access=()) for to_host in to_hosts}

    assert [await by_hosts(key(one)) for one in (ALICE, BOB)] == [{LET_IN}, {LET_IN}]
    assert [await by_hosts(*sent) for sent in ((), (key(STRANGER),))] == [{UNKNOWN}, {UNKNOWN}]
    assert await by_hosts(("x-tidegate-target", "access/ads/ctr")) == {UNKNOWN}
    assert "canary" not in str(v1.headers)
    await gateway.control_plane.push(access, backend_of("ctr", v1), keys(callers={"alice": ALICE}))
    assert [await by_hosts(key(one)) for one in (ALICE, BOB)] == [{LET_IN}, {UNKNOWN}]
    await gateway.control_plane.push(access, backend_of("ctr", v1))
    assert await by_hosts(key(ALICE)) == {CLOSED}
    assert await calls(client, key(ALICE)) == CLOSED


async def test_each_access_has_its_own_keys(gateway: Gateway) -> None:
    v1 = await gateway.upstream("v1")
    client = await gateway.start(
        keyed(),
        keyed("other", secret="others", header="authorization"),
        a_model_access("open"),
        backend_of("ctr", v1),
        keys(callers={"alice": ALICE}, others={"bob": BOB}),
    )
    assert await calls(client, key(BOB)) == UNKNOWN
    assert await calls(client, key(ALICE), access=OTHER) == UNKNOWN
    assert await calls(client, ("authorization", f"Bearer {BOB}"), access=OTHER) == LET_IN
    # Whoever names two accesses is checked by the one that answers.
    assert await calls(client, ("x-tidegate-access", "ads/open"), key(STRANGER)) != LET_IN
    assert await calls(client, ("x-tidegate-target", "ads/open"), key(STRANGER)) == UNKNOWN
    assert await calls(client, access=(("x-tidegate-access", "ads/open"),)) == LET_IN


async def test_a_key_that_is_taken_back_opens_no_more(gateway: Gateway) -> None:
    v1 = await gateway.upstream("v1")
    client = await gateway.start(keyed(), backend_of("ctr", v1), keys(callers={"alice": ALICE, "bob": BOB}))
    assert await calls(client, key(BOB)) == LET_IN
    await gateway.control_plane.push(keyed(), backend_of("ctr", v1), keys(callers={"alice": ALICE}))
    assert await calls(client, key(BOB)) == UNKNOWN
    assert await calls(client, key(ALICE)) == LET_IN
    await gateway.control_plane.push(a_model_access(), backend_of("ctr", v1))
    assert await calls(client) == LET_IN


NO_KEY_KNOWN = {
    "namespace not read": CallerCredentials(),
    "no Secret": credentials({}),
    "empty": credentials({"callers": {}}),
    "no key in it": credentials({"callers": {"a": b"short"}}),
}


async def test_without_a_key_to_check_by_nobody_is_let_in_and_others_are_untouched(gateway: Gateway) -> None:
    v1 = await gateway.upstream("v1")
    fleet = keyed(), a_model_access("other"), backend_of("ctr", v1)
    client = await gateway.start(*fleet, keys(callers={"alice": ALICE}))
    for what, known in NO_KEY_KNOWN.items():
        await gateway.control_plane.push(*fleet, known)
        assert [await calls(client, key(ALICE)), await calls(client)] == [CLOSED, CLOSED], what
    assert v1.inferences == 0
    assert await calls(client, access=OTHER) == LET_IN


async def test_who_is_refused_uses_nothing_up_of_the_rate(gateway: Gateway) -> None:
    v1 = await gateway.upstream("v1")
    body = keyed().dump()
    body["spec"]["protection"] = {"rateLimit": {"requests": 2, "per": "1m"}}
    client = await gateway.start(
        ModelAccess.parse(body), backend_of("ctr", v1), keys(callers={"alice": ALICE})
    )
    for _ in range(4):
        assert await calls(client) == UNKNOWN
    assert await calls(client, key(ALICE)) == LET_IN
    assert (await calls(client, key(ALICE)))[1] == 429


async def test_refused_calls_are_counted_by_access_and_why(gateway: Gateway) -> None:
    v1 = await gateway.upstream("v1")
    client = await gateway.start(
        keyed(), a_model_access("other"), backend_of("ctr", v1), keys(callers={"alice": ALICE})
    )
    for sent in ((), (key(STRANGER),), (key(ALICE),)):
        await calls(client, *sent)
    await calls(client, access=OTHER)
    page = await gateway.envoy.get_admin("/stats/prometheus")
    counted = dict(line.rsplit(" ", 1) for line in page.splitlines() if "tidegate_refused{" in line)
    refused = "envoy_tidegate_refused"
    assert counted == {
        f'{refused}{{route="access/ads/ctr/default/{protocol}",reason="{why}",'
        f'envoy_cluster_name="inference/ads/ctr/{protocol}"}}': "1"
        for protocol in ("grpc", "http")
        for why in ("missing_api_key", "unknown_api_key")
    }


# Tokens


ISSUER = Issuer("https://login.example.com")


def tokened(name: str = "ctr", **fields: Any) -> ModelAccess:
    jwt = {"issuer": ISSUER.name, "audiences": ["ads", "shop"], "secret": "issuer", **fields}
    return a_model_access(name, auth={"jwt": jwt})


def issued(*issuers: Issuer, **others: bytes) -> CallerCredentials:
    entries = {"jwks.json": Issuer.key_set(*issuers)} if issuers else others
    return credentials({"issuer": entries})


def bearer(token: str) -> Header:
    return ("authorization", f"Bearer {token}")


async def tokens_checked(gateway: Gateway, *accesses: ModelAccess) -> tuple[Client, Upstream]:
    v1 = await gateway.upstream("v1")
    client = await gateway.start(*(accesses or (tokened(),)), backend_of("ctr", v1), issued(ISSUER))
    return client, v1


async def test_a_token_lets_in_and_goes_no_further(gateway: Gateway) -> None:
    v1 = await gateway.upstream("v1")
    issuers = [Issuer(ISSUER.name, algorithm) for algorithm in ("RS256", "ES256", "EdDSA")]
    client = await gateway.start(tokened(), backend_of("ctr", v1), issued(*issuers))
    for issuer in issuers:
        assert await calls(client, bearer(issuer.token(aud="ads"))) == LET_IN
        assert await calls(client, bearer(issuer.token(aud=["x", "shop"]))) == LET_IN
        assert "authorization" not in {name.lower() for name in v1.headers}


async def test_the_model_gets_the_token_where_that_is_asked_for(gateway: Gateway) -> None:
    client, v1 = await tokens_checked(gateway, tokened(forward=True))
    token = ISSUER.token(aud="ads")
    assert await calls(client, bearer(token)) == LET_IN
    assert v1.headers["Authorization"] == f"Bearer {token}"


def bad_tokens() -> dict[str, tuple[tuple[tuple[str, str], ...], tuple[str, int]]]:
    """Made when they are sent: those that are wrong in one thing alone live for ten minutes."""
    return {
        "none": ((), UNKNOWN),
        "no token": ((bearer("x"),), UNKNOWN),
        "expired": ((bearer(ISSUER.token(aud="ads", exp=1_000_000_000)),), UNKNOWN),
        "never expires": ((bearer(ISSUER.token(aud="ads", exp=None)),), UNKNOWN),
        "not yet": ((bearer(ISSUER.token(aud="ads", nbf=4_000_000_000)),), UNKNOWN),
        "another issuer": ((bearer(ISSUER.token(aud="ads", iss="https://evil.example.com")),), UNKNOWN),
        "another key": ((bearer(Issuer(ISSUER.name).token(aud="ads")),), UNKNOWN),
        "alg none": ((bearer(ISSUER.token(aud="ads", algorithm="none")),), UNKNOWN),
        "public key as HMAC secret": ((bearer(ISSUER.token(aud="ads", algorithm="HS256")),), UNKNOWN),
        "changed claims": ((bearer(ISSUER.forged(ISSUER.token(aud="x"), aud="ads")),), UNKNOWN),
        "two of them": ((bearer(ISSUER.token(aud="ads")), bearer(ISSUER.token(aud="ads"))), UNKNOWN),
        "another header": ((("x-api-key", ISSUER.token(aud="ads")),), UNKNOWN),
        "cookie": ((("cookie", f"access_token={ISSUER.token(aud='ads')}"),), UNKNOWN),
        "for somebody else": ((bearer(ISSUER.token(aud="billing")),), FORBIDDEN),
        "for nobody": ((bearer(ISSUER.token()),), FORBIDDEN),
    }


@pytest.mark.no_rerun("a refused caller reaches a model")
async def test_no_other_token_lets_in(gateway: Gateway) -> None:
    client, v1 = await tokens_checked(gateway)
    bad = bad_tokens()
    seen = {name: await calls(client, *sent) for name, (sent, _) in bad.items()}
    assert seen == {name: expected for name, (_, expected) in bad.items()}
    status, _, _ = await client.rest(
        "POST", f"{INFER}?access_token={ISSUER.token(aud='ads')}", headers=dict(CTR), body=b"{}"
    )
    assert status == 401
    assert v1.inferences == 0


async def test_keys_of_an_issuer_change_without_a_gap(gateway: Gateway) -> None:
    v1, new = await gateway.upstream("v1"), Issuer(ISSUER.name)
    client = await gateway.start(tokened(), backend_of("ctr", v1), issued(ISSUER))
    old_token, new_token = ISSUER.token(aud="ads"), new.token(aud="ads")
    assert [await calls(client, bearer(token)) for token in (old_token, new_token)] == [LET_IN, UNKNOWN]
    await gateway.control_plane.push(tokened(), backend_of("ctr", v1), issued(ISSUER, new))
    assert [await calls(client, bearer(token)) for token in (old_token, new_token)] == [LET_IN, LET_IN]
    await gateway.control_plane.push(tokened(), backend_of("ctr", v1), issued(new))
    assert [await calls(client, bearer(token)) for token in (old_token, new_token)] == [UNKNOWN, LET_IN]


async def test_a_token_is_asked_for_by_host_as_well(gateway: Gateway) -> None:
    new, host = Issuer(ISSUER.name), "ctr.ads.tidegate"
    _, v1 = await tokens_checked(gateway)
    to_host = gateway.client(authority=host)

    async def calls_host(*headers: Header) -> tuple[str, int]:
        return await calls(to_host, *headers, access=())

    old_token, new_token = ISSUER.token(aud="ads"), new.token(aud="ads")
    assert await calls_host() == UNKNOWN
    assert [await calls_host(bearer(token)) for token in (old_token, new_token)] == [LET_IN, UNKNOWN]
    assert await calls_host(bearer(ISSUER.token(aud="x"))) == FORBIDDEN
    await gateway.control_plane.push(tokened(), backend_of("ctr", v1), issued(new))
    assert [await calls_host(bearer(token)) for token in (old_token, new_token)] == [UNKNOWN, LET_IN]


NO_KEY_SETS = (b"", b"[]", b"{", b'{"keys": []}', b'{"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}')


async def test_without_a_key_of_the_issuer_nobody_is_let_in(gateway: Gateway) -> None:
    v1 = await gateway.upstream("v1")
    fleet = tokened(), a_model_access("other"), backend_of("ctr", v1)
    client = await gateway.start(*fleet, issued(ISSUER))
    for text in NO_KEY_SETS:
        await gateway.control_plane.push(*fleet, issued(**{"jwks.json": text}))
        assert await calls(client, bearer(ISSUER.token(aud="ads"))) == CLOSED, text
    assert await calls(client, access=OTHER) == LET_IN


# What must be read nowhere


@pytest.mark.no_rerun("a secret is seen")
async def test_credentials_are_in_no_dump_report_or_log(
    gateway: Gateway, capfd: pytest.CaptureFixture[str]
) -> None:
    v1 = await gateway.upstream("v1")
    token = ISSUER.token(aud="ads")
    client = await gateway.start(
        keyed("other"),
        tokened(),
        backend_of("ctr", v1),
        credentials(
            {
                "callers": {"alice": ALICE.encode(), "short": b"canary-2"},
                "issuer": {"jwks.json": Issuer.key_set(ISSUER)},
            }
        ),
    )
    for sent in (key(ALICE), key(STRANGER), bearer(token), bearer(f"{token}x")):
        await calls(client, sent)
        await calls(client, sent, access=OTHER)
    plane = gateway.control_plane
    snapshot = plane.cache.snapshot
    assert snapshot is not None
    places = {
        "Envoy's configuration": await gateway.envoy.get_admin("/config_dump?include_eds"),
        "Envoy's statistics": await gateway.envoy.get_admin("/stats"),
        "Envoy's logs": (gateway.envoy.folder / "envoy.log").read_text(),
        "the report": plane.ledger.build_report().model_dump_json(),
        "the logs": "".join(capfd.readouterr()),
        "the objects' texts": f"{snapshot.refusals} {plane.routing._secrets}",
        "our own dump": "".join(
            str(to_redacted_json(resource.body))
            for kind in TypeUrl
            for resource in snapshot.resources[kind].values()
        ),
    }
    assert "ads/other" in places["Envoy's configuration"]
    assert "ads/other" in places["our own dump"]
    assert "short" in places["the report"]
    for place, text in places.items():
        for secret in ("canary-", token, token.rsplit(".", 1)[1]):
            assert secret not in text, place


# Closed by construction


@pytest.mark.no_rerun("a refused caller reaches a model")
async def test_a_plan_made_without_the_credentials_lets_nobody_in(gateway: Gateway) -> None:
    """Such a plan is the controllers', for the status; it never gets to a gateway, and would open nothing there."""
    v1 = await gateway.upstream("v1")
    backend = backend_of("ctr", v1)
    client = await gateway.start(keyed(), backend, keys(callers={"alice": ALICE}))
    to_host = gateway.client(authority="ctr.ads.tidegate")
    assert await calls(client, key(ALICE)) == LET_IN

    plane = gateway.control_plane
    access = keyed()
    blind = plan_access(access, {backend.key: backend}, find_host_owners([access]), None).planned_host
    snapshot = plane.builder.apply_change(RoutingChange({HostKey(HostKind.ACCESS, access.key): blind}, {}))
    plane.cache.set(snapshot)
    await plane.accepted(snapshot)
    assert await calls(client, key(ALICE)) == FORBIDDEN
    assert await calls(to_host, key(ALICE), access=()) == FORBIDDEN
