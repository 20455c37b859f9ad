"""Artefacts from a server of our own that speaks the hub's protocol; it is not the hub."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import pytest_asyncio
from aiohttp import web

from builders.certificates import Authority
from builders.desired import a_desired_state
from builders.https_server import https_server
from builders.onnx_models import a_model, a_tensor, with_external_data
from tidegate_dataplane.agent.artefacts import hf
from tidegate_dataplane.agent.artefacts.checked_client import HttpRules
from tidegate_dataplane.agent.artefacts.credentials import SecretCredentials
from tidegate_dataplane.agent.artefacts.facts import ArtefactFacts
from tidegate_dataplane.agent.artefacts.fetch import fetch_artefact
from tidegate_dataplane.agent.artefacts.hf import HfSource
from tidegate_dataplane.agent.artefacts.receive import DownloadProgress
from tidegate_dataplane.agent.artefacts.source import ArtefactSource
from tidegate_dataplane.agent.artefacts.uri import ArtefactUri
from tidegate_dataplane.agent.refusals import ArtefactError
from tidegate_dataplane.contract import DesiredState, FailureReason, ModelFormat

MODEL = a_model([a_tensor("x", ["n", 1])], [a_tensor("y", ["n", 1])]).SerializeToString()
OLD, NEW = "a" * 40, "b" * 40
TOKEN = "hf_canary_55aa77"


@dataclass(slots=True)
class Hub:
    """Revisions by name, files by commit; two entries per page of a listing."""

    authority: Path
    port: int = 0
    revisions: dict[str, str] = field(default_factory=lambda: {"3": OLD, "main": OLD})
    files: dict[str, dict[str, bytes]] = field(
        default_factory=lambda: {OLD: {"model.onnx": MODEL}, NEW: {"model.onnx": b"newer"}}
    )
    token: str | None = None
    lie: bool = False
    """Whether it promises another sha256 than that of the content."""
    repeats: bool = False
    """Whether each page of a listing is followed by the same one."""
    moves: bool = False
    """Whether `main` moves on as soon as it was looked up."""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            return web.Response(status=401)
        parts = request.path.strip("/").split("/")
        match parts:
            case ["api", "models", "Ads", "Ctr", "revision", name]:
                found = self.revisions.get(name)
                if self.moves:
                    self.revisions[name] = NEW
                return web.json_response({"sha": found}) if found else web.Response(status=404)
            case ["api", "models", "Ads", "Ctr", "tree", commit, *folder]:
                return self.page(request, commit, "/".join(folder))
            case ["Ads", "Ctr", "resolve", commit, *path]:
                body = self.files[commit].get("/".join(path))
                return web.Response(status=404) if body is None else web.Response(body=body)
            case _:
                return web.Response(status=404)

    def page(self, request: web.Request, commit: str, folder: str) -> web.Response:
        start = int(request.query.get("cursor", "0"))
        names = sorted(name for name in self.files[commit] if name.startswith(folder))
        entries = [
            {
                "type": "file",
                "path": name,
                "size": len(self.files[commit][name]),
                "lfs": {
                    "oid": "0" * 64 if self.lie else hashlib.sha256(self.files[commit][name]).hexdigest()
                },
            }
            for name in names[start : start + 2]
        ]
        following = str(request.url.update_query(cursor=str(start if self.repeats else start + 2)))
        has_next = self.repeats or start + 2 < len(names)
        headers = {"Link": f'<{following}>; rel="next"'} if has_next else {}
        return web.json_response(entries, headers=headers)


@pytest_asyncio.fixture
async def hub(tmp_path: Path) -> AsyncIterator[Hub]:
    authority = Authority.make(tmp_path / "authority")
    served = Hub(authority.certificate)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", served.handle)
    async with https_server(app, authority.issue("hub")) as served.port:
        yield served


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "staging"
    place.mkdir()
    return place


async def fetched(hub: Hub, folder: Path, *, token: str = "", **order: object) -> ArtefactFacts:
    host = f"127.0.0.1:{hub.port}"

    def open_source(uri: ArtefactUri, wanted: DesiredState) -> ArtefactSource:
        return HfSource(
            uri,
            version=wanted.version,
            revision=wanted.revision,
            rules=HttpRules(wanted.allowed_hosts, allow_loopback=True, ca_file=hub.authority),
            credentials=SecretCredentials("models", {"HF_ENDPOINT": f"https://{host}", "HF_TOKEN": token}),
        )

    state = {"uri": "hf://Ads/Ctr", "version": 3, "allowed_hosts": (host,), **order}
    return await fetch_artefact(
        a_desired_state(**state), folder, open_source, DownloadProgress(), partial_dir=folder.parent / "parts"
    )


async def refused(hub: Hub, folder: Path, **changes: object) -> tuple[FailureReason, str]:
    with pytest.raises(ArtefactError) as raised:
        await fetched(hub, folder, **changes)  # type: ignore[arg-type]
    return raised.value.refusal.reason, raised.value.refusal.message


async def test_the_revision_is_the_version(hub: Hub, folder: Path) -> None:
    facts = await fetched(hub, folder)

    assert [(file.path, file.sha256) for file in facts.files] == [
        ("model.onnx", hashlib.sha256(MODEL).hexdigest())
    ]


async def test_a_listing_that_never_ends_is_refused(
    hub: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hf, "MAX_FILES", 20)
    hub.repeats = True

    assert await refused(hub, folder) == (
        FailureReason.ARTEFACT_INVALID,
        "hf://Ads/Ctr at revision 3 holds more than 20 files",
    )


async def test_a_branch_is_read_at_one_commit_even_while_it_moves(hub: Hub, folder: Path) -> None:
    hub.moves = True

    facts = await fetched(hub, folder, revision="main")

    assert facts.digest == hashlib.sha256(MODEL).hexdigest()


async def test_a_folder_of_the_repository_with_external_data_over_several_pages(
    hub: Hub, folder: Path
) -> None:
    model, data = with_external_data("model.onnx_data")
    hub.files[OLD] = {
        "onnx/model.onnx": model.SerializeToString(),
        "onnx/model.onnx_data": data,
        "onnx/z1": b"",
        "onnx/z2": b"",
        "README.md": b"#",
    }

    facts = await fetched(hub, folder, uri="hf://Ads/Ctr/onnx")

    assert [file.path for file in facts.files] == ["model.onnx", "model.onnx_data"]


async def test_a_python_artefact_is_every_file_of_the_revision(hub: Hub, folder: Path) -> None:
    hub.files[OLD] = {"model.py": b"pass", "a/b": b"1", "config.pbtxt": b"", "c": b"2"}

    facts = await fetched(hub, folder, format=ModelFormat.PYTHON, allow_python=True)

    assert [file.path for file in facts.files] == ["a/b", "c", "model.py"]


async def test_content_that_is_not_what_the_hub_promises_is_refused(hub: Hub, folder: Path) -> None:
    hub.lie = True

    reason, message = await refused(hub, folder)

    assert reason is FailureReason.CHECKSUM_MISMATCH
    assert hashlib.sha256(MODEL).hexdigest() in message


async def test_a_revision_that_is_not_there_is_named(hub: Hub, folder: Path) -> None:
    reason, message = await refused(hub, folder, version=9)

    assert reason is FailureReason.ARTEFACT_NOT_FOUND
    assert "revision 9" in message


async def test_a_private_repository_is_read_with_the_token_alone(hub: Hub, folder: Path) -> None:
    hub.token = TOKEN

    reason, message = await refused(hub, folder, token="hf_another_token")
    facts = await fetched(hub, folder, token=TOKEN)

    assert reason is FailureReason.FETCH_FAILED
    assert "Secret models" in message
    assert "hf_another_token" not in message
    assert facts.files


async def test_a_hub_that_is_not_listed_is_not_asked(hub: Hub, folder: Path) -> None:
    assert (await refused(hub, folder, allowed_hosts=()))[0] is FailureReason.URI_NOT_ALLOWED


async def test_a_path_out_of_the_folder_is_refused(hub: Hub, folder: Path) -> None:
    hub.files[OLD] = {"model.onnx": MODEL, "../x": b""}

    assert (await refused(hub, folder))[0] is FailureReason.ARTEFACT_INVALID
