"""What only a whole cluster shows of the command line: logs of kubelets in a support bundle, a load test through a gateway."""

from __future__ import annotations

import base64
import json
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from fixtures.installed import Installed, Space, a_space
from tidegate_localcluster.demo.errors import CommandError
from tidegate_localcluster.demo.helm import NAMESPACE

COMPONENTS = ("controllers", "xds", "gateway", "web")


def unpacked(file: Path) -> Mapping[str, bytes]:
    """Every file of a bundle, by its path below the bundle's folder."""
    with tarfile.open(file) as archive:
        members = [member for member in archive.getmembers() if member.isfile()]
        found = {member.name.partition("/")[2]: archive.extractfile(member) for member in members}
        return {name: content.read() for name, content in found.items() if content is not None}


def secrets_of(space: Space) -> Iterator[bytes]:
    """What the installation's Secrets say, that is long enough to be found by chance nowhere."""
    listed = json.loads(space.kubectl.run("get", "secrets", "-n", NAMESPACE, "-o", "json"))
    for secret in listed["items"]:
        for name, value in (secret.get("data") or {}).items():
            content = base64.b64decode(value)
            if len(content) >= 16 and not name.endswith(".crt"):
                yield content


@pytest.fixture(scope="module")
def space(installed: Installed) -> Iterator[Space]:
    """A model that is served, for all tests of the module."""
    with a_space(installed, "e2e-command-line") as space:
        space.publish("probe", 1)
        space.inference()
        space.access()
        space.ready()
        space.answers(1)
        yield space


@pytest.mark.no_rerun("a secret is seen")
def test_a_support_bundle_has_every_process_log_and_no_secret(space: Space, tmp_path: Path) -> None:
    file = tmp_path / "bundle.tar.gz"
    said = json.loads(space.installed.tidegate("report", "--file", str(file), "-o", "json"))
    found = unpacked(file)

    logs = {name: content for name, content in found.items() if name.endswith(".log")}
    for component in COMPONENTS:
        for pod in space.installed.component(component):
            name = pod["metadata"]["name"]
            assert any(name in path and content.strip() for path, content in logs.items()), (name, list(logs))
    answers = json.loads(found["reports/xds-status.json"])
    assert {pod["metadata"]["name"] for pod in space.installed.component("xds")} == set(answers)
    inferences = json.loads(found["objects/inferences.json"])
    assert space.namespace in {each["metadata"]["namespace"] for each in inferences}
    secrets = list(secrets_of(space))
    assert secrets
    assert [path for path, content in found.items() for each in secrets if each in content] == []
    assert Path(said["file"]).name == file.name


def test_a_load_test_goes_through_a_gateway_to_the_model(space: Space) -> None:
    before = space.counted_at_rest("probe")
    name = f"{space.namespace}/probe"
    asked = ("bench", name, "--concurrency", "2", "--access")
    report = json.loads(space.installed.tidegate(*asked, name, "--for", "2s", "--errors", "0", "-o", "json"))
    # One more was sent beforehand, to see that the model takes them.
    space.counts_to("probe", before + report["sent"] + 1)
    assert report["answered"] == report["sent"] > 0
    assert (report["errors"], report["failures"], report["server"]) == ({}, [], None)
    assert "gateway" in report["way"]

    with pytest.raises(CommandError, match=r"NOT_FOUND|no such|not there|no route"):
        space.installed.tidegate(*asked, f"{space.namespace}/nobody", "--for", "1s")
