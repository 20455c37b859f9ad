"""`make images REGISTRY=…`: what is asked of Docker where it runs, and which registries are refused."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from documented.pages import ROOT
from tidegate_localcluster import publish_images
from tidegate_localcluster.buildah import ignore_progress
from tidegate_localcluster.image_parts import read_project_version
from tidegate_localcluster.image_recipes import ImageName
from tidegate_localcluster.images import ImageBuilder
from tidegate_localcluster.publish_images import (
    PUBLISHED_IMAGES,
    DockerPublisher,
    PushedImage,
    is_loopback,
    run_publisher,
)
from tidegate_localcluster.signing import Cosign, SigningError, read_digest

VERSION = read_project_version(ROOT)


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with each call of the programs `docker` and `kind`, which do nothing else."""
    log = tmp_path / "calls"
    for program in ("docker", "kind"):
        script = tmp_path / "bin" / program
        script.parent.mkdir(exist_ok=True)
        script.write_text(f'#!/bin/sh\necho {program} "$@" >> {log}\n')
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    monkeypatch.setenv("TIDEGATE_HOME", str(tmp_path / "home"))
    return log


def test_docker_builds_our_images_from_the_checkout_and_pushes_them(calls: Path) -> None:
    builder = ImageBuilder(calls.parent, ROOT)
    reference = f"r.example.com/t/operator:{VERSION}"

    DockerPublisher(builder, ROOT).publish_images({ImageName.OPERATOR: reference}, None, ignore_progress)

    dockerfile = ROOT / "images" / "operator" / "Dockerfile"
    assert calls.read_text().splitlines() == [
        f"docker build --file {dockerfile} --tag {reference} --build-arg=VERSION={VERSION} {ROOT}",
        f"docker push --quiet {reference}",
    ]


def test_docker_signs_the_digest_of_the_repository_that_it_pushed_to(
    calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest, other = f"sha256:{'a' * 64}", f"sha256:{'b' * 64}"
    script = calls.parent / "bin" / "docker"
    known = f"mirror.example.com/operator@{other}\\nr.example.com:5000/t/operator@{digest}"
    script.write_text(script.read_text() + f'[ "$1" != image ] || printf "{known}\\n"\n')
    pushed = list[PushedImage]()
    reference = f"r.example.com:5000/t/operator:{VERSION}"

    DockerPublisher(ImageBuilder(calls.parent, ROOT), ROOT).publish_images(
        {ImageName.OPERATOR: reference}, pushed.append, ignore_progress
    )

    [image] = pushed
    assert (image.name, image.reference) == (ImageName.OPERATOR, f"r.example.com:5000/t/operator@{digest}")
    assert f"docker save --output {image.archive} {reference}" in calls.read_text()


def test_a_digest_that_a_push_does_not_name_once_is_refused() -> None:
    first, second = f"sha256:{'a' * 64}", f"sha256:{'b' * 64}"
    assert read_digest(f"Digest: {first}\n{first}") == first
    for text in ("", f"{first} {second}"):
        with pytest.raises(SigningError, match="digests, so that nothing can be signed"):
            read_digest(text)


def test_a_tag_is_not_signed() -> None:
    with pytest.raises(SigningError, match=r"r.example.com/t/operator:1 names no digest"):
        Cosign("/nowhere/cosign", "k").sign_digest("r.example.com/t/operator:1", ignore_progress)


def test_what_is_loaded_into_kind_is_not_signed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run_publisher(["kind.local", "--kind", "dev", "--cosign-key", "k", "--root", str(ROOT)])
    assert ended.value.code == 2
    assert "omit one of them" in capsys.readouterr().err


def test_docker_builds_other_images_from_a_staged_context_and_kind_loads_them(calls: Path) -> None:
    builder = ImageBuilder(calls.parent, ROOT, binary=lambda _name, _progress: calls.parent / "bin" / "kind")
    publisher = DockerPublisher(builder, ROOT, kind_cluster="dev")

    publisher.publish_images({ImageName.OBJECT_STORE: "kind.local/object-store:1"}, None, ignore_progress)

    built, loaded = calls.read_text().splitlines()
    assert built.endswith("/object-store"), "the context is a folder of its own"
    assert str(ROOT) != built.split()[-1]
    assert loaded == "kind load docker-image kind.local/object-store:1 --name dev"


def test_kind_without_docker_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(publish_images, "is_docker_running", lambda: False)
    assert run_publisher(["kind.local", "--kind", "dev", "--root", str(ROOT)]) == 1
    assert "kind needs Docker" in capsys.readouterr().err


def test_plain_http_is_refused_where_docker_decides_about_it(
    calls: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_publisher(["registry.lan:5000/t", "--plain-http", "--root", str(ROOT)]) == 1
    assert (
        "name registry.lan:5000 in insecure-registries of /etc/docker/daemon.json" in capsys.readouterr().err
    )
    assert calls.read_text() == "docker info\n", "nothing is built"


def test_the_next_commands_have_the_tag_as_text(
    calls: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(publish_images, "PUBLISHED_IMAGES", (ImageName.OPERATOR,))
    del calls  # stands for Docker

    assert run_publisher(["r.example.com/t", "--tag", "20261101", "--root", str(ROOT)]) == 0

    install, apply = capsys.readouterr().err.splitlines()[-2:]
    for image in ("operator", "dataplane", "triton", "gateway"):
        assert f" --set-string images.{image}.tag=20261101 " in install
    assert apply == (
        'then: sed "s#tidegate.local.*#r.example.com/t/object-store:20261101#" examples/first-model/*.yaml '
        "| kubectl apply -f -"
    )


@pytest.mark.parametrize("registry", ["https://registry.example.com", ""])
def test_a_registry_with_a_scheme_or_without_a_name_is_refused(registry: str) -> None:
    with pytest.raises(SystemExit) as refused:
        run_publisher([registry])
    assert refused.value.code == 2


def test_every_image_of_the_chart_is_published() -> None:
    assert {"operator", "dataplane", "triton-cpu", "gateway"} < {*PUBLISHED_IMAGES}


@pytest.mark.parametrize(
    ("registry", "plain"),
    [
        ("localhost:5001", True),
        ("127.0.0.1/tidegate", True),
        ("localhost.example.com:5001/t", False),
        ("registry.example.com/localhost", False),
    ],
)
def test_tls_is_left_out_for_loopback_alone(registry: str, *, plain: bool) -> None:
    assert is_loopback(registry) is plain
