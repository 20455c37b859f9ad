"""Artefacts over HTTPS from a server on loopback, which only a test may allow."""

from __future__ import annotations

import asyncio
import hashlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import pytest_asyncio
from aiohttp import web

from builders.certificates import Authority
from builders.desired import a_desired_state
from builders.https_server import https_server
from builders.onnx_models import a_model, a_tensor, with_external_data
from tidegate_dataplane.agent.artefacts import receive
from tidegate_dataplane.agent.artefacts.checked_client import HttpRules
from tidegate_dataplane.agent.artefacts.credentials import SecretCredentials
from tidegate_dataplane.agent.artefacts.facts import ArtefactFacts
from tidegate_dataplane.agent.artefacts.fetch import fetch_artefact
from tidegate_dataplane.agent.artefacts.https import HttpsSource
from tidegate_dataplane.agent.artefacts.receive import DownloadProgress
from tidegate_dataplane.agent.artefacts.source import ArtefactSource
from tidegate_dataplane.agent.artefacts.uri import ArtefactUri, parse_uri
from tidegate_dataplane.agent.refusals import ArtefactError
from tidegate_dataplane.contract import DesiredState, FailureReason

MODEL = a_model([a_tensor("x", ["n", 1])], [a_tensor("y", ["n", 1])]).SerializeToString()
NOBODY = SecretCredentials()


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
    served = Store(authority.certificate, files={"/ctr/1/model.onnx": MODEL})
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", served.handle)
    async with https_server(app, authority.issue("store")) as served.port:
        yield served


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
    credentials: SecretCredentials = NOBODY,
    progress: DownloadProgress | None = None,
    patience_s: float = 10.0,
    **order: object,
) -> ArtefactFacts:
    def open_source(uri: ArtefactUri, wanted: DesiredState) -> ArtefactSource:
        rules = HttpRules(wanted.allowed_hosts, allow_loopback, store.authority, patience_s)
        return HttpsSource(uri, rules, credentials)

    state = {"uri": f"https://{store.host}/ctr", "allowed_hosts": hosts or (store.host,), **order}
    return await fetch_artefact(
        a_desired_state(**state),
        folder,
        open_source,
        progress or DownloadProgress(),
        partial_dir=folder.parent / "parts",
    )


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


ELSEWHERE = {
    "https://169.254.169.254/latest/meta-data/": "not on the list",
    "http://127.0.0.1/model.onnx": "not https",
    "https://example.com/model.onnx": "not on the list",
    "file:///etc/passwd": "not https",
    "//169.254.169.254/x": "not on the list",
}


async def test_a_redirect_out_of_the_list_is_not_followed(store: Store, folder: Path) -> None:
    for location, why in ELSEWHERE.items():
        store.redirects["/ctr/1/model.onnx"] = location
        reason, message = await refused(store, folder)
        assert reason is FailureReason.URI_NOT_ALLOWED, location
        assert why in message
        assert "on the way to" in message


async def test_a_listed_name_that_turns_out_to_be_a_metadata_address_is_not_fetched(
    store: Store, folder: Path
) -> None:
    # Even the administrator's list does not open the way to the node's own identity.
    store.redirects["/ctr/1/model.onnx"] = "https://169.254.169.254/model.onnx"

    reason, message = await refused(store, folder, hosts=(store.host, "169.254.169.254"))

    assert reason is FailureReason.URI_NOT_ALLOWED
    assert "link-local" in message


async def test_neither_loopback_nor_a_host_that_is_not_listed_is_even_asked(
    store: Store, folder: Path
) -> None:
    reason, message = await refused(store, folder, allow_loopback=False)
    assert (reason, "loopback" in message) == (FailureReason.URI_NOT_ALLOWED, True)
    reason, message = await refused(store, folder, hosts=("models.example.com",))
    assert (reason, "models.example.com" in message) == (FailureReason.URI_NOT_ALLOWED, True)
    assert store.asked == []


