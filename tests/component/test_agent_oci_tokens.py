"""A registry whose tokens do not outlive a layer: each is asked for in time, and nobody is told what it was."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import pytest_asyncio
from aiohttp import web

from builders.certificates import Authority
from builders.desired import a_desired_state
from builders.https_server import https_server
from builders.onnx_models import with_external_data
from tidegate_dataplane.agent.artefacts import oci
from tidegate_dataplane.agent.artefacts.checked_client import HttpRules
from tidegate_dataplane.agent.artefacts.credentials import SecretCredentials
from tidegate_dataplane.agent.artefacts.fetch import fetch_artefact
from tidegate_dataplane.agent.artefacts.receive import DownloadProgress
from tidegate_dataplane.agent.artefacts.source import ArtefactSource
from tidegate_dataplane.agent.artefacts.uri import ArtefactUri
from tidegate_dataplane.agent.refusals import ArtefactError
from tidegate_dataplane.contract import DesiredState

TYPE = "application/vnd.oci.image.manifest.v1+json"


@dataclass
class Strict:
    """A registry that takes a token for the manifest and one blob, and then wants another."""

    authority: Path
    blobs: dict[str, bytes]
    manifest: bytes
    port: int = 0
    valid: set[str] = field(default_factory=set[str])
    issued: int = 0

    async def token(self, _: web.Request) -> web.Response:
        self.issued += 1
        self.valid = {f"token-{self.issued}"}
        return web.json_response({"token": f"token-{self.issued}", "expires_in": 60})

    async def serve(self, request: web.Request) -> web.Response:
        kind, _, token = request.headers.get("Authorization", "").partition(" ")
        if kind != "Bearer" or token not in self.valid:
            realm = f'Bearer realm="https://127.0.0.1:{self.port}/token",service="s",scope="pull"'
            return web.Response(status=401, headers={"WWW-Authenticate": realm})
        if "/manifests/" in request.path:
            return web.Response(body=self.manifest, content_type=TYPE)
        self.valid.clear()  # the layer took longer than the token lives
        return web.Response(body=self.blobs[request.path.rpartition(":")[2]])


@pytest_asyncio.fixture
async def registry(tmp_path: Path) -> AsyncIterator[Strict]:
    authority = Authority.make(tmp_path / "authority")
    model, weights = with_external_data("weights.bin")
    files = {"model.onnx": model.SerializeToString(), "weights.bin": weights}
    blobs = {hashlib.sha256(content).hexdigest(): content for content in files.values()}
    layers = [
        {
            "mediaType": "application/octet-stream",
            "digest": f"sha256:{hashlib.sha256(content).hexdigest()}",
            "size": len(content),
            "annotations": {"org.opencontainers.image.title": name},
        }
        for name, content in files.items()
    ]
    served = Strict(authority.certificate, blobs, json.dumps({"mediaType": TYPE, "layers": layers}).encode())
    application = web.Application()
    application.router.add_get("/token", served.token)
    application.router.add_get("/v2/{path:.*}", served.serve)
    async with https_server(application, authority.issue("registry")) as served.port:
        yield served


async def pulled(registry: Strict, folder: Path) -> None:
    host = f"127.0.0.1:{registry.port}"

    def open_source(uri: ArtefactUri, wanted: DesiredState) -> ArtefactSource:
        rules = HttpRules(wanted.allowed_hosts, allow_loopback=True, ca_file=registry.authority)
        return oci.OciSource(
            uri,
            version=wanted.version,
            revision=wanted.revision,
            rules=rules,
            credentials=SecretCredentials(),
        )

    staging = folder / "staging"
    staging.mkdir()
    state = a_desired_state(uri=f"oci://{host}/ads/ctr", allowed_hosts=(host,))
    await fetch_artefact(state, staging, open_source, DownloadProgress(), partial_dir=folder / "parts")


async def test_a_token_is_asked_for_before_it_may_have_run_out(
    registry: Strict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oci, "TOKEN_LIFE_S", -1.0)

    await pulled(registry, tmp_path)

    assert registry.issued == 3


async def test_one_token_is_not_enough_for_such_a_registry(registry: Strict, tmp_path: Path) -> None:
    with pytest.raises(ArtefactError, match="401"):
        await pulled(registry, tmp_path)
