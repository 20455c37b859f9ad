"""Keys of token issuers from an address: a real HTTPS server that rotates, lies, hangs and goes away, and what a real Envoy makes of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import grpc.aio
import pytest
import pytest_asyncio
from aiohttp import web
from prometheus_client import CollectorRegistry

from builders.certificates import Authority
from builders.https_server import https_server
from builders.model_access import a_model_access
from builders.tokens import Issuer
from builders.waiting import ends_in_time, eventually
from fixtures.envoy import Client, Gateway, backend_of
from tidegate.api.model_access import ModelAccess
from tidegate.api.reasons import Reason
from tidegate.routing.credentials import (
    MAX_JWKS_BYTES,
    CallerCredentials,
    InvalidContent,
    KeyFetchFailed,
    KeyFetchResult,
    KeyFetchSkipped,
)
from tidegate.routing.guards import plan_guard
from tidegate.xds.issuer_keys import IssuerKeyFetcher, IssuerMetrics, IssuerSettings
from tidegate_localcluster.ports import find_unused_port

NAME = "https://login.example.com"
CTR = ("x-tidegate-access", "ads/ctr")
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Login:
    """An issuer's web server on loopback, whose answer a test may change."""

    folder: Path
    issuer: Issuer = field(default_factory=lambda: Issuer(NAME))
    port: int = field(default_factory=lambda: find_unused_port("127.0.0.1"))
    asked: int = 0
    answer: Answer | None = None
    stack: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)

    def __post_init__(self) -> None:
        self.authority = Authority.make(self.folder)
        self.keys = Issuer.key_set(self.issuer)

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def address(self) -> str:
        return f"https://{self.host}/jwks.json"

    async def start(self, certificate: Path | None = None) -> None:
        """Listens; a second time at the same port."""
        application = web.Application()
        application.router.add_get("/jwks.json", self._answer)
        found = certificate or self.authority.issue("issuer")
        self.port = await self.stack.enter_async_context(https_server(application, found, self.port))

    async def stop(self) -> None:
        await self.stack.aclose()

    def settings(self, **others: object) -> IssuerSettings:
        quick = {"interval_s": 0.1, "timeout_s": 5.0, "first_retry_s": 0.05}
        return IssuerSettings(
            **{"hosts": [self.host], "authorities": self.authority.certificate, **quick, **others}
        )  # type: ignore[arg-type]

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.asked += 1
        if self.answer is not None:
            return await self.answer(request)
        return web.Response(body=self.keys, content_type="application/json")


@dataclass
class Asking:
    """Issuers that run, and what they count."""

    issuers: IssuerKeyFetcher
    registry: CollectorRegistry
    address: str

    @property
    def fetched(self) -> KeyFetchResult | None:
        return self.issuers.results.get(self.address)

    def counted(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"tidegate_xds_issuer_{name}", labels) or 0.0

    async def until(self, what: str, holds: Callable[[], bool]) -> None:
        await eventually(holds, what=what)


@pytest_asyncio.fixture
async def login(tmp_path: Path) -> AsyncIterator[Login]:
    server = Login(tmp_path / "login")
    await server.start()
    yield server
    await server.stop()


@contextlib.asynccontextmanager
async def asking(login: Login, **settings: object) -> AsyncIterator[Asking]:
    """A process that asks `login` from its start on, as often as a test wants."""
    registry = CollectorRegistry()
    issuers = IssuerKeyFetcher(login.settings(**settings), IssuerMetrics(registry))
    task = asyncio.create_task(issuers.run())
    try:
        issuers.set_addresses({"ads": [login.address]})
        async with ends_in_time("every issuer has a result"):
            await issuers.wait_for_results()
        yield Asking(issuers, registry, login.address)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def tokened(login: Login) -> ModelAccess:
    jwt = {"issuer": NAME, "audiences": ["ads"], "jwksUri": login.address}
    return a_model_access(auth={"jwt": jwt})


def known(login: Login, asks: Asking | None) -> CallerCredentials:
    fetched = {} if asks is None else dict(asks.issuers.results)
    return CallerCredentials(key_hosts=frozenset({login.host}), fetched=fetched)


