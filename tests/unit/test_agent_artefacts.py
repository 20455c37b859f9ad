from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import zipfile
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest

from builders.desired import a_desired_state
from builders.features import USER_KEY, Hash, Lookup, LookupType, a_plan, of_user, write_table
from builders.onnx_models import a_model, a_tensor, with_external_data, write_artefact
from tidegate_dataplane.addresses import explain_refusal
from tidegate_dataplane.agent.artefacts import receive as receive_module
from tidegate_dataplane.agent.artefacts.checksum import FetchedFile, artefact_digest, hash_file
from tidegate_dataplane.agent.artefacts.credentials import SecretCredentials
from tidegate_dataplane.agent.artefacts.facts import ArtefactFacts
from tidegate_dataplane.agent.artefacts.fetch import fetch_artefact
from tidegate_dataplane.agent.artefacts.folder_source import folder_source
from tidegate_dataplane.agent.artefacts.partial_files import PartialFile
from tidegate_dataplane.agent.artefacts.paths import check_relative_path
from tidegate_dataplane.agent.artefacts.receive import DownloadProgress
from tidegate_dataplane.agent.artefacts.source import ArtefactSource, Download
from tidegate_dataplane.agent.artefacts.uri import ArtefactUri, parse_uri
from tidegate_dataplane.agent.refusals import ArtefactError
from tidegate_dataplane.contract import (
    DesiredState,
    FailureReason,
    FeatureTable,
    ModelFormat,
    OwnerKind,
    UriScheme,
)
from tidegate_dataplane.features.table_file import is_converted

MODEL = a_model([a_tensor("x", ["n", 1])], [a_tensor("y", ["n", 1])])


@pytest.fixture
def models(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    return folder


@pytest.fixture
def staging(tmp_path: Path) -> Path:
    folder = tmp_path / "staging"
    folder.mkdir()
    return folder


async def fetched(
    models: Path, staging: Path, *, progress: DownloadProgress | None = None, **order: Any
) -> ArtefactFacts:
    def open_source(uri: ArtefactUri, _: DesiredState) -> ArtefactSource:
        return folder_source(uri, file_root=models, pvc_root=models.parent / "claims")

    wanted = a_desired_state(**{"uri": f"file://{models}/ctr", **order})
    return await fetch_artefact(
        wanted, staging, open_source, progress or DownloadProgress(), partial_dir=staging.parent / "parts"
    )


async def refused(models: Path, staging: Path, **order: Any) -> tuple[FailureReason, str]:
    with pytest.raises(ArtefactError) as raised:
        await fetched(models, staging, **order)
    return raised.value.refusal.reason, raised.value.refusal.message


class TestUris:
    @pytest.mark.parametrize(
        ("text", "scheme", "authority", "path"),
        [
            ("file:///models/ctr", UriScheme.FILE, "", "models/ctr"),
            ("pvc://claim/a/b/", UriScheme.PVC, "claim", "a/b"),
            ("https://models.example.com/ctr", UriScheme.HTTPS, "models.example.com", "ctr"),
            ("https://models.example.com:8443/ctr", UriScheme.HTTPS, "models.example.com:8443", "ctr"),
            ("s3://bucket/models/ctr", UriScheme.S3, "bucket", "models/ctr"),
            ("s3://bucket", UriScheme.S3, "bucket", ""),
            ("gs://bucket/models/ctr", UriScheme.GS, "bucket", "models/ctr"),
            (
                "oci://registry.example.com:5000/ads/ctr",
                UriScheme.OCI,
                "registry.example.com:5000",
                "ads/ctr",
            ),
            ("hf://Qwen/DIN-base/onnx", UriScheme.HF, "Qwen", "DIN-base/onnx"),
        ],
    )
    def test_known_ones(self, text: str, scheme: UriScheme, authority: str, path: str) -> None:
        uri = parse_uri(text)

        assert (uri.scheme, uri.authority, uri.path) == (scheme, authority, path)

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "models/ctr",
            "http://models.example.com/ctr",
            "gs:///no-bucket",
            "oci://registry.example.com",
            "hf://organisation",
            "ftp://host/ctr",
            "file://other-host/models/ctr",
            "file:///models/../etc",
            "file:///models/%2e%2e/etc",
            "s3:///no-bucket",
            "pvc:///path",
            "https://user:secret@host/ctr",
            "https://host/ctr?token=secret",
            "https://host:port/ctr",
            "file:///models/a\nb",
            "s3://[bucket/x",
        ],
    )
    def test_others_are_refused(self, text: str) -> None:
        with pytest.raises(ArtefactError) as raised:
            parse_uri(text)

        assert raised.value.refusal.reason is FailureReason.URI_NOT_ALLOWED
        assert "secret" not in raised.value.refusal.message


