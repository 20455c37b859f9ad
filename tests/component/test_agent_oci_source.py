"""Artefacts and images from a real OCI registry (go-containerregistry's), with TLS before it."""

from __future__ import annotations

import re
import tarfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import pytest_asyncio

from builders.certificates import Authority
from builders.desired import a_desired_state
from builders.onnx_models import a_model, a_tensor, with_external_data
from builders.registry import TAR, Registry, a_tar, an_entry, sha256
from builders.tls_relay import TlsRelay, tls_relay
from builders.waiting import wait_until
from fixtures.go_programs import go_program, running
from tidegate_dataplane.agent.artefacts.checked_client import HttpRules
from tidegate_dataplane.agent.artefacts.credentials import SecretCredentials
from tidegate_dataplane.agent.artefacts.facts import ArtefactFacts
from tidegate_dataplane.agent.artefacts.fetch import fetch_artefact
from tidegate_dataplane.agent.artefacts.node_cache import CachedSource, NodeCache
from tidegate_dataplane.agent.artefacts.oci import OciSource
from tidegate_dataplane.agent.artefacts.receive import DownloadProgress
from tidegate_dataplane.agent.artefacts.source import ArtefactSource
from tidegate_dataplane.agent.artefacts.uri import ArtefactUri
from tidegate_dataplane.agent.refusals import ArtefactError
from tidegate_dataplane.contract import DesiredState, FailureReason, ModelFormat

MODEL = a_model([a_tensor("x", ["n", 1])], [a_tensor("y", ["n", 1])]).SerializeToString()


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    log = tmp_path_factory.mktemp("registry") / "log"
    with running([go_program("registry"), "-port", "0"], log):
        wait_until(lambda: b"serving on port" in log.read_bytes(), what="the registry listens")
        found = re.search(r"serving on port (\d+)", log.read_text())
        assert found is not None
        yield Registry(f"http://localhost:{found[1]}")


@dataclass(slots=True)
class Shop:
    """The registry as agents see it, and what one of them got."""

    registry: Registry
    relay: TlsRelay
    authority: Path
    folder: Path
    progress: DownloadProgress = field(default_factory=DownloadProgress)
    cache: NodeCache | None = None

    def through(self, source: ArtefactSource) -> ArtefactSource:
        return CachedSource(source, self.cache, "a registry", by_digest=True) if self.cache else source

    async def fetched(self, **order: object) -> ArtefactFacts:
        def open_source(uri: ArtefactUri, wanted: DesiredState) -> ArtefactSource:
            return OciSource(
                uri,
                version=wanted.version,
                revision=wanted.revision,
                rules=HttpRules(wanted.allowed_hosts, allow_loopback=True, ca_file=self.authority),
                credentials=SecretCredentials(),
                wrap_source=self.through,
            )

        state = {
            "uri": f"oci://{self.relay.host}/ads/ctr",
            "allowed_hosts": (self.relay.host,),
            "version": 3,
            **order,
        }
        return await fetch_artefact(
            a_desired_state(**state),
            self.folder,
            open_source,
            self.progress,
            partial_dir=self.folder.parent / "parts",
        )

    async def refused(self, **order: object) -> tuple[FailureReason, str]:
        with pytest.raises(ArtefactError) as raised:
            await self.fetched(**order)
        return raised.value.refusal.reason, raised.value.refusal.message


@pytest_asyncio.fixture
async def shop(registry: Registry, tmp_path: Path) -> AsyncIterator[Shop]:
    authority = Authority.make(tmp_path / "authority")
    folder = tmp_path / "staging"
    folder.mkdir()
    port = int(registry.url.rpartition(":")[2])
    async with tls_relay(("localhost", port), authority.issue("registry")) as relay:
        yield Shop(registry, relay, authority.certificate, folder)


async def test_files_as_oras_pushes_them(shop: Shop) -> None:
    model, data = with_external_data("weights/w.data")
    files = {"model.onnx": model.SerializeToString(), "weights/w.data": data}
    config = {"config.pbtxt": b"instance_group { count: 2 kind: KIND_CPU }"}
    digest = shop.registry.push_files("ads/ctr", "3", {**files, **config})

    facts = await shop.fetched()

    assert facts.digest == digest
    assert {file.path: file.sha256 for file in facts.files} == {
        name: sha256(content) for name, content in files.items()
    }
    assert facts.config_text == "instance_group { count: 2 kind: KIND_CPU }"
    assert shop.progress.done == sum(map(len, files.values()))


@pytest.mark.parametrize("compressed", [True, False])
async def test_an_image_holds_the_model_in_its_folder_models(shop: Shop, *, compressed: bool) -> None:
    lower = a_tar(
        {"etc/passwd": b"root", "models/model.onnx": b"old", "models/gone.data": b"x"},
        an_entry("bin/sh", tarfile.SYMTYPE, "/bin/busybox"),
        compressed=compressed,
    )
    upper = a_tar({"models/model.onnx": MODEL, "models/.wh.gone.data": b""}, compressed=compressed)
    digest = shop.registry.push_layers(
        "ads/ctr", "3", [lower, upper], TAR if not compressed else f"{TAR}+gzip"
    )

    facts = await shop.fetched()

    assert facts.digest == digest
    assert [(file.path, file.sha256) for file in facts.files] == [("model.onnx", sha256(MODEL))]
    assert list((shop.folder.parent / "parts").rglob("*.onnx")) == []  # nothing is left of unpacking


