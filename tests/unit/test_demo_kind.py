"""`make demo-kind`: what Docker and kind are asked, and what is missing is named before anything starts."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from documented.pages import ROOT
from tidegate_localcluster.buildah import ignore_progress
from tidegate_localcluster.demo import kind, platforms
from tidegate_localcluster.demo.errors import DemoError
from tidegate_localcluster.demo.kind import KindPlatform
from tidegate_localcluster.image_parts import read_project_version
from tidegate_localcluster.image_recipes import ImageName

VERSION = read_project_version(ROOT)
IMAGE = f"kind.local/tidegate/operator:{VERSION}"


class Programs:
    """Stand-ins for docker, kind, kubectl and helm, alone on PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder / "bin", folder / "calls"
        self.folder.mkdir()
        for name in ("docker", "kind", "helm"):
            self.write(name, "")
        self.write("kubectl", 'case "$1" in config) echo kind-tidegate ;; *) echo "{}" ;; esac')

    def write(self, name: str, answer: str) -> None:
        """Let a program record its arguments, and answer."""
        script = self.folder / name
        script.write_text(f'#!/bin/sh\necho {name} "$@" >> {self.log}\n{answer}\n')
        script.chmod(script.stat().st_mode | stat.S_IXUSR)

    def calls(self, *names: str) -> list[str]:
        """What these programs were asked."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [line for line in lines if line.split()[0] in names]


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    found = Programs(tmp_path)

    class Found:
        """The kubectl and Helm of the demo."""

        def __init__(self, _home: Path) -> None: ...

        def ensure(self, names: list[str], _progress: object) -> dict[str, Path]:
            return {name: found.folder / name for name in names}

    monkeypatch.setenv("PATH", str(found.folder))
    monkeypatch.setattr(kind, "PUBLISHED_IMAGES", (ImageName.OPERATOR,))
    monkeypatch.setattr(platforms, "Binaries", Found)
    return found


def test_a_cluster_is_created_and_gets_the_images(programs: Programs, tmp_path: Path) -> None:
    site = KindPlatform(tmp_path, ROOT, VERSION).start(ignore_progress)

    kubeconfig = tmp_path / "kind" / "kubeconfig"
    dockerfile = ROOT / "images" / "operator" / "Dockerfile"
    assert programs.calls("docker", "kind") == [
        "docker info",
        "kind get clusters",
        f"kind create cluster --name tidegate --kubeconfig {kubeconfig} --wait 3m",
        f"docker build --file {dockerfile} --tag {IMAGE} --build-arg=VERSION={VERSION} {ROOT}",
        f"kind load docker-image {IMAGE} --name tidegate",
    ]
    assert site.values["images.operator"] == IMAGE
    assert site.kubectl.environment["KUBECONFIG"] == str(kubeconfig)
    assert site.kubectl_command == f"kubectl --kubeconfig {kubeconfig}"


def test_a_cluster_that_is_there_is_used_again(programs: Programs, tmp_path: Path) -> None:
    programs.write("kind", '[ "$1" != get ] || printf "other\\ntidegate\\n"')
    KindPlatform(tmp_path, ROOT, VERSION).start(ignore_progress)

    kubeconfig = tmp_path / "kind" / "kubeconfig"
    assert programs.calls("kind")[1] == f"kind export kubeconfig --name tidegate --kubeconfig {kubeconfig}"
    assert not [call for call in programs.calls("kind") if "create" in call]


def test_only_its_own_cluster_is_deleted(programs: Programs, tmp_path: Path) -> None:
    assert "is deleted" in KindPlatform(tmp_path, ROOT, VERSION).remove_demo(ignore_progress)
    kubeconfig = tmp_path / "kind" / "kubeconfig"
    assert programs.calls("kind") == [f"kind delete cluster --name tidegate --kubeconfig {kubeconfig}"]


@pytest.mark.parametrize(
    ("without", "message"),
    [
        ("kind", r"not on PATH: kind \(https://kind.sigs.k8s.io/.*`make demo` needs neither"),
        ("docker", r"not on PATH: docker \(https://docs.docker.com/"),
    ],
)
def test_a_missing_program_is_named_with_its_place(
    programs: Programs, tmp_path: Path, without: str, message: str
) -> None:
    (programs.folder / without).unlink()
    with pytest.raises(DemoError, match=message):
        KindPlatform(tmp_path, ROOT, VERSION).start(ignore_progress)
    assert programs.calls("docker", "kind") == []


def test_a_daemon_that_is_away_is_named(programs: Programs, tmp_path: Path) -> None:
    programs.write("docker", "exit 1")
    with pytest.raises(DemoError, match="does not answer `docker info`"):
        KindPlatform(tmp_path, ROOT, VERSION).start(ignore_progress)
    assert programs.calls("kind") == []