async def test_a_name_that_resolves_to_loopback_is_refused(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def resolves_to_loopback(*_: object, **__: object) -> list[object]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", store.port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolves_to_loopback)
    host = f"models.example.com:{store.port}"

    reason, message = await refused(
        store, folder, allow_loopback=False, uri=f"https://{host}/ctr", hosts=(host,)
    )

    assert reason is FailureReason.URI_NOT_ALLOWED
    assert "resolves to 127.0.0.1" in message
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


@pytest.mark.produces(FailureReason.FETCH_FAILED)
async def test_a_server_error_may_pass(store: Store, folder: Path) -> None:
    async def overloaded(_: web.Request) -> web.StreamResponse:
        return web.Response(status=503)

    store.answer = overloaded

    reason, message = await refused(store, folder)

    assert reason is FailureReason.FETCH_FAILED
    assert "503" in message


@pytest.mark.produces(FailureReason.ARTEFACT_TOO_LARGE)
async def test_too_large_an_artefact_is_refused_before_it_is_stored(store: Store, folder: Path) -> None:
    store.files["/ctr/1/model.onnx"] = bytes(1_000_000)

    reason, message = await refused(store, folder, max_artefact_bytes=1000)

    assert reason is FailureReason.ARTEFACT_TOO_LARGE
    assert "1000000" in message
    assert list(folder.iterdir()) == []  # noqa: ASYNC240 - a test may look at a folder


async def test_a_body_without_a_length_is_cut_off_at_the_limit(store: Store, folder: Path) -> None:
    async def overlong(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        # Not for ever: to a client that has said goodbye over TLS, aiohttp writes on without an error and without a pause.
        with suppress(ConnectionError):
            for _ in range(1_000):
                await response.write(bytes(65_536))
                await asyncio.sleep(0)
        return response

    store.answer = overlong
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
        reason, _ = await refused(store, folder, uri=f"https://{host}/ctr", hosts=(host,), patience_s=1.0)

    assert reason is FailureReason.FETCH_FAILED


BIG = MODEL + b"\x5a\x80\x80\x80\x02" + bytes(4 << 20)  # an unknown field of 4 MiB


@dataclass(slots=True)
class Flaky:
    """Serves `content` by range, and ends each answer after as many bytes as `cuts` says, as long as it says."""

    content: bytes
    cuts: list[int]
    etag: str = '"v1"'
    ranges: list[str] = field(default_factory=list[str])
    after_cut: Callable[[], None] = lambda: None

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        asked = request.headers.get("Range", "")
        self.ranges.append(asked)
        start = int(asked.removeprefix("bytes=").split("-")[0]) if asked else 0
        if asked and request.headers.get("If-Range") != self.etag:
            start = 0
        body, size = self.content[start:], len(self.content)
        headers = {"ETag": self.etag, "Content-Length": str(len(body))}
        if start:
            headers["Content-Range"] = f"bytes {start}-{size - 1}/{size}"
        response = web.StreamResponse(status=206 if start else 200, headers=headers)
        await response.prepare(request)
        if self.cuts:
            await response.write(body[: self.cuts.pop(0)])
            self.after_cut()
            assert request.transport is not None
            request.transport.close()  # after what was written
        else:
            await response.write(body)
        return response


async def test_a_broken_download_goes_on_from_where_it_broke(store: Store, folder: Path) -> None:
    store.answer = flaky = Flaky(BIG, [1_000_000, 2_000_000])
    progress = DownloadProgress()

    facts = await fetched(store, folder, progress=progress)

    assert facts.digest == hashlib.sha256(BIG).hexdigest()
    starts = [int(asked.removeprefix("bytes=").split("-")[0]) for asked in flaky.ranges[1:]]
    assert len(starts) == 2
    assert 0 < starts[0] < starts[1]
    assert (progress.resumed, progress.done) == (2, len(BIG))


async def test_a_file_that_has_changed_meanwhile_is_read_from_its_beginning(
    store: Store, folder: Path
) -> None:
    store.answer = flaky = Flaky(b"x" * len(BIG), [1_000_000])

    def publish() -> None:
        flaky.content, flaky.etag = BIG, '"v2"'

    flaky.after_cut = publish
    progress = DownloadProgress()

    facts = await fetched(store, folder, progress=progress)

    assert facts.digest == hashlib.sha256(BIG).hexdigest()
    assert progress.done == len(BIG)


async def test_without_a_strong_etag_nothing_is_pieced_together(store: Store, folder: Path) -> None:
    store.answer = flaky = Flaky(BIG, [1_000_000], etag='W/"v1"')

    reason, _ = await refused(store, folder)

    assert reason is FailureReason.FETCH_FAILED
    assert flaky.ranges == [""]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receive, "RESUME_PAUSES_S", (0.0,) * 5)


@pytest.mark.usefixtures("impatient")
async def test_what_an_earlier_attempt_brought_is_not_fetched_again(store: Store, folder: Path) -> None:
    store.answer = flaky = Flaky(BIG, [3_000_000, *[0] * 6])
    reason, _ = await refused(store, folder)
    assert reason is FailureReason.FETCH_FAILED

    flaky.ranges.clear()
    flaky.cuts.clear()
    progress = DownloadProgress()
    facts = await fetched(store, folder, progress=progress)

    assert facts.digest == hashlib.sha256(BIG).hexdigest()
    assert len(flaky.ranges) == 1
    assert (
        int(flaky.ranges[0].removeprefix("bytes=").split("-")[0]) > 0
    )  # the kernel decides how much arrived
    assert progress.done == len(BIG)


@pytest.mark.usefixtures("impatient")
async def test_what_was_kept_of_another_version_is_not_used(store: Store, folder: Path) -> None:
    store.answer = flaky = Flaky(BIG, [3_000_000, *[0] * 6])
    await refused(store, folder)

    flaky.ranges.clear()
    flaky.cuts.clear()
    store.files["/ctr/2/model.onnx"] = BIG
    await fetched(store, folder, version=2)

    assert flaky.ranges == [""]


CANARY = "canary-7f3a9c55"


async def test_credentials_go_to_the_host_of_the_uri_and_to_no_other(store: Store, folder: Path) -> None:
    seen: list[tuple[str, str | None]] = []

    async def asks(request: web.Request) -> web.StreamResponse:
        seen.append((request.host, request.headers.get("Authorization")))
        if request.host.startswith("127.0.0.1"):
            return web.Response(
                status=302, headers={"Location": f"https://localhost:{store.port}/x/model.onnx"}
            )
        return web.Response(body=MODEL)

    store.answer = asks
    hosts = (store.host, f"localhost:{store.port}")
    secret = SecretCredentials(values={"username": "ads", "password": CANARY})

    with pytest.raises(ArtefactError):  # the certificate is for 127.0.0.1 alone: the redirect ends there
        await fetched(store, folder, hosts=hosts, credentials=secret)

    assert [host for host, authorization in seen if authorization] == [store.host]


@pytest.mark.parametrize(
    ("secret", "words"),
    [
        (SecretCredentials("models-ads"), "Secret models-ads of the namespace does not exist or is empty"),
        (
            SecretCredentials("models-ads", {"token": CANARY}),
            "does not accept the credentials in Secret models-ads",
        ),
    ],
    ids=["none", "wrong"],
)
async def test_who_is_denied_is_told_of_the_secret_and_never_its_content(
    store: Store, folder: Path, secret: SecretCredentials, words: str
) -> None:
    async def denies(_: web.Request) -> web.StreamResponse:
        return web.Response(status=403, text=CANARY)

    store.answer = denies
    reason, message = await refused(store, folder, credentials=secret)

    assert reason is FailureReason.FETCH_FAILED
    assert words in message
    assert CANARY not in message
    assert CANARY not in repr(secret)


async def identified(store: Store, headers: dict[str, str], path: str) -> tuple[str, str]:
    """What identifies a file that is answered with these headers, and the range that was asked for."""
    ranges: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        ranges.append(request.headers.get("Range", ""))
        return web.Response(status=206, body=b"P", headers={"Content-Range": "bytes 0-0/9", **headers})

    store.answer = answer
    rules = HttpRules((store.host,), True, store.authority, 10.0)
    source = HttpsSource(parse_uri(f"https://{store.host}/ctr/1"), rules, NOBODY)
    return await source.identify_content(path), ranges[0]


async def test_a_file_is_identified_by_its_etag_from_one_byte(store: Store) -> None:
    time = "Thu, 01 Jan 2026 00:00:00 GMT"

    assert await identified(store, {"ETag": '"v1"', "Last-Modified": time}, "model.onnx") == (
        '"v1"',
        "bytes=0-0",
    )
    assert (await identified(store, {"ETag": 'W/"v2"'}, "model.onnx"))[0] == 'W/"v2"'
    assert (await identified(store, {"Last-Modified": time}, "model.onnx"))[0] == time


async def test_a_file_without_an_etag_and_a_time_cannot_be_identified(store: Store) -> None:
    with pytest.raises(ArtefactError) as raised:
        await identified(store, {}, "model.onnx")

    assert raised.value.refusal.reason is FailureReason.FETCH_FAILED
    assert raised.value.refusal.message == (
        f"https://{store.host}/ctr/1/model.onnx has neither an ETag nor a Last-Modified, so that a change of it cannot be noticed"
    )


async def test_a_file_that_is_gone_is_not_identified(store: Store) -> None:
    with pytest.raises(ArtefactError) as raised:
        await identified(store, {}, "absent.parquet")

    assert raised.value.refusal.reason is FailureReason.ARTEFACT_NOT_FOUND
