"""Documents of images, made from archives and locks of a few packages."""

import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tidegate_localcluster.buildah import ignore_progress
from tidegate_localcluster.errors import LocalClusterError
from tidegate_localcluster.image_files import open_image
from tidegate_localcluster.image_parts import BuildInputs, PythonPackages
from tidegate_localcluster.image_recipes import RECIPES, ImageName
from tidegate_localcluster.rootfs import BaseSystem
from tidegate_localcluster.sbom import SbomError, render_sbom
from tidegate_localcluster.software import parse_build_info, parse_dpkg_status, parse_lock

NOW = datetime(2026, 1, 2, tzinfo=UTC)
DIST_PACKAGES = "usr/local/lib/python3.11/dist-packages"
LOCK = """\
kopf==1.45.2 \\
    --hash=sha256:{0} \\
    --hash=sha256:{1}
    # via tidegate
colorama==0.4.6 ; sys_platform == 'win32' \\
    --hash=sha256:{0}
Typing.Extensions==4.15.0 ; python_full_version < '3.13' \\
    --hash=sha256:{1}
""".format("a" * 64, "b" * 64)
STATUS = """\
Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2.36-9+deb12u10
Description: GNU C Library
 Package: of nobody

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1
"""
BUILD_INFO = """\
/bin/coredns: go1.26.8
\tpath\ttidegate.io/localcluster/cmd/coredns
\tmod\ttidegate.io/localcluster\t(devel)\t
\tdep\tgithub.com/beorn7/perks\tv1.0.1\th1:VlbK=
\tdep\tk8s.io/api\tv0.0.0
\t=>\tk8s.io/other\tv0.36.3\th1:abc=
\tbuild\tCGO_ENABLED=0
"""


def an_archive(path: Path, *layers: Mapping[str, str]) -> Path:
    """What `docker save` writes of an image with these files in its layers."""
    names = [f"{number}.tar" for number in range(len(layers))]
    manifest = [{"Config": "config.json", "Layers": names}]
    config = {"config": {"User": "65532", "Labels": {"org.opencontainers.image.revision": "abc"}}}
    contents = {"manifest.json": json.dumps(manifest).encode(), "config.json": json.dumps(config).encode()}
    for name, files in zip(names, layers, strict=True):
        contents[name] = a_tar({file: text.encode() for file, text in files.items()})
    path.write_bytes(a_tar(contents))
    return path


def a_tar(contents: Mapping[str, bytes]) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as tar:
        for name, content in contents.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return target.getvalue()


def metadata(name: str, version: str, *lines: str) -> str:
    return "\n".join([f"Name: {name}", f"Version: {version}", *lines, "", "Text"])


def in_image(*distributions: tuple[str, str]) -> Mapping[str, str]:
    return {
        f"{DIST_PACKAGES}/{name}-{version}.dist-info/METADATA": metadata(name, version)
        for name, version in distributions
    }


GOOD = (("kopf", "1.45.2"), ("typing_extensions", "4.15.0"), ("tidegate", "1.2.3"))


@pytest.fixture
def workshop(tmp_path: Path) -> BuildInputs:
    """A checkout whose operator has two packages, installed in the cache."""
    root = tmp_path / "repository"
    (root / "images/operator").mkdir(parents=True)
    (root / "images/operator/requirements.txt").write_text(LOCK)
    (root / "pyproject.toml").write_text('[project]\nname = "tidegate"\nversion = "1.2.3"\n')
    workshop = BuildInputs(
        source_root=root,
        cache=tmp_path / "cache",
        base=BaseSystem(tmp_path),
        find_binary=lambda name: tmp_path / name,
        progress=ignore_progress,
    )
    for part in RECIPES[ImageName.OPERATOR].runtime_parts:
        if isinstance(part, PythonPackages):
            said = {
                "kopf": ("License-Expression: MIT",),
                "typing_extensions": ("Classifier: License :: OSI Approved :: Some License",),
            }
            for name, lines in said.items():
                folder = part.installed_folder(workshop) / f"{name}-1.dist-info"
                folder.mkdir(parents=True)
                (folder / "METADATA").write_text(metadata(name, "1", *lines))
    return workshop


def described(workshop: BuildInputs, folder: Path, *layers: Mapping[str, str]) -> Any:
    # What it imports takes a second, in each process that collects tests.
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    text = render_sbom(ImageName.OPERATOR, an_archive(folder / "image.tar", *layers), workshop, NOW)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    return json.loads(text)


