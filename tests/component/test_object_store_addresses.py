"""An object store that leads elsewhere: by a redirect, or by a name that changes its address, is not followed inside."""

from __future__ import annotations

import gc
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web

from builders.certificates import Authority
from builders.https_server import https_server
from fixtures.missing import skip_or_fail
from tidegate_dataplane.agent.artefacts.checked_proxy import CheckedProxy
from tidegate_dataplane.agent.artefacts.credentials import SecretCredentials
from tidegate_dataplane.agent.artefacts.object_store import ObjectSource
from tidegate_dataplane.agent.artefacts.uri import parse_uri
from tidegate_dataplane.agent.refusals import ArtefactError
from tidegate_dataplane.contract import FailureReason

LOOPBACK = "127.0.0.1"
INSIDE = b'{"AccessKeyId": "of-the-node"}'
KEYS = {"AWS_ACCESS_KEY_ID": "of-a-tenant", "AWS_SECRET_ACCESS_KEY": "of-a-tenant", "AWS_REGION": "x"}
DATED = {"ETag": '"x"', "Last-Modified": "Fri, 20 Nov 2026 00:00:00 GMT"}


@dataclass(slots=True)
class Store:
    """One server at all addresses of this machine: each request's own address and path, and where it leads."""

    address: str
    port: int = 0
    leads_to: str | None = None
    asked: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    signed: list[str] = field(default_factory=list[str])

    @property
    def addresses(self) -> list[str]:
        return [address for address, _ in self.asked]

    async def answer(self, request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        address = str(request.transport.get_extra_info("sockname")[0])
        self.asked.append((address, request.path_qs))
        self.signed.append(request.headers.get("Authorization", ""))
        if request.path.startswith("/identity"):
            identity = {"AccessKeyId": "of-the-pod", "SecretAccessKey": "s", "Token": "t"}
            return web.json_response({**identity, "Expiration": "2099-01-01T00:00:00Z"})
        if self.leads_to is not None and "/inside" not in request.path:
            return web.Response(status=302, headers={"Location": self.leads_to})
        return web.Response(body=INSIDE, headers=DATED)


@pytest.fixture(scope="module")
def own_address() -> str:
    """An address of this machine that is not loopback, and so allowed."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError as error:
            skip_or_fail(f"this machine has no address but loopback: {error}")
        return str(probe.getsockname()[0])


@pytest_asyncio.fixture
async def store(own_address: str) -> AsyncIterator[Store]:
    served = Store(own_address)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", served.answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
    await runner.setup()
    await web.TCPSite(runner, "0.0.0.0", 0).start()
    served.port = runner.addresses[0][1]
    yield served
    await runner.cleanup()


def bucket(scheme: str, endpoint: str, environment: Mapping[str, str] | None = None) -> ObjectSource:
    keys = {"AWS_ENDPOINT_URL": endpoint, "GOOGLE_BASE_URL": endpoint, "GOOGLE_BEARER_TOKEN": "of-a-tenant"}
    secret = keys if environment else keys | KEYS
    credentials = SecretCredentials("models", secret, environment or {})
    return ObjectSource(parse_uri(f"{scheme}://bucket/ctr"), credentials, stall_timeout_s=10.0)


async def refusal(attempt: Awaitable[object]) -> str:
    with pytest.raises(ArtefactError) as raised:
        await attempt
    assert raised.value.refusal.reason is FailureReason.URI_NOT_ALLOWED
    return raised.value.refusal.message


async def opened(source: ObjectSource) -> bytes:
    async with source.open("1/weights.data") as download:
        return b"".join([chunk async for chunk in download.chunks])


@pytest.mark.parametrize("scheme", ["s3", "gs"])
async def test_a_redirect_of_an_object_store_to_loopback_is_not_followed(store: Store, scheme: str) -> None:
    store.leads_to = f"http://{LOOPBACK}:{store.port}/inside"
    source = bucket(scheme, f"http://{store.address}:{store.port}")

    attempts: tuple[Callable[[], Awaitable[object]], ...] = (
        lambda: opened(source),
        lambda: source.size("a"),
        lambda: source.read_range("a", 0, 1),
        lambda: source.list("a"),
    )
    for attempt in attempts:
        message = await refusal(attempt())
        assert f"{scheme}://bucket/ctr/" in message
        assert "127.0.0.1 is a loopback address" in message
    for write in (source.put, source.create):
        with pytest.raises(ArtefactError):
            await write("a", b"b")
    assert set(store.addresses) == {store.address}


@pytest.mark.parametrize("scheme", ["s3", "gs"])
async def test_a_redirect_of_an_object_store_to_an_allowed_address_is_followed(
    store: Store, scheme: str
) -> None:
    store.leads_to = f"http://{store.address}:{store.port}/inside?signature=a%2Fb&empty="

    assert await opened(bucket(scheme, f"http://{store.address}:{store.port}")) == INSIDE

    assert store.asked[-1] == (store.address, "/inside?signature=a%2Fb&empty=")


@pytest.mark.parametrize("scheme", ["s3", "gs"])
async def test_a_stores_name_that_leads_to_loopback_after_it_was_looked_up_is_refused(
    store: Store, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A resolver of the client's own would find loopback by this name, whatever ours says.
    answers, real = [store.address, LOOPBACK], socket.getaddrinfo

    def changing(host: Any, *arguments: Any, **options: Any) -> Any:
        if host != "localhost":
            return real(host, *arguments, **options)
        return real(answers.pop(0) if len(answers) > 1 else answers[0], *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", changing)
    source = bucket(scheme, f"http://localhost:{store.port}")

    assert await source.size("a") == len(INSIDE)
    assert "'localhost' resolves to 127.0.0.1, a loopback address" in await refusal(source.size("a"))

    assert store.addresses == [store.address]


@pytest.mark.parametrize(
    "where", ["https://127.0.0.1:{port}", "https://localhost:{port}", "https://[::1]:{port}"]
)
async def test_a_tls_endpoint_on_loopback_is_refused_before_a_byte_is_sent(store: Store, where: str) -> None:
    source = bucket("s3", where.format(port=store.port))

    assert "loopback" in await refusal(source.size("a"))

    assert store.asked == []


async def test_a_store_over_tls_is_read_where_its_address_is_allowed(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority.make(tmp_path / "authority")
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", store.answer)
    async with https_server(app, authority.issue("store")) as port:
        keys = {**KEYS, "AWS_ENDPOINT_URL": f"https://{LOOPBACK}:{port}"}
        uri, credentials = parse_uri("s3://bucket/ctr"), SecretCredentials("models", keys)

        assert await opened(ObjectSource(uri, credentials, allow_loopback=True)) == INSIDE
        assert "127.0.0.1 is a loopback address" in await refusal(ObjectSource(uri, credentials).size("a"))

    assert store.asked == [(LOOPBACK, "/bucket/ctr/1/weights.data")]


async def test_a_region_that_leads_to_loopback_is_refused(store: Store) -> None:
    keys = {**KEYS, "AWS_REGION": f"x@127.0.0.1:{store.port}/#"}
    source = ObjectSource(parse_uri("s3://bucket/ctr"), SecretCredentials("models", keys))

    assert "127.0.0.1 is a loopback address" in await refusal(source.size("a"))


async def test_a_store_that_cannot_be_reached_may_pass_and_says_where(own_address: str) -> None:
    with socket.socket() as unused:
        unused.bind((own_address, 0))
        port = unused.getsockname()[1]
        for endpoint in (f"http://{own_address}:{port}", f"https://{own_address}:{port}"):
            with pytest.raises(ArtefactError, match=rf"{own_address}:{port}.*refused") as raised:
                await bucket("s3", endpoint).size("a")
            assert raised.value.refusal.reason is FailureReason.FETCH_FAILED


async def test_the_platforms_identity_is_had_from_the_address_that_the_platform_names_and_no_more(
    store: Store, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("of-the-service-account")
    environment = {
        "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"http://{LOOPBACK}:{store.port}/identity",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(token),
        "AWS_REGION": "x",
    }
    source = bucket("s3", f"http://{store.address}:{store.port}", environment)

    assert await source.size("a") == len(INSIDE)
    assert store.asked == [(LOOPBACK, "/identity"), (store.address, "/bucket/ctr/a")]
    assert store.signed[0] == "of-the-service-account"
    assert "Credential=of-the-pod/" in store.signed[1]

    # What else the same server has is as far away as before.
    store.leads_to = f"http://{LOOPBACK}:{store.port}/inside"
    assert "loopback" in await refusal(source.size("b"))
    # And it is not named to a source with keys of its own.
    with_keys = bucket("s3", environment["AWS_CONTAINER_CREDENTIALS_FULL_URI"])
    assert "loopback" in await refusal(with_keys.size("c"))
    assert [path for address, path in store.asked if address == LOOPBACK] == ["/identity"]


async def test_the_proxy_of_a_source_ends_with_it(store: Store) -> None:
    before = set(threading.enumerate())
    source = bucket("s3", f"http://{store.address}:{store.port}")
    assert await source.size("a") == len(INSIDE)
    port = int(source._proxy.url.rpartition(":")[2])
    socket.create_connection((LOOPBACK, port), timeout=10).close()

    del source
    gc.collect()

    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((LOOPBACK, port), timeout=10)
    begun = [thread for thread in threading.enumerate() if thread.name.startswith("proxy")]
    for thread in set(begun) - before:
        thread.join(20)
        assert not thread.is_alive(), thread.name


@pytest.mark.parametrize(
    "head", [b"GET / HTTP/1.1", b"GET https://x/ HTTP/1.1", b"CONNECT x:y HTTP/1.1", b"\xff", b"A " * 40_000]
)
def test_what_is_no_request_for_a_proxy_is_connected_to_nothing(head: bytes) -> None:
    proxy = CheckedProxy(allow_loopback=True)
    with socket.create_connection((LOOPBACK, int(proxy.url.rpartition(":")[2])), timeout=10) as client:
        client.sendall(head + b"\r\n\r\n")
        with suppress(ConnectionResetError):
            assert client.recv(100).partition(b"\r\n")[0] in (b"HTTP/1.1 400 Bad Request", b"")
    proxy.close()