async def calls(client: Client, issuer: Issuer) -> str:
    """Who answered a call with a token of the issuer's, or the status's name."""
    token = ("authorization", f"Bearer {issuer.token(aud='ads')}")
    try:
        return await client.infer(metadata=(CTR, token))
    except grpc.aio.AioRpcError as error:
        return error.code().name


async def test_an_envoy_lets_in_by_the_keys_at_the_address_and_follows_them(
    gateway: Gateway, login: Login
) -> None:
    v1, access = backend_of("ctr", await gateway.upstream("v1")), tokened(login)
    old, new = login.issuer, Issuer(NAME)
    async with asking(login) as asks:
        client = await gateway.start(access, v1, known(login, asks))
        asks.issuers.subscribe(lambda _: gateway.control_plane.set(access, v1, known(login, asks)))
        assert [await calls(client, one) for one in (old, new)] == ["v1", "UNAUTHENTICATED"]

        async def opens(issuer: Issuer, outcome: str) -> None:
            async def so() -> bool:
                return await calls(client, issuer) == outcome

            await eventually(so, f"a token is answered {outcome}")

        login.keys = Issuer.key_set(old, new)
        await opens(new, "v1")
        assert await calls(client, old) == "v1"
        login.keys = Issuer.key_set(new)
        await opens(old, "UNAUTHENTICATED")

        # The issuer goes away: its keys stay, however often it is asked in vain.
        await login.stop()
        failures = asks.counted("fetches_total", result="failure")
        await asks.until(
            "it is asked in vain",
            lambda: asks.counted("fetches_total", result="failure") > failures + 2,
        )
        assert asks.counted("addresses_failing") == 1
        assert [await calls(client, one) for one in (old, new)] == ["UNAUTHENTICATED", "v1"]
        await login.start()
        login.keys = Issuer.key_set(old)
        await opens(old, "v1")
        assert asks.counted("addresses_failing") == 0


async def test_without_an_answer_since_the_start_nobody_is_let_in_until_there_is_one(
    gateway: Gateway, login: Login
) -> None:
    v1, access = backend_of("ctr", await gateway.upstream("v1")), tokened(login)
    await login.stop()
    async with asking(login) as asks:
        client = await gateway.start(access, v1, known(login, asks))
        assert await calls(client, login.issuer) == "UNAVAILABLE"
        snapshot = gateway.control_plane.cache.snapshot
        assert snapshot is not None
        (refusal,) = snapshot.refusals
        assert refusal.reason is Reason.CREDENTIALS_NOT_READABLE
        assert refusal.part == f"spec.auth.jwt.jwksUri: {login.address}"
        assert "it cannot be reached" in refusal.message

        await login.start()
        await asks.until("the keys are there", lambda: isinstance(asks.fetched, str))
        await gateway.control_plane.push(access, v1, known(login, asks))
        assert await calls(client, login.issuer) == "v1"


async def test_a_host_that_is_not_listed_is_never_asked_and_its_access_is_closed(
    gateway: Gateway, login: Login
) -> None:
    v1, access = backend_of("ctr", await gateway.upstream("v1")), tokened(login)
    async with asking(login, hosts=["login.example.com", "127.0.0.1"]) as asks:
        client = await gateway.start(access, v1, CallerCredentials(key_hosts=frozenset({"127.0.0.1"})))
        assert await calls(client, login.issuer) == "UNAVAILABLE"
        snapshot = gateway.control_plane.cache.snapshot
        assert snapshot is not None
        (refusal,) = snapshot.refusals
        assert refusal.reason is Reason.CREDENTIALS_NOT_READABLE
        assert f"the host {login.host}" in refusal.message
        assert "auth.jwks.allowedHosts" in refusal.message
        assert asks.fetched is None
    assert login.asked == 0


def text(body: bytes, status: int = 200, **headers: str) -> Answer:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(body=body, status=status, headers=headers)

    return answer


