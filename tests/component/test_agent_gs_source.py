"""Artefacts from a server of our own that speaks as much of Google Cloud Storage as reading needs."""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web

from builders.desired import a_desired_state
from builders.onnx_models import a_model, a_tensor
from tidegate_dataplane.agent.artefacts.credentials import SecretCredentials
from tidegate_dataplane.agent.artefacts.facts import ArtefactFacts
from tidegate_dataplane.agent.artefacts.fetch import fetch_artefact
from tidegate_dataplane.agent.artefacts.object_store import ObjectSource
from tidegate_dataplane.agent.artefacts.receive import DownloadProgress
from tidegate_dataplane.agent.artefacts.source import ArtefactSource, ResumePoint
from tidegate_dataplane.agent.artefacts.uri import ArtefactUri, parse_uri
from tidegate_dataplane.agent.refusals import ArtefactError
from tidegate_dataplane.contract import DesiredState, FailureReason, ModelFormat

MODEL = a_model([a_tensor("x", ["n", 1])], [a_tensor("y", ["n", 1])]).SerializeToString()


class Bucket:
    """The bucket `models`: the part of the store's XML API that reading needs. It is not Google's server."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    async def upload(self, request: web.Request) -> web.Response:
        self.objects[request.query["name"]] = await request.read()
        return web.json_response({})

    async def read(self, request: web.Request) -> web.Response:
        content = self.objects.get(request.match_info["name"])
        if content is None:
            return web.Response(status=404)
        etag = f'"{hashlib.md5(content).hexdigest()}"'
        if request.headers.get("If-Match", etag) != etag:
            return web.Response(status=412)
        start = int(request.headers.get("Range", "bytes=0-").removeprefix("bytes=").rstrip("-"))
        headers = {"ETag": etag, "Last-Modified": "Fri, 20 Nov 2026 00:00:00 GMT"}
        if "Range" in request.headers:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        status = 206 if "Range" in request.headers else 200
        return web.Response(status=status, body=content[start:], headers=headers)

    async def list(self, request: web.Request) -> web.Response:
        found = [
            f"<Contents><Key>{name}</Key><LastModified>2026-11-20T00:00:00Z</LastModified>"
            f"<ETag>e</ETag><Size>{len(content)}</Size></Contents>"
            for name, content in sorted(self.objects.items())
            if name.startswith(request.query.get("prefix", ""))
        ]
        body = f"<ListBucketResult>{''.join(found)}</ListBucketResult>"
        return web.Response(body=body, content_type="application/xml")


@pytest_asyncio.fixture
async def endpoint() -> AsyncIterator[str]:
    """The address of a store with a bucket `models`: TIDEGATE_TEST_GCS names a fake-gcs-server to use instead."""
    if given := os.environ.get("TIDEGATE_TEST_GCS"):
        yield given
        return
    bucket = Bucket()
    app = web.Application()
    app.router.add_post("/upload/storage/v1/b/models/o", bucket.upload)
    app.router.add_get("/models", bucket.list)
    app.router.add_get("/models/{name:.+}", bucket.read)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


async def put(endpoint: str, name: str, content: bytes) -> None:
    url = f"{endpoint}/upload/storage/v1/b/models/o"
    options = {"uploadType": "media", "name": name}
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, params=options, data=content) as answer,
    ):
        answer.raise_for_status()


def source(endpoint: str, uri: ArtefactUri) -> ObjectSource:
    secret = SecretCredentials("models", {"GOOGLE_BASE_URL": endpoint})
    return ObjectSource(uri, secret, allow_loopback=True)


async def fetched(endpoint: str, folder: Path, uri: str, **order: object) -> ArtefactFacts:
    def open_source(parsed: ArtefactUri, _: DesiredState) -> ArtefactSource:
        return source(endpoint, parsed)

    (folder / "staging").mkdir(parents=True)
    wanted = a_desired_state(uri=uri, **order)
    return await fetch_artefact(
        wanted, folder / "staging", open_source, DownloadProgress(), partial_dir=folder / "parts"
    )


async def test_what_is_in_the_bucket_is_fetched_and_what_is_not_is_not_found(
    endpoint: str, tmp_path: Path
) -> None:
    await put(endpoint, "ads/ctr/1/model.onnx", MODEL)
    for name in ("1/model.py", "1/lib/a.json", "2/model.py"):
        await put(endpoint, f"code/{name}", b"pass")

    facts = await fetched(endpoint, tmp_path / "onnx", "gs://models/ads/ctr")
    assert facts.files[0].size == len(MODEL)
    python = {"format": ModelFormat.PYTHON, "allow_python": True}
    facts = await fetched(endpoint, tmp_path / "python", "gs://models/code", **python)
    assert [file.path for file in facts.files] == ["lib/a.json", "model.py"]
    with pytest.raises(ArtefactError) as raised:
        await fetched(endpoint, tmp_path / "absent", "gs://models/absent")
    assert raised.value.refusal.reason is FailureReason.ARTEFACT_NOT_FOUND


async def test_an_object_is_read_on_from_a_byte_while_it_is_the_same(endpoint: str) -> None:
    await put(endpoint, "big/1/model.onnx", b"0123456789" * 10)
    store = source(endpoint, parse_uri("gs://models/big"))
    async with store.open("1/model.onnx") as whole:
        validator = whole.validator
    assert validator is not None

    async with store.open("1/model.onnx", ResumePoint(95, validator)) as rest:
        assert (rest.start, rest.size) == (95, 100)
        assert b"".join([chunk async for chunk in rest.chunks]) == b"56789"

    await put(endpoint, "big/1/model.onnx", b"another" * 20)
    async with store.open("1/model.onnx", ResumePoint(95, validator)) as other:
        assert other.start == 0
