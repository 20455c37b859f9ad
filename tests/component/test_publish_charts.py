"""`make charts REGISTRY=…`: what a cluster gets that installs from the registry, with no value set."""

from __future__ import annotations

import hashlib
import json
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from builders.cosign_stand_in import install_cosign
from documented.pages import ROOT
from fixtures.go_programs import running_registry
from tidegate_localcluster import signing
from tidegate_localcluster.publish_charts import run_publisher


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    """The path of a project in a registry on loopback."""
    with running_registry(tmp_path / "registry.log") as address:
        yield f"{address}/tidegate"


def render(helm: Path, registry: str, chart: str, version: str) -> list[dict[str, object]]:
    command = [
        helm,
        "template",
        "tidegate",
        f"oci://{registry}/charts/{chart}",
        "--version",
        version,
        "--plain-http",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return [body for body in yaml.load_all(done.stdout, Loader=yaml.CSafeLoader) if body]


def test_a_pushed_chart_installs_the_images_of_its_registry(
    helm: Path, registry: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (ROOT / "charts" / "tidegate" / "values.yaml").read_bytes()
    options = [
        "--version",
        "1.2.3",
        "--tag",
        "t7",
        "--root",
        str(ROOT),
        "--output",
        str(tmp_path / "packages"),
    ]
    assert run_publisher([registry, *options]) == 0
    assert (
        f"helm upgrade --install tidegate oci://{registry}/charts/tidegate --version 1.2.3"
        in capsys.readouterr().err
    )
    assert {path.name for path in (tmp_path / "packages").iterdir()} == {
        "tidegate-1.2.3.tgz",
        "tidegate-crds-1.2.3.tgz",
    }
    text = yaml.safe_dump_all(render(helm, registry, "tidegate", "1.2.3"))
    for image in ("operator", "gateway", "dataplane", "triton-cpu"):
        assert f"{registry}/{image}:t7" in text, image
    assert "tidegate.local" not in text
    kinds = {body["kind"] for body in render(helm, registry, "tidegate-crds", "1.2.3")}
    assert kinds == {"CustomResourceDefinition"}
    assert (ROOT / "charts" / "tidegate" / "values.yaml").read_bytes() == before


def test_cosign_signs_the_digests_that_the_registry_has(
    helm: Path, registry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del helm
    cosign = install_cosign(tmp_path, monkeypatch)
    options = ["--root", str(ROOT), "--output", str(tmp_path / "packages"), "--version", "1.2.3"]
    options += ["--cosign-key", "awskms:///alias/charts", "--cosign-options=--tlog-upload=false"]
    assert run_publisher([registry, *options]) == 0

    host, _, project = registry.partition("/")
    digests = dict[str, str]()
    for chart in ("tidegate-crds", "tidegate"):
        manifest = f"http://{host}/v2/{project}/charts/{chart}/manifests/1.2.3"
        with urllib.request.urlopen(manifest, timeout=30) as answer:
            digests[chart] = f"sha256:{hashlib.sha256(answer.read()).hexdigest()}"
    flags = ["--key", "awskms:///alias/charts", "--yes", "--allow-http-registry", "--tlog-upload=false"]
    assert [call["arguments"] for call in cosign.calls] == [
        ["sign", *flags, f"{registry}/charts/{chart}@{digest}"] for chart, digest in digests.items()
    ]


def test_without_cosign_nothing_is_pushed(
    helm: Path,
    registry: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    del helm
    monkeypatch.setattr(signing, "which", {}.get)
    options = ["--root", str(ROOT), "--output", str(tmp_path), "--cosign-key", "cosign.key"]
    assert run_publisher([registry, *options]) == 1
    assert "cosign is not on PATH" in capsys.readouterr().err
    with urllib.request.urlopen(f"http://{registry.partition('/')[0]}/v2/_catalog", timeout=30) as answer:
        assert not json.load(answer)["repositories"]


def test_a_registry_that_nobody_serves_ends_with_its_name(
    helm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    del helm  # builds it where it is missing
    options = ["--root", str(ROOT), "--output", str(tmp_path)]
    assert run_publisher(["localhost:1/tidegate", *options]) == 1
    assert "oci://localhost:1/tidegate/charts" in capsys.readouterr().err


def test_a_key_that_is_not_there_signs_nothing(
    helm: Path, registry: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    del helm
    options = [
        "--root",
        str(ROOT),
        "--output",
        str(tmp_path),
        "--sign",
        "nobody",
        "--keyring",
        str(tmp_path / "none.gpg"),
    ]
    assert run_publisher([registry, *options]) == 1
    assert "none.gpg" in capsys.readouterr().err
    assert list(tmp_path.glob("*.tgz*")) == []
    with urllib.request.urlopen(f"http://{registry.partition('/')[0]}/v2/_catalog", timeout=30) as answer:
        assert not json.load(answer)["repositories"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["https://registry.example.com/tidegate"], "is not a registry: name it without a scheme"),
        (["/"], "is not a registry"),
        (["registry.example.com", "--keyring", "k.gpg"], "--keyring needs --sign"),
    ],
)
def test_what_is_no_registry_is_a_usage_error(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run_publisher(arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
