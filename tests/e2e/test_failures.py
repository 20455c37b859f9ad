"""Pods and versions that cannot serve, for real: what served before goes on, the status says why, and the way out that it names is enough."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import pytest
from tritonclient.utils import InferenceServerException

from builders import probe_model
from builders.waiting import wait_until
from fixtures.installed import Space, refused
from tidegate.api.reasons import Reason


def _says(space: Space, name: str, reason: Reason) -> str:
    """Waits until Ready of an Inference has this reason; its message."""
    said: dict[str, str] = {}

    def found() -> bool:
        condition = space.condition("inference", name)
        said[condition.get("reason", "")] = condition.get("message", "")
        return reason in said

    wait_until(found, f"Ready of {name} says {reason}", evidence=lambda: space.status("inference", name))
    return said[reason]


def _fails(space: Space, name: str, *reasons: Reason) -> Mapping[str, Any]:
    """Waits until the failure of an Inference's version 2 has one of these reasons; its status, in which version 1 serves."""

    def found() -> Mapping[str, Any] | None:
        status = space.status("inference", name)
        return status if status.get("failure", {}).get("reason") in reasons else None

    status = wait_until(found, f"{name} fails: {reasons}", evidence=lambda: space.status("inference", name))
    assert status["failure"]["version"] == status["versions"]["target"] == "2"
    assert (status["versions"]["serving"], status["versions"]["loaded"]) == ("1", ["1"])
    (ready,) = (each for each in status["conditions"] if each["type"] == "Ready")
    assert (ready["status"], ready["reason"]) == ("False", status["failure"]["reason"])
    return status


@pytest.mark.produces(Reason.OUT_OF_MEMORY, Reason.CHECKSUM_MISMATCH)
@pytest.mark.no_rerun("a lost request, a wrong answer")
def test_versions_that_cannot_serve_leave_the_old_ones_serving_and_are_mended_by_the_spec(
    space: Space,
) -> None:
    digests = {name: space.publish(name, 1, 2) for name in ("truncated", "pinned")}
    broken = space.folder("truncated") / "2" / "model.onnx"
    broken.write_bytes(broken.read_bytes()[:-20])
    space.publish("truncated", 3)
    space.publish("hungry", 1)
    probe_model.publish_hungry(space.folder("hungry"), 2, mebibytes=700)
    mended = {"truncated": 3, "pinned": 2, "hungry": 2}
    space.inference("truncated")
    space.inference("pinned", sha256=digests["pinned"][1])
    space.inference("hungry")
    for name in mended:
        space.access((name, 100), name=name)
    space.ready(*(f"{kind}/{name}" for kind in ("inference", "modelaccess") for name in mended))
    with ExitStack() as stack:
        # Each knows the answers of all versions, so that those of a broken one would be counted as its.
        loads = {name: stack.enter_context(space.load(1, 2, 3, access=name, threads=2)) for name in mended}
        for name in mended:
            pin = {"sha256": "0" * 64} if name == "pinned" else {}
            space.patch("inference", name, {"model": {"version": "2", **pin}})
        # Triton's words or the agent's: that depends on where the file ends.
        _fails(space, "truncated", Reason.ARTEFACT_INVALID, Reason.LOAD_FAILED)
        failure = _fails(space, "pinned", Reason.CHECKSUM_MISMATCH)["failure"]
        assert digests["pinned"][2] in failure["message"]
        failure = _fails(space, "hungry", Reason.OUT_OF_MEMORY)["failure"]
        assert "limit of 512 MiB" in failure["message"]
        assert "version 1 keeps serving" in space.condition("inference", "truncated")["message"]

        for load in loads.values():
            load.wait_sent(load.report().sent + 150)
            assert load.report().versions.keys() == {"1"}

        # The way out is the object itself.
        space.patch("inference", "truncated", {"model": {"version": "3"}})
        space.patch("inference", "pinned", {"model": {"sha256": digests["pinned"][2]}})
        space.patch("inference", "hungry", {"resources": {"memory": "2Gi"}})
        for name, version in mended.items():
            space.serves(name, version)
            assert "failure" not in space.status("inference", name)
            loads[name].wait_for(str(version), 20)
            report = loads[name].finish()
            assert report.problems == ()
            assert report.versions.keys() == {"1", str(version)}