def test_a_document_names_what_is_in_the_image_and_fits_the_schema(
    workshop: BuildInputs, tmp_path: Path
) -> None:
    document = described(workshop, tmp_path, {"var/lib/dpkg/status": STATUS}, in_image(*GOOD))
    found = {component["name"]: component for component in document["components"]}
    assert {name: component.get("purl") for name, component in found.items()} == {
        "kopf": "pkg:pypi/kopf@1.45.2",
        "typing-extensions": "pkg:pypi/typing-extensions@4.15.0",
        "libc6": "pkg:deb/debian/libc6@2.36-9%2Bdeb12u10?arch=amd64&distro=debian-12",
        "tidegate": None,
    }
    assert found["tidegate"]["version"] == "1.2.3"
    assert found["kopf"]["licenses"] == [{"license": {"id": "MIT"}}]
    assert found["typing-extensions"]["licenses"] == [{"license": {"name": "Some License"}}]
    (files,) = found["kopf"]["externalReferences"]
    assert [entry["content"] for entry in files["hashes"]] == ["a" * 64, "b" * 64]
    assert document["metadata"]["component"]["properties"] == [
        {"name": "org.opencontainers.image.revision", "value": "abc"}
    ]


def test_the_same_image_makes_the_same_document(workshop: BuildInputs, tmp_path: Path) -> None:
    first = described(workshop, tmp_path, in_image(*GOOD))
    assert described(workshop, tmp_path, in_image(*GOOD)) == first


@pytest.mark.parametrize(
    ("distributions", "said"),
    [
        ([*GOOD, ("pip", "23.0.1")], "pip is 23.0.1, and not there by the lock"),
        (GOOD[1:], "kopf is not there, and 1.45.2 by the lock"),
        ([("kopf", "1.45.1"), *GOOD[1:]], r"kopf is 1\.45\.1, and 1\.45\.2 by the lock"),
    ],
    ids=["more", "less", "another-version"],
)
def test_an_image_that_is_not_what_its_lock_says_gets_no_document(
    workshop: BuildInputs, tmp_path: Path, distributions: Sequence[tuple[str, str]], said: str
) -> None:
    with pytest.raises(SbomError, match=f"operator was not built from .* of this checkout: {said}"):
        described(workshop, tmp_path, in_image(*distributions))


def test_files_are_as_the_last_layer_leaves_them(tmp_path: Path) -> None:
    archive = an_archive(
        tmp_path / "image.tar",
        {"etc/kept": "old", "etc/gone": "x", "opt/a/b": "x", "var/x": "x"},
        {"etc/kept": "new", "etc/.wh.gone": "", ".wh.opt": "", "var/.wh..wh..opq": "", "var/y": "y"},
    )
    with open_image(archive) as image:
        assert sorted(image.files) == ["etc/kept", "var/y"]
        assert image.read_text("etc/kept") == "new"
        assert image.config["User"] == "65532"
        with pytest.raises(LocalClusterError, match="the image has no file /etc/gone"):
            image.read_text("etc/gone")


def test_what_is_no_archive_of_an_image_is_refused(tmp_path: Path) -> None:
    (tmp_path / "image.tar").write_bytes(a_tar({"file": b"x"}))
    with (
        pytest.raises(LocalClusterError, match=r"image\.tar is no archive of one image"),
        open_image(tmp_path / "image.tar"),
    ):
        pass


def test_a_lock_counts_for_the_machine_of_the_image() -> None:
    assert [(found.name, found.version) for found in parse_lock(LOCK, {})] == [
        ("kopf", "1.45.2"),
        ("typing-extensions", "4.15.0"),
    ]


def test_packages_that_were_removed_are_not_listed() -> None:
    assert [(found.name, found.version) for found in parse_dpkg_status(STATUS)] == [
        ("libc6", "2.36-9+deb12u10")
    ]


def test_modules_are_those_that_were_compiled_in() -> None:
    assert [(found.name, found.version, found.go_sum) for found in parse_build_info(BUILD_INFO)] == [
        ("stdlib", "1.26.8", ""),
        ("github.com/beorn7/perks", "v1.0.1", "h1:VlbK="),
        ("k8s.io/other", "v0.36.3", "h1:abc="),
    ]
    foreign = BUILD_INFO.replace("tidegate.io/localcluster\t(devel)\t", "example.com/server\tv1.2.0\th1:xyz=")
    assert "example.com/server" in {found.name for found in parse_build_info(foreign)}
