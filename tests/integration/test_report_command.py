"""`tidegate report` against the real API server: everything that helps is in it, and no secret."""

from __future__ import annotations

import base64
import json
import stat
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from builders.inference import inference_body
from fixtures.command_line import CommandLine
from fixtures.control_plane import Kubectl, may

pytestmark = pytest.mark.usefixtures("crds")
CANARY = "hunter2-canary"
OURS = {"app.kubernetes.io/name": "tidegate", "app.kubernetes.io/instance": "tidegate"}


@pytest.fixture
def installed(kubectl: Kubectl, namespace: str) -> str:
    """A namespace with an Inference, and what looks like an installation, with secrets wherever one may put them."""
    inference = inference_body("ctr", model={"secretName": "keys"})
    pod = {
        "metadata": {"labels": {**OURS, "app.kubernetes.io/component": "controllers"}},
        "spec": {
            "nodeSelector": {"no": "where"},
            "containers": [
                {
                    "name": "x",
                    "image": "x",
                    "args": ["controllers", f"--password={CANARY}"],
                    "env": [{"name": "TIDEGATE_PROMETHEUS_URL", "value": f"http://u:{CANARY}@prometheus"}],
                }
            ],
        },
    }
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": "tidegate-controllers",
            "labels": {**OURS, "app.kubernetes.io/component": "controllers"},
            "annotations": {"team/note": CANARY},
        },
        "spec": {"selector": {"matchLabels": OURS}, "template": pod},
    }
    running = {"apiVersion": "v1", "kind": "Pod", **pod}
    running["metadata"] = {**pod["metadata"], "name": "tidegate-controllers-0"}
    running["spec"] = {**pod["spec"], "nodeSelector": {}, "nodeName": "nowhere"}
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "keys", "labels": {**OURS, "app.kubernetes.io/managed-by": "tidegate"}},
        "stringData": {"token": CANARY},
    }
    for body in ({**inference, "metadata": {"name": "ctr"}}, deployment, running, secret):
        kubectl.apply(body, namespace=namespace)
    status = {
        "containerStatuses": [{"name": "x", "ready": False, "restartCount": 1, "image": "x", "imageID": ""}]
    }
    patch = json.dumps({"status": {"phase": "Running", **status}})
    kubectl(
        *("patch", "pod", "tidegate-controllers-0", "-n", namespace, "--subresource=status"),
        *("--type=merge", "-p", patch),
    )
    return namespace


def unpacked(file: Path) -> Mapping[str, bytes]:
    if file.suffix == ".zip":
        with zipfile.ZipFile(file) as archive:
            return {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
    found: dict[str, bytes] = {}
    with tarfile.open(file) as tar:
        for entry in tar:
            content = tar.extractfile(entry)
            assert content is not None
            found[entry.name.partition("/")[2]] = content.read()
    return found


def report(command_line: CommandLine, namespace: str, file: Path, *arguments: str) -> Mapping[str, Any]:
    return command_line(
        "report", "-n", namespace, "--system-namespace", namespace, "--file", str(file), *arguments
    )


@pytest.mark.parametrize("ending", [".tar.gz", ".zip"])
@pytest.mark.no_rerun("a secret is seen")
def test_what_helps_is_in_it_and_no_secret_is(
    installed: str, command_line: CommandLine, tmp_path: Path, ending: str
) -> None:
    file = tmp_path / f"bundle{ending}"
    said = report(command_line, installed, file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    parts = unpacked(file)
    assert json.loads(parts["manifest.json"]) == {**said}
    assert {each["path"] for each in said["files"]} | {"manifest.json"} == parts.keys()
    everything = b"".join(parts.values())
    for secret in (CANARY.encode(), base64.b64encode(CANARY.encode())):
        assert secret not in everything
    [inference] = json.loads(parts["objects/inferences.json"])
    assert inference["spec"]["model"]["secretName"] == "keys"
    assert json.loads(parts["reports/status.json"])["kinds"]
    assert json.loads(parts["reports/analyze.json"])["findings"]
    assert json.loads(parts["reports/doctor.json"])["findings"]
    [deployment] = json.loads(parts["installation/deployments.json"])
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    assert container["env"] == [{"name": "TIDEGATE_PROMETHEUS_URL", "value": "[redacted]"}]
    assert said["redacted"] >= 3
    # There is no kubelet that has logs, and no xDS server: both are said.
    missing = {each["what"] for each in said["missing"]}
    logs = f"logs/{installed}/tidegate-controllers-0"
    assert {f"{logs}/x.log", f"{logs}/x.previous.log", "reports/xds-status.json"} <= missing


def test_who_may_not_read_everything_gets_the_rest_and_is_told(
    installed: str, command_line: CommandLine, kubectl: Kubectl, tmp_path: Path
) -> None:
    kubectl(
        *("create", "role", "reader", "-n", installed, "--verb=get,list"),
        "--resource=inferences.tidegate.io",
    )
    kubectl("create", "rolebinding", "reader", "-n", installed, "--role=reader", "--user=adam")
    may(kubectl, "adam", "list", "inferences.tidegate.io", installed)
    said = report(command_line, installed, tmp_path / "b.tar.gz", "--as", "adam")
    assert {each["path"] for each in said["files"]} >= {"objects/inferences.json", "reports/status.json"}
    missing = {each["what"]: each["why"] for each in said["missing"]}
    assert "adam" in missing["objects/pods.json"]
    assert "installation/pods.json" in missing


def test_nothing_is_written_over(installed: str, command_line: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "bundle.zip"
    file.write_text("mine")
    said = command_line.refused("report", "-n", installed, "--file", str(file))
    assert "is there already" in said
    assert file.read_text() == "mine"