@pytest.mark.produces(
    Reason.FORMAT_NOT_ALLOWED, Reason.URI_NOT_ALLOWED, Reason.NO_CAPACITY, Reason.ARTEFACT_NOT_FOUND
)
def test_a_model_that_may_not_or_cannot_run_is_refused_until_the_spec_is_mended(space: Space) -> None:
    space.publish("probe", 1)
    # More than any node has.
    space.inference(memory="8Ti")
    said = _says(space, "probe", Reason.NO_CAPACITY)
    for words in ("1 Insufficient memory", "on node node-0", "lower spec.resources or spec.replicas"):
        assert words in said
    space.inference(format="Python")
    _says(space, "probe", Reason.FORMAT_NOT_ALLOWED)
    space.inference(uri="https://models.example.com/probe")
    assert "models.example.com" in _says(space, "probe", Reason.URI_NOT_ALLOWED)
    space.inference(version=7)
    assert "7" in _says(space, "probe", Reason.ARTEFACT_NOT_FOUND)
    space.swap_version("probe", 1)


@pytest.mark.produces(Reason.UNSCHEDULABLE)
def test_a_model_on_a_volume_claim_is_served_once_the_claim_is_there_and_swapped(space: Space) -> None:
    space.publish("probe", 1, 2)
    space.inference(uri="pvc://shelf/probe")
    space.access()
    assert 'persistentvolumeclaim "shelf" not found' in _says(space, "probe", Reason.UNSCHEDULABLE)
    _claim(space, "shelf")
    space.ready()
    assert space.ask().version == "1"

    space.swap_version("probe", 2)
    assert space.ask().version == "2"
    space.kubectl.run("delete", "inference/probe", "-n", space.namespace, "--wait=true")
    space.kubectl.run("delete", "persistentvolume", f"{space.namespace}-shelf", "--wait=false")


def _claim(space: Space, name: str) -> None:
    """A claim that is bound to the folder which the test publishes into."""
    common = {"accessModes": ["ReadOnlyMany"], "storageClassName": ""}
    volume = {
        "capacity": {"storage": "1Gi"},
        "hostPath": {"path": f"/models/{space.namespace}"},
        "persistentVolumeReclaimPolicy": "Retain",
    }
    claim = {"resources": {"requests": {"storage": "1Gi"}}, "volumeName": f"{space.namespace}-{name}"}
    for kind, named, spec in (
        ("PersistentVolume", f"{space.namespace}-{name}", volume),
        ("PersistentVolumeClaim", name, claim),
    ):
        body = {"apiVersion": "v1", "kind": kind, "metadata": {"name": named}, "spec": {**common, **spec}}
        space.kubectl.apply(json.dumps(body), space.namespace)


@pytest.mark.alone("takes an image away")
@pytest.mark.produces(Reason.IMAGE_PULL)
def test_a_pod_without_its_image_says_so_and_runs_once_that_is_back(space: Space) -> None:
    space.publish("probe", 1)
    space.access()
    with space.installed.without_image("triton") as image:
        space.inference()
        assert f"container triton {image}: " in _says(space, "probe", Reason.IMAGE_PULL)
    space.serves("probe", 1)
    space.ready("modelaccess/probe")
    assert space.ask().version == "1"


@pytest.mark.produces(Reason.OUT_OF_MEMORY, Reason.POD_FAILING)
def test_a_model_whose_process_ends_while_it_serves_is_not_ready_and_says_why(space: Space) -> None:
    """Triton calls such a model ready and refuses its requests, and Kubernetes takes no notice."""
    probe_model.publish_balloon(space.folder("probe"), 1)
    space.inference()
    space.access()
    space.ready()
    assert space.ask(x=1.0).version == "1"

    refused(lambda: space.ask(x=900.0))
    # The kernel ends the model's process alone, or with it the container: that depends on the node.
    assert "memory limit of 512Mi" in _says(space, "probe", Reason.OUT_OF_MEMORY)

    # The way out is in the message.
    (small,) = (pod["metadata"]["name"] for pod in space.pods("probe"))
    space.patch("inference", "probe", {"resources": {"memory": "2Gi"}})
    # The old one is asked too until it leaves, for which its Triton takes half a minute.
    wait_until(lambda: small not in {pod["metadata"]["name"] for pod in space.pods("probe")}, "it leaves")

    def bears_it() -> bool:
        try:
            return space.ask(x=900.0).version == "1"
        except InferenceServerException:
            return False

    wait_until(bears_it, "the large request is answered")
    space.ready("inference/probe", "modelaccess/probe")

    assert space.end_model("probe") == 1
    assert "the process that runs version 1 ended" in _says(space, "probe", Reason.POD_FAILING)
    space.ready("inference/probe", "modelaccess/probe")
    space.answers(1)
