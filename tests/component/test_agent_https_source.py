"""Artefacts over HTTPS from a server on loopback, which only a test may allow."""

from __future__ import annotations

import asyncio
import hashlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import pytest_asyncio
from aiohttp import web

from builders.certificates import Authority
from builders.desired import a_desired_state
from builders.onnx_models import a_model, a_tensor, with_external_data
from tidegate_dataplane.agent.artefacts.facts import Facts
from tidegate_dataplane.agent.artefacts.fetch import Progress, fetch
from tidegate_dataplane.agent.artefacts.https import HttpsSource
from tidegate_dataplane.agent.artefacts.source import Source
from tidegate_dataplane.agent.artefacts.uri import ArtefactUri
from tidegate_dataplane.agent.refusals import ArtefactError
from tidegate_dataplane.contract import DesiredState, FailureReason

MODEL = a_model([a_tensor("x", ["n", 1])], [a_tensor("y", ["n", 1])]).SerializeToString()


@dataclass(slots=True)
class Store:
    """An HTTPS server: `files` by path, `redirects` from path to location."""

    authority: Path
    port: int = 0
    files: dict[str, bytes] = field(default_factory=dict[str, bytes])
    redirects: dict[str, str] = field(default_factory=dict[str, str])
    asked: list[str] = field(default_factory=list[str])
    answer: Callable[[web.Request], Awaitable[web.StreamResponse]] | None = None

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request.path)
        if self.answer is not None and request.path.endswith("model.onnx"):
            return await self.answer(request)
        if request.path in self.redirects:
            return web.Response(status=302, headers={"Location": self.redirects[request.path]})
        if request.path not in self.files:
            return web.Response(status=404)
        return web.Response(body=self.files[request.path])


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    authority = Authority.make(tmp_path / "authority")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(authority.issue("store"))
    served = Store(authority.certificate, files={"/ctr/1/model.onnx": MODEL})
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", served.handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    served.port = runner.addresses[0][1]
    yield served
    await runner.cleanup()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "staging"
    place.mkdir()
    return place


async def fetched(
    store: Store,
    folder: Path,
    *,
    allow_loopback: bool = True,
    hosts: tuple[str, ...] | None = None,
    **order: object,
) -> Facts:
    def open_source(uri: ArtefactUri, wanted: DesiredState) -> Source:
        return HttpsSource(
            uri,
            allowed_hosts=wanted.allowed_hosts,
            allow_loopback=allow_loopback,
            ca_file=store.authority,
            stall_timeout_s=1.0,
        )

    state = {"uri": f"https://{store.host}/ctr", "allowed_hosts": hosts or (store.host,), **order}
    return await fetch(a_desired_state(**state), folder, open_source, Progress())


async def refused(store: Store, folder: Path, **changes: object) -> tuple[FailureReason, str]:
    with pytest.raises(ArtefactError) as raised:
        await fetched(store, folder, **changes)  # type: ignore[arg-type]
    return raised.value.refusal.reason, raised.value.refusal.message


async def test_a_model_is_fetched_and_its_checksum_taken(store: Store, folder: Path) -> None:
    facts = await fetched(store, folder)

    assert facts.digest == hashlib.sha256(MODEL).hexdigest()
    assert (folder / "model.onnx").read_bytes() == MODEL


async def test_external_data_and_the_configuration_come_along(store: Store, folder: Path) -> None:
    model, data = with_external_data("model.data")
    store.files |= {
        "/ctr/1/model.onnx": model.SerializeToString(),
        "/ctr/1/model.data": data,
        "/ctr/config.pbtxt": b"instance_group { count: 2 kind: KIND_CPU }",
    }

    facts = await fetched(store, folder)

    listing = "".join(
        f"{hashlib.sha256(content).hexdigest()}  {name}\n"
        for name, content in (("model.data", data), ("model.onnx", model.SerializeToString()))
    )
    assert facts.digest == hashlib.sha256(listing.encode()).hexdigest()
    assert facts.config_text == "instance_group { count: 2 kind: KIND_CPU }"


async def test_a_redirect_to_an_allowed_host_is_followed(store: Store, folder: Path) -> None:
    store.redirects["/ctr/1/model.onnx"] = "/elsewhere/model.onnx"
    store.files["/elsewhere/model.onnx"] = MODEL

    facts = await fetched(store, folder)

    assert facts.files[0].size == len(MODEL)