@pytest.mark.parametrize(
    ("address", "allowed"),
    [
        ("93.184.216.34", True),
        ("10.0.0.7", True),
        ("fd12::1", True),
        ("169.254.169.254", False),
        ("169.254.0.1", False),
        ("fe80::1%eth0", False),
        ("fd00:ec2::254", False),
        ("100.100.100.200", False),
        ("168.63.129.16", False),
        ("127.0.0.1", False),
        ("127.8.8.8", False),
        ("::1", False),
        ("0.0.0.0", False),
        ("::", False),
        ("224.0.0.1", False),
        ("::ffff:169.254.169.254", False),
        ("::ffff:127.0.0.1", False),
        ("64:ff9b::a9fe:a9fe", False),
        ("2002:a9fe:a9fe::1", False),
        ("models.example.com", False),
    ],
)
def test_which_addresses_are_fetched_from(address: str, *, allowed: bool) -> None:
    assert (explain_refusal(address, allow_loopback=False) is None) is allowed


def test_loopback_can_be_allowed_and_nothing_else_with_it() -> None:
    assert explain_refusal("127.0.0.1", allow_loopback=True) is None
    assert explain_refusal("::ffff:127.0.0.1", allow_loopback=True) is None
    assert explain_refusal("169.254.169.254", allow_loopback=True) is not None


@pytest.mark.parametrize("path", ["", "/x", "../x", "a/../../x", "a\\b", "a\0b", ".", "x" * 2000])
def test_paths_that_leave_their_folder_are_refused(path: str) -> None:
    with pytest.raises(ArtefactError):
        check_relative_path(path, subject="file")


class TestChecksum:
    def test_one_file_is_its_own(self) -> None:
        assert artefact_digest([FetchedFile("model.onnx", 3, "ab")]) == "ab"

    def test_several_are_what_sha256sum_says(self, tmp_path: Path) -> None:
        contents = {"b/w.data": b"weights", "a.data": b"more", "model.onnx": b"model", "Z": b""}
        for name, content in contents.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_bytes(content)
        files = [FetchedFile(name, len(c), hashlib.sha256(c).hexdigest()) for name, c in contents.items()]

        shell = "find . -type f -printf '%P\\n' | LC_ALL=C sort | xargs sha256sum | sha256sum"
        said = subprocess.run(["sh", "-c", shell], cwd=tmp_path, capture_output=True, text=True, check=True)

        assert artefact_digest(files) == said.stdout.split()[0]