async def hang(_: web.Request) -> web.StreamResponse:
    await asyncio.sleep(60)
    return web.Response()


async def drip(request: web.Request) -> web.StreamResponse:
    """Never silent for long, and never done."""
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b" ")
        await asyncio.sleep(0.02)


async def cut(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


SYMMETRIC = json.dumps({"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}).encode()

BAD_ANSWERS: dict[str, tuple[Answer, type[object], str]] = {
    "an error": (text(b"secret-words", 500), KeyFetchFailed, "it answers HTTP 500"),
    "a redirect": (
        text(b"", 302, Location="/elsewhere"),
        KeyFetchFailed,
        "a redirect, which is not followed",
    ),
    "no JSON": (text(b"secret-words"), InvalidContent, "is no JSON"),
    "no keys": (text(b'{"keys": []}'), InvalidContent, "has no list of keys"),
    "a symmetric key": (text(SYMMETRIC), InvalidContent, r"keys\[0\] is symmetric"),
    "too much": (text(b" " * (MAX_JWKS_BYTES + 1)), KeyFetchFailed, "more than 262144 bytes"),
    "silence": (hang, KeyFetchFailed, "did not answer in 0.5 s"),
    "a trickle": (drip, KeyFetchFailed, "did not answer in 0.5 s"),
    "a cut": (cut, KeyFetchFailed, "it cannot be reached"),
}


@pytest.mark.parametrize("name", BAD_ANSWERS)
async def test_a_bad_answer_opens_nothing_and_takes_nothing_away(login: Login, name: str) -> None:
    answer, kind, words = BAD_ANSWERS[name]
    login.answer = answer
    async with asking(login, **({"timeout_s": 0.5} if answer in (hang, drip) else {})) as asks:
        assert isinstance(asks.fetched, kind)
        assert isinstance(asks.fetched, (InvalidContent, KeyFetchFailed))
        assert re.search(words, asks.fetched.reason)
        assert "secret" not in asks.fetched.reason
        login.answer = None
        await asks.until("the keys are there", lambda: isinstance(asks.fetched, str))
        good, login.answer = asks.fetched, answer
        failures = asks.counted("fetches_total", result="failure")
        await asks.until(
            "it is answered badly", lambda: asks.counted("fetches_total", result="failure") > failures
        )
        assert asks.fetched == good


async def test_a_server_that_the_authority_does_not_vouch_for_is_not_believed(
    login: Login, tmp_path: Path
) -> None:
    await login.stop()
    await login.start(Authority.make(tmp_path / "foreign").issue("issuer"))
    async with asking(login) as asks:
        assert isinstance(asks.fetched, KeyFetchFailed)
        assert asks.fetched.reason.startswith("its certificate is refused: ")
    assert login.asked == 0
    await login.stop()
    await login.start(login.authority.issue("another", addresses=("127.0.0.9",)))
    async with asking(login) as asks:
        assert isinstance(asks.fetched, KeyFetchFailed)
        assert "certificate" in asks.fetched.reason


async def test_what_is_not_wanted_any_more_is_not_asked_and_not_known(login: Login) -> None:
    async with asking(login, grace_s=0.1) as asks:
        told: list[str] = []
        asks.issuers.subscribe(told.append)
        asks.issuers.set_addresses({})
        await asks.until("it is forgotten", lambda: told == [login.address])
        assert asks.fetched is None
        asked = login.asked
        # Another address keeps the process busy for some rounds.
        asks.issuers.set_addresses({"ads": [f"{login.address}?2"]})
        await asks.until("the other is asked", lambda: login.asked > asked + 3)
        assert asks.fetched is None


async def test_keys_that_nobody_wants_for_a_moment_are_kept(login: Login) -> None:
    async with asking(login) as asks:
        told: list[str] = []
        asks.issuers.subscribe(told.append)
        good, other = asks.fetched, f"{login.address}?2"
        assert isinstance(good, str)
        asks.issuers.set_addresses({"ads": [other]})
        await asks.until("the other one has answered", lambda: other in asks.issuers.results)
        assert asks.fetched == good
        asks.issuers.set_addresses({"ads": [login.address]})
        assert not asks.issuers.pending_addresses
        asked = login.asked
        await asks.until("it is asked again", lambda: login.asked > asked + 3)
        assert login.address not in told


async def test_a_slow_host_delays_neither_the_others_nor_the_start(login: Login, tmp_path: Path) -> None:
    slow = Login(tmp_path / "slow", answer=hang)
    await slow.start(login.authority.issue("slow"))
    hanging = {f"n{number}": [f"{slow.address}?{number}"] for number in range(40)}
    settings = login.settings(hosts=[login.host, slow.host], timeout_s=60.0, per_host=2, patience_s=5.0)
    issuers = IssuerKeyFetcher(settings, IssuerMetrics(CollectorRegistry()))
    task = asyncio.create_task(issuers.run())
    try:
        issuers.set_addresses({**hanging, "ads": [login.address]})
        await eventually(
            lambda: isinstance(issuers.results.get(login.address), str), what="the quick one answers"
        )
        assert len(issuers.pending_addresses) == len(hanging)
        async with ends_in_time("every issuer has a result"):
            await issuers.wait_for_results()
        assert slow.asked == 2
        late = issuers.results[f"{slow.address}?39"]
        assert isinstance(late, KeyFetchFailed)
        assert "nothing came in 5 s" in late.reason
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await slow.stop()


async def test_a_namespace_with_too_many_addresses_is_told_so_and_others_are_not_cut_short(
    login: Login,
) -> None:
    addresses = [f"{login.address}?{number}" for number in range(5)]
    jwt = {"issuer": NAME, "audiences": ["ads"], "jwksUri": addresses[4]}
    access = a_model_access(auth={"jwt": jwt})
    async with asking(login, per_namespace=3) as asks:
        asks.issuers.set_addresses(
            {"ads": addresses, "shop": [addresses[3]], "elsewhere": ["https://x.com/a"] * 5}
        )
        await asks.until("the first are there", lambda: not asks.issuers.pending_addresses)
        kinds = [type(asks.issuers.results[address]) for address in addresses]
        assert kinds == [str, str, str, str, KeyFetchSkipped]
        planned = plan_guard(access, known(login, asks))
        assert planned.is_closed
        assert (
            "namespace ads names 5 addresses of issuers, and at most 3 of one" in planned.refusals[0].message
        )
        assert "name fewer addresses in the namespace" in planned.refusals[0].message

        asks.issuers.set_addresses({"ads": addresses[2:]})
        await asks.until("it is asked", lambda: isinstance(asks.issuers.results.get(addresses[4]), str))
        assert not plan_guard(access, known(login, asks)).is_closed


async def test_authorities_are_read_again_and_broken_ones_end_nothing(login: Login, tmp_path: Path) -> None:
    file = tmp_path / "ca.crt"
    file.write_text("")
    async with asking(login, authorities=file) as asks:
        assert isinstance(asks.fetched, KeyFetchFailed)
        assert "auth.jwks.caConfigMap" in asks.fetched.reason
        assert login.asked == 0
        file.write_bytes(login.authority.certificate.read_bytes())
        await asks.until("the keys are there", lambda: isinstance(asks.fetched, str))

        def refused() -> float:
            return asks.counted("fetches_total", result="failure")

        # Another authority, a broken file and none at all: who was trusted before is so no longer, and the keys stay.
        good, foreign = asks.fetched, Authority.make(tmp_path / "foreign").certificate.read_bytes()
        for content in (foreign, b"-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n", None):
            file.unlink() if content is None else file.write_bytes(content)
            before = refused()
            await asks.until("it is refused", lambda before=before: refused() > before + 1)
            asked = login.asked
            before = refused()
            await asks.until("it is refused again", lambda before=before: refused() > before + 1)
            assert login.asked == asked
        assert asks.fetched == good
        file.write_bytes(login.authority.certificate.read_bytes())
        asked = login.asked
        await asks.until("it is asked again", lambda: login.asked > asked)
