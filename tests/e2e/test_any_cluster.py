"""A first answer on any cluster: images in a registry, and docs/how-to/any-cluster.md typed literally."""

from __future__ import annotations

import hashlib
import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from builders.cosign_stand_in import install_cosign
from builders.deleted_access import wait_until_unknown
from documented.pages import ROOT, Block, name
from documented.tutorial import run, steps
from fixtures.go_programs import running_registry
from fixtures.installed import Space
from tidegate_localcluster import publish_images
from tidegate_localcluster.cluster import Supplies
from tidegate_localcluster.demo.object_store import BUCKET, EXAMPLE_IMAGE, OBJECT_STORE, PORT, ObjectStore
from tidegate_localcluster.image_recipes import ImageName
from tidegate_localcluster.ports import find_unused_port

PAGE = ROOT / "docs" / "how-to" / "any-cluster.md"
PUSHED = ImageName.OBJECT_STORE
"""The smallest image with a program in it; the way of all others is the same."""


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    """A registry on loopback, as host:port."""
    with running_registry(tmp_path / "registry.log") as address:
        yield address


def test_an_image_is_pushed_to_a_registry(
    cluster_supplies: Supplies,
    registry: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    del cluster_supplies  # builds what is missing, and needs root as buildah does
    monkeypatch.setattr(publish_images, "PUBLISHED_IMAGES", (PUSHED,))
    monkeypatch.setattr(publish_images, "is_docker_running", lambda: False)

    cosign = install_cosign(tmp_path, monkeypatch)

    arguments = ["--tag", "e2e", "--root", str(ROOT), "--cosign-key", "cosign.key"]
    assert publish_images.run_publisher([f"{registry}/tidegate", *arguments]) == 0

    assert (
        f"--set images.registry={registry}/tidegate --set-string images.operator.tag=e2e"
        in capsys.readouterr().err
    )
    repository = f"http://{registry}/v2/tidegate/{PUSHED}"
    with urllib.request.urlopen(f"{repository}/manifests/e2e", timeout=30) as answer:
        content = answer.read()
    manifest, digest = json.loads(content), f"sha256:{hashlib.sha256(content).hexdigest()}"
    signed, attested = cosign.calls
    assert signed["arguments"][0] == "sign"
    assert attested["arguments"][:3] == ["attest", "--key", "cosign.key"]
    for call in (signed, attested):
        assert call["arguments"][-1] == f"{registry}/tidegate/{PUSHED}@{digest}"
    assert attested["predicate"]["bomFormat"] == "CycloneDX"
    assert "gofakes3" in json.dumps(attested["predicate"]["components"])
    with urllib.request.urlopen(f"{repository}/blobs/{manifest['config']['digest']}", timeout=30) as answer:
        config = json.load(answer)["config"]
    assert (config["Entrypoint"], config["User"]) == (["/gofakes3"], "65532:65532")
    # Where nothing listens, the push fails and names the image.
    assert publish_images.run_publisher(["localhost:1", "--root", str(ROOT)]) == 1
    assert f"pushing localhost:1/{PUSHED}" in capsys.readouterr().err


def _typed(space: Space, gateway: int, store: int) -> list[Block]:
    """The page, with the namespace and free ports of the test for those that it names."""
    replaced = {
        "8080:8080": f"{gateway}:8080",
        "localhost:8080": f"localhost:{gateway}",
        "9000:9000": f"{store}:9000",
        "localhost:9000": f"localhost:{store}",
        "first-model/ask.py": f"first-model/ask.py localhost:{gateway} {space.namespace}",
        "default/double": f"{space.namespace}/double",
        "-n default": f"-n {space.namespace}",
        "registry.example.com/tidegate": "tidegate.local",
    }
    text = PAGE.read_text()
    for documented, typed in replaced.items():
        assert documented in text
        text = text.replace(documented, typed)
    return [block for block in steps(text, name(PAGE)) if not block.not_run]


def _environment(space: Space, folder: Path) -> dict[str, str]:
    """The cluster's kubeconfig with a context of another namespace, and kubectl on the path."""
    config = yaml.safe_load(space.installed.cluster.files.kubeconfig.read_text())
    for context in config["contexts"]:
        context["context"]["namespace"] = "not-this-one"
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(config))
    kubectl = space.installed.cluster.read_plan().binaries["kubectl"]
    return {"KUBECONFIG": str(kubeconfig), "PATH": f"{kubectl.parent}:{os.environ['PATH']}"}


def _load_example_image(space: Space, supplies: Supplies) -> None:
    """Give the node's store the image under the name that the example has."""
    space.installed.cluster.load_image(supplies.images[OBJECT_STORE].archive, EXAMPLE_IMAGE)


def test_who_types_the_page_has_an_answer_by_curl_and_by_tritonclient(
    space: Space, cluster_supplies: Supplies, tmp_path: Path
) -> None:
    _load_example_image(space, cluster_supplies)
    for path in ROOT.iterdir():
        (tmp_path / path.name).symlink_to(path)
    typed = _typed(space, find_unused_port("127.0.0.1"), find_unused_port("127.0.0.1"))
    environment = _environment(space, tmp_path)

    printed = run(typed, tmp_path, environment, timeout_s=400)

    assert any('"data":[42.0]' in output for output in printed)
    assert any("[42.  8.]" in output for output in printed)
    # The page has deleted its objects: the same question has no answer now.
    wait_until_unknown(space.installed.endpoints.gateway, f"{space.namespace}/double", "double")


def test_the_demo_hands_its_models_to_pods_of_any_cluster(
    space: Space, cluster_supplies: Supplies, tmp_path: Path
) -> None:
    (tmp_path / "movielens" / "1").mkdir(parents=True)
    (tmp_path / "movielens" / "1" / "model.onnx").write_bytes(b"version 1")
    image = cluster_supplies.images[OBJECT_STORE].ref

    ObjectStore(space.kubectl, space.namespace, image).upload_folder(tmp_path)

    with space.kubectl.forward_port(f"service/{OBJECT_STORE}", PORT, space.namespace) as address:
        url = f"http://{address}/{BUCKET}/movielens/1/model.onnx"
        with urllib.request.urlopen(url, timeout=30) as answer:
            assert answer.read() == b"version 1"
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(url.replace("/1/", "/2/"), timeout=30)
