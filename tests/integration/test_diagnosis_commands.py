"""`tidegate analyze` against the real API server and controllers: faults that are made, and found by their codes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from builders.inference import inference_body
from builders.model_access import model_access_body
from builders.waiting import wait_until
from fixtures.command_line import CommandLine
from fixtures.control_plane import Kubectl


class Faults:
    """A namespace of objects with faults, and what the commands say of them."""

    def __init__(self, command_line: CommandLine, kubectl: Kubectl, namespace: str) -> None:
        self.command_line, self.kubectl, self.namespace = command_line, kubectl, namespace

    def apply(self, body: dict[str, Any], **metadata: Any) -> None:
        name = body["metadata"]["name"]
        self.kubectl.apply({**body, "metadata": {"name": name, **metadata}}, namespace=self.namespace)

    def found(self, *arguments: str) -> set[tuple[str, str]]:
        """Codes and names of the objects."""
        said = self.command_line("analyze", "-n", self.namespace, "--fail-on", "Never", *arguments)
        return {(each["code"], each["object"].rpartition("/")[2]) for each in said["findings"]}

    def finds(self, *wanted: tuple[str, str]) -> None:
        """Waits until the controllers have said theirs."""
        wait_until(lambda: set(wanted) <= self.found(), what=f"{wanted}; found {self.found()}")


@pytest.fixture
def faults(command_line: CommandLine, kubectl: Kubectl, namespace: str) -> Faults:
    return Faults(command_line, kubectl, namespace)


@pytest.mark.usefixtures("controllers")
def test_faults_of_objects_are_found_by_their_codes(faults: Faults) -> None:
    scaling = {
        "replicas": None,
        "scaling": {"minReplicas": 2, "maxReplicas": 4},
        "placement": {"pool": "none"},
    }
    faults.apply(inference_body("astray", replicas=2, placement={"pool": "no-such-pool"}))
    faults.apply(inference_body("alone", replicas=1))
    faults.apply(inference_body("twice", **scaling))
    faults.apply(inference_body("offline", replicas=2, tier="offline"))
    hosts = {"hosts": ["one.example"]}
    faults.apply(model_access_body("first", routes=[route("alone")], **hosts))
    faults.finds(("TG5006", "alone"))
    faults.apply(model_access_body("second", routes=[route("twice", "gone")], **hosts))
    faults.apply(model_access_body("third", routes=[route("offline")]))
    autoscaler = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "twice"},
        "spec": {
            "scaleTargetRef": {"apiVersion": "tidegate.io/v1alpha1", "kind": "Inference", "name": "twice"},
            "maxReplicas": 3,
        },
    }
    faults.apply(autoscaler)
    faults.finds(
        ("TG1202", "astray"),
        ("TG5005", "astray"),
        ("TG5006", "alone"),
        ("TG5003", "twice"),
        ("TG5004", "twice"),
        ("TG2008", "second"),
        ("TG2011", "second"),
        ("TG5007", "third"),
    )
    assert not {name for code, name in faults.found() if code in {"TG2011", "TG5007"}} & {"first"}
    done = faults.command_line.run("analyze", "-n", faults.namespace)
    assert done.exit_code == 1
    assert "TG1202 Inference" in done.stdout


def route(*inferences: str) -> dict[str, Any]:
    return {"name": "all", "targets": [{"inference": each} for each in inferences]}


@pytest.mark.usefixtures("controllers")
def test_files_are_looked_at_beside_what_there_is(faults: Faults, tmp_path: Path) -> None:
    faults.apply(inference_body("ctr", replicas=2))
    planned = tmp_path / "access.yaml"
    body = model_access_body("home", routes=[route("ctr")])
    planned.write_text(yaml.safe_dump({**body, "metadata": {"name": "home"}}))
    assert ("TG5005", "ctr") in faults.found()
    beside = faults.found("-f", str(planned))
    assert not {code for code, name in beside if name == "home"}
    assert ("TG5005", "ctr") not in beside
    planned.write_text(planned.read_text().replace("inference: ctr", "inference: cvr"))
    assert ("TG2008", "home") in faults.found("-f", str(planned))


def test_who_may_list_nothing_of_ours_is_told_so_and_not_that_all_is_well(
    faults: Faults, kubectl: Kubectl
) -> None:
    kubectl(
        *("create", "role", "autoscalers", "-n", faults.namespace, "--verb=list"),
        "--resource=horizontalpodautoscalers.autoscaling",
    )
    kubectl(
        *("create", "rolebinding", "autoscalers", "-n", faults.namespace, "--role=autoscalers", "--user=adam")
    )
    # Adam may list autoscalers, which are looked at as well.
    for user in ("eve", "adam"):
        said = faults.command_line.refused("analyze", "-n", faults.namespace, "--as", user)
        assert f'User "{user}" cannot list' in said
