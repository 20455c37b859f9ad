"""The krew manifest of the command, and the archive that it names."""

from __future__ import annotations

import hashlib
import tarfile
from pathlib import Path

import pytest
import yaml

from tidegate_localcluster import publish_plugin
from tidegate_localcluster.buildah import ImageBuildError
from tidegate_localcluster.publish_plugin import PluginError, describe_plugin, main, make_zipapp, pack_archive

URL = "https://example.com/plugins"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "tidegate"\nversion = "1.2.3"\n')
    (tmp_path / "LICENSE").write_text("the licence\n")
    return tmp_path


def test_the_manifest_names_the_archive_that_krew_unpacks(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def write_program(_root: Path, target: Path, _progress: object) -> None:
        target.parent.mkdir(parents=True)
        target.write_bytes(b"#!/usr/bin/env python3\n")

    monkeypatch.setattr(publish_plugin, "make_zipapp", write_program)
    monkeypatch.setattr(publish_plugin.platform, "machine", lambda: "aarch64")
    output = checkout / "out"
    assert main([f"{URL}/", "--root", str(checkout), "--output", str(output)]) == 0

    manifest = yaml.safe_load((output / "tidegate.yaml").read_text())
    (platform,) = manifest["spec"]["platforms"]
    archive = output / platform["uri"].removeprefix(f"{URL}/")
    assert archive.name == "tidegate-1.2.3-linux-arm64.tar.gz"
    assert platform["sha256"] == hashlib.sha256(archive.read_bytes()).hexdigest()
    assert platform["selector"] == {"matchLabels": {"os": "linux", "arch": "arm64"}}
    assert (manifest["metadata"]["name"], manifest["spec"]["version"]) == ("tidegate", "v1.2.3")
    with tarfile.open(archive) as packed:
        assert {entry.name: entry.mode for entry in packed} == {platform["bin"]: 0o755, "LICENSE": 0o644}
    assert f"kubectl krew install --manifest={output}/tidegate.yaml" in capsys.readouterr().err


def test_the_same_files_make_the_same_archive(checkout: Path) -> None:
    program = checkout / "tidegate.pyz"
    program.write_bytes(b"program")
    archives = [checkout / name for name in ("first.tar.gz", "second.tar.gz")]
    for archive in archives:
        program.touch()
        pack_archive(program, checkout / "LICENSE", archive)
    assert archives[0].read_bytes() == archives[1].read_bytes()


def test_an_architecture_without_a_name_in_krew_is_refused(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish_plugin.platform, "machine", lambda: "vax")
    with pytest.raises(PluginError, match="krew has no name for the architecture vax"):
        describe_plugin("1.2.3", checkout / "LICENSE", URL)


def test_what_is_no_address_is_refused_before_anything_is_made(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["example.com/plugins", "--root", str(checkout)])
    assert ended.value.code == 2
    assert "begins with https:// or http://" in capsys.readouterr().err


def test_without_uv_the_message_names_the_command_that_brings_it(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(checkout))
    monkeypatch.setattr(publish_plugin.sys, "executable", str(checkout / "python"))
    with pytest.raises(ImageBuildError, match="pip install uv"):
        make_zipapp(checkout, checkout / "tidegate.pyz", lambda _: None)