class TestFolders:
    async def test_a_model_and_its_external_data(self, models: Path, staging: Path) -> None:
        model, data = with_external_data("w.data")
        write_artefact(models / "ctr", 1, model, **{"w.data": data, "README.md": b"not part of it"})
        progress = DownloadProgress()

        facts = await fetched(models, staging, progress=progress)

        assert sorted(os.listdir(staging)) == ["model.onnx", "w.data"]
        assert [file.path for file in facts.files] == ["model.onnx", "w.data"]
        assert (facts.batched, facts.inputs[0].name) == (True, "x")
        assert progress.done == progress.total == len(data) + len(model.SerializeToString())

    async def test_external_data_that_is_cut_short(self, models: Path, staging: Path) -> None:
        model, data = with_external_data("w.data")
        write_artefact(models / "ctr", 1, model, **{"w.data": data[:-1]})

        reason, message = await refused(models, staging)

        assert reason is FailureReason.ARTEFACT_INVALID
        assert f"has {len(data) - 1} bytes and the model reads {len(data)}" in message

    async def test_external_data_that_is_not_there(self, models: Path, staging: Path) -> None:
        write_artefact(models / "ctr", 1, with_external_data("w.data")[0])

        reason, message = await refused(models, staging)

        assert reason is FailureReason.ARTEFACT_NOT_FOUND
        assert "w.data" in message

    async def test_a_version_that_is_not_there_is_told_with_the_layout(
        self, models: Path, staging: Path
    ) -> None:
        write_artefact(models / "ctr", 1, MODEL)

        reason, message = await refused(models, staging, version=2)

        assert reason is FailureReason.ARTEFACT_NOT_FOUND
        assert "<uri>/<version>/model.onnx" in message

    async def test_a_wrong_pin_names_both_checksums(self, models: Path, staging: Path) -> None:
        write_artefact(models / "ctr", 1, MODEL)

        reason, message = await refused(models, staging, sha256="0" * 64)

        assert reason is FailureReason.CHECKSUM_MISMATCH
        assert hashlib.sha256(MODEL.SerializeToString()).hexdigest() in message
        assert "0" * 64 in message

    async def test_the_right_pin_is_accepted(self, models: Path, staging: Path) -> None:
        write_artefact(models / "ctr", 1, MODEL)
        pin = hashlib.sha256(MODEL.SerializeToString()).hexdigest()

        assert (await fetched(models, staging, sha256=pin)).digest == pin

    async def test_a_link_out_of_the_root_is_refused(self, models: Path, staging: Path) -> None:
        secret = models.parent / "secret"
        secret.write_bytes(MODEL.SerializeToString())
        (models / "ctr" / "1").mkdir(parents=True)
        (models / "ctr" / "1" / "model.onnx").symlink_to(secret)

        reason, message = await refused(models, staging)

        assert reason is FailureReason.URI_NOT_ALLOWED
        assert "is a link out of" in message
        assert os.listdir(staging) == []

    async def test_a_linked_folder_out_of_the_root_is_refused(self, models: Path, staging: Path) -> None:
        write_artefact(models.parent / "elsewhere", 1, MODEL)
        (models / "ctr").symlink_to(models.parent / "elsewhere")

        reason, _ = await refused(models, staging)

        assert reason is FailureReason.URI_NOT_ALLOWED

    async def test_a_link_within_the_root_is_followed(self, models: Path, staging: Path) -> None:
        write_artefact(models / "blobs", 1, MODEL)
        (models / "ctr").symlink_to(models / "blobs")

        assert (await fetched(models, staging)).files[0].size == len(MODEL.SerializeToString())

    async def test_a_link_in_circles_is_not_found(self, models: Path, staging: Path) -> None:
        (models / "ctr").symlink_to(models / "ctr")

        assert (await refused(models, staging))[0] is FailureReason.ARTEFACT_NOT_FOUND

    async def test_a_pipe_does_not_block_the_agent(self, models: Path, staging: Path) -> None:
        (models / "ctr" / "1").mkdir(parents=True)
        os.mkfifo(models / "ctr" / "1" / "model.onnx")

        assert (await refused(models, staging))[0] is FailureReason.ARTEFACT_INVALID

    @pytest.mark.parametrize("uri", ["file:///etc", "file:///", "file:///modelsX/ctr"])
    async def test_only_the_root_may_be_named(self, models: Path, staging: Path, uri: str) -> None:
        assert (await refused(models, staging, uri=uri))[0] is FailureReason.URI_NOT_ALLOWED

    async def test_without_a_root_file_uris_are_refused_with_the_setting(
        self, tmp_path: Path, staging: Path
    ) -> None:
        reason, message = await refused(tmp_path / "absent", staging)

        assert reason is FailureReason.URI_NOT_ALLOWED
        assert "models.hostPath" in message

    async def test_a_claim_is_read_where_it_is_mounted(self, models: Path, staging: Path) -> None:
        write_artefact(models.parent / "claims" / "weights" / "ctr", 1, MODEL)

        assert (await fetched(models, staging, uri="pvc://weights/ctr")).files

    async def test_a_claim_that_is_not_mounted_is_named(self, models: Path, staging: Path) -> None:
        reason, message = await refused(models, staging, uri="pvc://absent/ctr")

        assert reason is FailureReason.URI_NOT_ALLOWED
        assert "'absent'" in message

    async def test_too_many_bytes_in_all(self, models: Path, staging: Path) -> None:
        model, data = with_external_data("w.data")
        write_artefact(models / "ctr", 1, model, **{"w.data": data})

        reason, message = await refused(models, staging, max_artefact_bytes=len(data))

        assert reason is FailureReason.ARTEFACT_TOO_LARGE
        assert str(len(data)) in message

    async def test_a_full_disk_is_told_as_such(
        self, models: Path, staging: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        write_artefact(models / "ctr", 1, MODEL)
        monkeypatch.setattr(PartialFile, "append", full)

        reason, message = await refused(models, staging)

        assert reason is FailureReason.FETCH_FAILED
        assert "disk is full" in message

    async def test_a_disk_that_is_too_small_is_told_before(
        self, models: Path, staging: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        usage = type("usage", (), {"free": 10})
        write_artefact(models / "ctr", 1, MODEL)
        monkeypatch.setattr(receive_module.shutil, "disk_usage", lambda _: usage)

        reason, message = await refused(models, staging)

        assert reason is FailureReason.FETCH_FAILED
        assert "10 left" in message

    async def test_too_large_a_configuration_is_refused(self, models: Path, staging: Path) -> None:
        write_artefact(models / "ctr", 1, MODEL)
        (models / "ctr" / "config.pbtxt").write_bytes(b"#" * (2 << 20))

        assert (await refused(models, staging))[0] is FailureReason.ARTEFACT_INVALID


class TestPython:
    async def test_it_is_refused_before_anything_is_fetched(self, models: Path, staging: Path) -> None:
        reason, message = await refused(models, staging, format=ModelFormat.PYTHON)

        assert reason is FailureReason.FORMAT_NOT_ALLOWED
        assert "models.allowPython" in message

    async def test_the_whole_folder_comes(self, models: Path, staging: Path) -> None:
        folder = models / "ctr" / "1"
        (folder / "lib").mkdir(parents=True)
        (folder / "__pycache__").mkdir()
        for name in ("model.py", "lib/part.py", "__pycache__/model.pyc"):
            (folder / name).write_text("pass")

        facts = await fetched(models, staging, format=ModelFormat.PYTHON, allow_python=True)

        assert [file.path for file in facts.files] == ["lib/part.py", "model.py"]

    async def test_without_model_py_it_is_not_found(self, models: Path, staging: Path) -> None:
        write_artefact(models / "ctr", 1, MODEL)

        reason, message = await refused(models, staging, format=ModelFormat.PYTHON, allow_python=True)

        assert reason is FailureReason.ARTEFACT_NOT_FOUND
        assert "model.py" in message


class TestCompiled:
    async def test_a_compiled_export_is_taken_where_code_is_allowed(
        self, models: Path, staging: Path
    ) -> None:
        publish_archive(models / "ctr", "model/data/aotinductor/model/model.so")

        facts = await fetched(models, staging, format=ModelFormat.TORCH_EXPORT, allow_python=True)

        assert [file.path for file in facts.files] == ["model.pt2"]
        assert facts.config_text == "max_batch_size: 4"

    async def test_its_code_is_not_run_where_code_is_not_allowed(self, models: Path, staging: Path) -> None:
        publish_archive(models / "ctr", "model/data/aotinductor/model/model.so")

        reason, message = await refused(models, staging, format=ModelFormat.TORCH_EXPORT)

        assert reason is FailureReason.FORMAT_NOT_ALLOWED
        assert "format TorchExport runs the artefact's own code" in message

    async def test_a_bare_export_is_refused_with_the_way_out(self, models: Path, staging: Path) -> None:
        publish_archive(models / "ctr", "model/models/model.json")

        reason, message = await refused(models, staging, format=ModelFormat.TORCH_EXPORT, allow_python=True)

        assert reason is FailureReason.ARTEFACT_INVALID
        assert "aoti_compile_and_package" in message

    async def test_an_archive_that_is_cut_short(self, models: Path, staging: Path) -> None:
        path = publish_archive(models / "ctr", "model/data/aotinductor/model/model.so")
        path.write_bytes(path.read_bytes()[:-10])

        reason, message = await refused(models, staging, format=ModelFormat.TORCH_EXPORT, allow_python=True)

        assert reason is FailureReason.ARTEFACT_INVALID
        assert "model.pt2 is no whole .pt2 archive" in message

    async def test_an_engine_needs_no_permission_for_code(self, models: Path, staging: Path) -> None:
        (models / "ctr" / "1").mkdir(parents=True)
        (models / "ctr" / "1" / "model.plan").write_bytes(b"ptrt")

        facts = await fetched(models, staging, format=ModelFormat.TENSORRT)

        assert [file.path for file in facts.files] == ["model.plan"]

    async def test_an_empty_engine(self, models: Path, staging: Path) -> None:
        (models / "ctr" / "1").mkdir(parents=True)
        (models / "ctr" / "1" / "model.plan").touch()

        reason, message = await refused(models, staging, format=ModelFormat.TENSORRT)

        assert (reason, message) == (FailureReason.ARTEFACT_INVALID, "model.plan is empty: publish it again")

    async def test_a_file_of_another_format_is_not_found(self, models: Path, staging: Path) -> None:
        write_artefact(models / "ctr", 1, a_model([a_tensor("x", ["n", 1])], [a_tensor("y", ["n", 1])]))

        reason, message = await refused(models, staging, format=ModelFormat.TENSORRT)

        assert reason is FailureReason.ARTEFACT_NOT_FOUND
        assert "of format TensorRT must be at <uri>/<version>/model.plan" in message


def publish_archive(folder: Path, *names: str) -> Path:
    """Version 1 as an archive like PyTorch's, with a config.pbtxt beside the versions."""
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text("max_batch_size: 4")
    path = folder / "1" / "model.pt2"
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, "content")
    return path


class TestFeatures:
    ORDER: ClassVar = {"kind": OwnerKind.FEATURE_COMPUTE, "format": ModelFormat.FEATURES, "uri": ""}

    async def test_tables_are_fetched_and_converted_under_their_names(
        self, models: Path, staging: Path
    ) -> None:
        parquet = write_table(models / "users.parquet", user_id=[1, 2], age=[30, 40])
        table = FeatureTable(name="profiles", entity="user", uri=f"file://{models}/users.parquet")
        plan = a_plan(Lookup(name="age", field=of_user("age"), type=LookupType.INT64), tables=[table])

        facts = await fetched(models, staging, plan=plan, **self.ORDER)

        (file,) = facts.files
        assert [path.name for path in (staging / "tables").iterdir()] == ["profiles.table"]
        assert is_converted(staging / file.path, hash_file(parquet))
        assert (file.path, file.size) == (
            "tables/profiles.table",
            (staging / "tables/profiles.table").stat().st_size,
        )
        assert facts.digest == file.sha256 == hash_file(parquet)
        assert (facts.inputs, facts.outputs, facts.batched) == (plan.inputs, plan.outputs, True)

    async def test_a_table_that_is_not_there_is_named(self, models: Path, staging: Path) -> None:
        table = FeatureTable(name="profiles", entity="user", uri=f"file://{models}/absent.parquet")
        plan = a_plan(Lookup(name="age", field=of_user("age"), type=LookupType.INT64), tables=[table])

        reason, message = await refused(models, staging, plan=plan, **self.ORDER)

        assert reason is FailureReason.ARTEFACT_NOT_FOUND
        assert "table 'profiles'" in message

    async def test_a_table_that_is_not_the_pinned_one_is_refused(self, models: Path, staging: Path) -> None:
        (models / "users.parquet").write_bytes(b"PAR1")
        pin, found = "0" * 64, hashlib.sha256(b"PAR1").hexdigest()
        table = FeatureTable(name="profiles", entity="user", uri=f"file://{models}/users.parquet", sha256=pin)

        reason, message = await refused(models, staging, plan=a_plan(tables=[table]), **self.ORDER)

        assert reason is FailureReason.CHECKSUM_MISMATCH
        assert f"table 'profiles' at {table.uri} has sha256 {found}" in message

    async def test_a_table_cannot_be_written_elsewhere(self, models: Path, staging: Path) -> None:
        (models / "users.parquet").write_bytes(b"PAR1")
        table = FeatureTable(name="../../evil", entity="user", uri=f"file://{models}/users.parquet")

        reason, _ = await refused(models, staging, plan=a_plan(tables=[table]), **self.ORDER)

        assert reason is FailureReason.ARTEFACT_INVALID

    async def test_a_plan_without_tables_needs_none(self, models: Path, staging: Path) -> None:
        plan = a_plan(Hash(name="h", field=USER_KEY, buckets=3))

        assert (await fetched(models, staging, plan=plan, **self.ORDER)).files == ()


@pytest.mark.no_rerun("a secret is seen")
def test_what_a_server_says_back_of_a_secret_is_not_repeated() -> None:
    credentials = SecretCredentials("models-ads", {"password": "correct-horse", "region": "eu"})

    assert credentials.redact_secrets("no user ads:correct-horse in eu") == "no user ads:… in eu"


async def test_a_size_that_is_a_lie_does_not_lift_the_limit(staging: Path) -> None:
    class Liar:
        @asynccontextmanager
        async def open(self, path: str) -> AsyncGenerator[Download, None]:
            if path == "config.pbtxt":
                raise ArtefactError(FailureReason.ARTEFACT_NOT_FOUND, path)

            async def endless() -> AsyncIterator[bytes]:
                while True:
                    yield bytes(1000)

            yield Download(10, endless())

        async def list(self, folder: str) -> None:
            del folder

    with pytest.raises(ArtefactError) as raised:
        await fetch_artefact(
            a_desired_state(max_artefact_bytes=100_000),
            staging,
            lambda *_: Liar(),
            DownloadProgress(),
            partial_dir=staging.parent / "parts",
        )

    assert raised.value.refusal.reason is FailureReason.ARTEFACT_TOO_LARGE


def test_a_file_that_is_whole_but_was_never_finished_begins_again(tmp_path: Path) -> None:
    part = PartialFile(tmp_path / "part")
    part.begin_content('"v1"', 4)
    part.append(b"ab")
    assert part.resume_point() is not None

    part.append(b"cd")
    part.close()
    assert part.resume_point() is None

    again = PartialFile(tmp_path / "part")
    again.load()
    assert again.size == 4
    assert again.resume_point() is None