async def test_a_python_artefact_in_an_image_is_the_whole_folder_without_what_was_removed(shop: Shop) -> None:
    shop.registry.push_layers(
        "ads/ctr",
        "3",
        [
            a_tar({"models/model.py": b"pass", "models/a/x": b"1", "models/b": b"2"}),
            a_tar({"models/a/.wh..wh..opq": b"", "models/.wh.b": b"", "models/c": b"3"}),
        ],
    )

    facts = await shop.fetched(format=ModelFormat.PYTHON, allow_python=True)

    assert [file.path for file in facts.files] == ["c", "model.py"]


async def test_an_index_leads_to_this_machine_and_is_what_a_pin_names(shop: Shop) -> None:
    other = shop.registry.push_files("ads/ctr", "other", {"model.onnx": b"for another machine"})
    ours = shop.registry.push_files("ads/ctr", "ours", {"model.onnx": MODEL})
    index = shop.registry.push_index("ads/ctr", "3", {"s390x": other, "amd64": ours, "arm64": ours})

    facts = await shop.fetched(sha256=index)

    assert facts.files[0].sha256 == sha256(MODEL)


async def test_a_tag_that_is_no_number_is_named_by_the_revision(shop: Shop) -> None:
    shop.registry.push_files("ads/ctr", "v3.1-final", {"model.onnx": MODEL})

    facts = await shop.fetched(revision="v3.1-final", version=31)

    assert (facts.version, facts.revision) == (31, "v3.1-final")


async def test_a_pin_of_another_manifest_is_refused_before_a_layer_is_read(shop: Shop) -> None:
    digest = shop.registry.push_files("ads/ctr", "3", {"model.onnx": MODEL})

    reason, message = await shop.refused(sha256="0" * 64)

    assert reason is FailureReason.CHECKSUM_MISMATCH
    assert digest in message
    assert shop.relay.connections == 1


async def test_a_broken_connection_is_gone_on_from_where_it_broke(shop: Shop) -> None:
    content = MODEL + b"\x5a\x80\x80\x80\x02" + bytes(4 << 20)  # an unknown field of 4 MiB
    shop.registry.push_files("ads/ctr", "3", {"model.onnx": content})
    shop.relay.cuts = [1_500_000, 1_500_000]

    await shop.fetched()

    assert shop.progress.resumed == 2
    assert shop.progress.done == len(content)
    assert shop.relay.sent < len(content) * 1.5  # TLS and answers included; from the start it would be more


async def test_the_next_pod_of_the_node_takes_layers_from_the_cache(shop: Shop, tmp_path: Path) -> None:
    content = MODEL + b"\x5a\x80\x80\x80\x02" + bytes(4 << 20)
    shop.registry.push_layers("ads/ctr", "3", [a_tar({"models/model.onnx": content}, compressed=False)], TAR)
    shop.cache = NodeCache(tmp_path / "node", 64 << 20)
    first = await shop.fetched()
    sent, shop.folder = shop.relay.sent, tmp_path / "another-pod"
    shop.folder.mkdir()

    second = await shop.fetched()

    assert first == second
    assert sent > len(content)
    assert shop.relay.sent - sent < 10_000  # the manifest, with the next pod's own credentials


async def test_what_is_not_there_is_not_found(shop: Shop) -> None:
    reason, message = await shop.refused(uri=f"oci://{shop.relay.host}/ads/absent", version=9)

    assert reason is FailureReason.ARTEFACT_NOT_FOUND
    assert "ads/absent:9" in message


async def test_a_registry_that_is_not_listed_is_not_asked(shop: Shop) -> None:
    reason, message = await shop.refused(allowed_hosts=("registry.example.com",))

    assert reason is FailureReason.URI_NOT_ALLOWED
    assert "registry.example.com" in message
    assert shop.relay.connections == 0


@pytest.mark.parametrize(
    ("layer", "reason", "words"),
    [
        (a_tar({"models/../../x": b""}), FailureReason.ARTEFACT_INVALID, "not a relative path"),
        (
            a_tar({}, an_entry("models/model.onnx", tarfile.SYMTYPE, "/etc/passwd")),
            FailureReason.ARTEFACT_INVALID,
            "is a link",
        ),
        (
            a_tar({}, an_entry("models/model.onnx", tarfile.LNKTYPE, "etc/passwd")),
            FailureReason.ARTEFACT_INVALID,
            "is a link",
        ),
        (a_tar({}, an_entry("models/zero", tarfile.CHRTYPE)), FailureReason.ARTEFACT_INVALID, "a device"),
        (a_tar({"models/model.onnx": bytes(3 << 20)}), FailureReason.ARTEFACT_TOO_LARGE, "unpacks to more"),
        (a_tar({"elsewhere": bytes(3 << 20)}), FailureReason.ARTEFACT_TOO_LARGE, "unpacks to more"),
        (b"\x28\xb5\x2f\xfd....", FailureReason.ARTEFACT_INVALID, "zstd"),
        (a_tar({"models/model.onnx": MODEL})[:-40], FailureReason.ARTEFACT_INVALID, "not a whole tar"),
        (a_tar({"etc/motd": b"hello"}), FailureReason.ARTEFACT_NOT_FOUND, "model.onnx"),
    ],
    ids=["traversal", "symlink", "hardlink", "device", "bomb", "bomb-beside", "zstd", "cut", "no-model"],
)
async def test_a_bad_layer_is_refused_and_leaves_nothing(
    shop: Shop, layer: bytes, reason: FailureReason, words: str
) -> None:
    shop.registry.push_layers("ads/ctr", "3", [layer])

    found, message = await shop.refused(max_artefact_bytes=2 << 20)

    assert found is reason
    assert words in message
    assert list(shop.folder.iterdir()) == []