@pytest.mark.parametrize(
    ("location", "why"),
    [
        ("https://169.254.169.254/latest/meta-data/", "not on the list"),
        ("http://127.0.0.1/model.onnx", "not https"),
        ("https://example.com/model.onnx", "not on the list"),
        ("file:///etc/passwd", "not https"),
        ("//169.254.169.254/x", "not on the list"),
    ],
)
async def test_a_redirect_out_of_the_list_is_not_followed(
    store: Store, folder: Path, location: str, why: str
) -> None:
    store.redirects["/ctr/1/model.onnx"] = location

    reason, message = await refused(store, folder)

    assert reason is FailureReason.URI_NOT_ALLOWED
    assert why in message
    assert "redirected from" in message


async def test_a_listed_name_that_turns_out_to_be_a_metadata_address_is_not_fetched(
    store: Store, folder: Path
) -> None:
    # Even the administrator's list does not open the way to the node's own identity.
    store.redirects["/ctr/1/model.onnx"] = "https://169.254.169.254/model.onnx"

    reason, message = await refused(store, folder, hosts=(store.host, "169.254.169.254"))

    assert reason is FailureReason.URI_NOT_ALLOWED
    assert "link-local" in message


async def test_loopback_is_refused_unless_a_test_allows_it(store: Store, folder: Path) -> None:
    reason, message = await refused(store, folder, allow_loopback=False)

    assert reason is FailureReason.URI_NOT_ALLOWED
    assert "loopback" in message
    assert store.asked == []


async def test_a_name_that_resolves_to_loopback_is_refused(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def resolves_to_loopback(*_: object, **__: object) -> list[object]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", store.port))]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolves_to_loopback)
    host = f"models.example.com:{store.port}"

    reason, message = await refused(
        store, folder, allow_loopback=False, uri=f"https://{host}/ctr", hosts=(host,)
    )

    assert reason is FailureReason.URI_NOT_ALLOWED
    assert "resolves to 127.0.0.1" in message
    assert store.asked == []


async def test_a_host_that_is_not_listed_is_not_even_asked(store: Store, folder: Path) -> None:
    reason, message = await refused(store, folder, hosts=("models.example.com",))

    assert reason is FailureReason.URI_NOT_ALLOWED
    assert "models.example.com" in message
    assert store.asked == []


async def test_endless_redirects_end(store: Store, folder: Path) -> None:
    store.redirects["/ctr/1/model.onnx"] = "/ctr/1/model.onnx"

    reason, message = await refused(store, folder)

    assert reason is FailureReason.FETCH_FAILED
    assert "more than 5 times" in message


async def test_what_is_not_there_is_not_found(store: Store, folder: Path) -> None:
    reason, message = await refused(store, folder, version=9)

    assert reason is FailureReason.ARTEFACT_NOT_FOUND
    assert "/ctr/9/model.onnx" in message


async def test_a_server_error_may_pass(store: Store, folder: Path) -> None:
    async def overloaded(_: web.Request) -> web.StreamResponse:
        return web.Response(status=503)

    store.answer = overloaded

    reason, message = await refused(store, folder)

    assert reason is FailureReason.FETCH_FAILED
    assert "503" in message


async def test_too_large_an_artefact_is_refused_before_it_is_stored(store: Store, folder: Path) -> None:
    store.files["/ctr/1/model.onnx"] = bytes(1_000_000)

    reason, message = await refused(store, folder, max_artefact_bytes=1000)

    assert reason is FailureReason.ARTEFACT_TOO_LARGE
    assert "1000000" in message
    assert list(folder.iterdir()) == []  # noqa: ASYNC240 - a test may look at a folder


async def test_a_body_without_a_length_is_cut_off_at_the_limit(store: Store, folder: Path) -> None:
    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        try:
            while True:
                await response.write(bytes(65_536))
        except ConnectionError:
            return response

    store.answer = endless
    reason, _ = await refused(store, folder, max_artefact_bytes=5_000_000)

    assert reason is FailureReason.ARTEFACT_TOO_LARGE


async def test_a_certificate_of_an_unknown_authority_is_refused(
    store: Store, folder: Path, tmp_path: Path
) -> None:
    store.authority = Authority.make(tmp_path / "stranger").certificate

    reason, message = await refused(store, folder)

    assert reason is FailureReason.FETCH_FAILED
    assert "certificate" in message.lower()


async def test_a_silent_server_is_given_up(store: Store, folder: Path) -> None:
    # Nobody accepts: the kernel completes the connection and no handshake follows.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host = f"127.0.0.1:{silent.getsockname()[1]}"
        reason, _ = await refused(store, folder, uri=f"https://{host}/ctr", hosts=(host,))

    assert reason is FailureReason.FETCH_FAILED
