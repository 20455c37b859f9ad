"""Pods that cannot run, for real: the status says why, and the way out that it names is enough."""

from __future__ import annotations

import pytest

from builders import probe_model
from builders.waiting import wait_until
from fixtures.installed import READY_TIMEOUT_S, Space, refused
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


def _answers(space: Space, name: str, version: int = 1) -> None:
    """Waits until an Inference is Ready and a request to it alone is answered, by `version`."""
    space.serves(name, version)
    space.ready(f"modelaccess/{name}")
    assert space.ask(name).version == str(version)


@pytest.mark.alone("takes an image away")
@pytest.mark.produces(Reason.IMAGE_PULL, Reason.NO_CAPACITY, Reason.UNSCHEDULABLE)
def test_pods_that_cannot_run_say_why_and_run_once_that_is_mended(space: Space) -> None:
    space.publish("probe", 1)
    for name in ("imageless", "large", "claimless"):
        space.access((name, 100), name=name)
    # More than any node has.
    space.inference("large", uri=space.uri("probe"), memory="8Ti")
    space.inference("claimless", uri="pvc://shelf/probe")
    with space.installed.without_image("triton") as image:
        space.inference("imageless", uri=space.uri("probe"))
        assert f"container triton {image}: " in _says(space, "imageless", Reason.IMAGE_PULL)

        said = _says(space, "large", Reason.NO_CAPACITY)
        for words in ("1 Insufficient memory", "on node node-0", "lower spec.resources or spec.replicas"):
            assert words in said
        said = _says(space, "claimless", Reason.UNSCHEDULABLE)
        assert 'persistentvolumeclaim "shelf" not found' in said

    # The image is back, and nothing else is done; what the other two need is in their specs.
    space.patch("inference", "large", {"resources": {"memory": "512Mi"}})
    space.patch("inference", "claimless", {"model": {"uri": space.uri("probe")}})
    for name in ("imageless", "large", "claimless"):
        _answers(space, name)


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
    # Ready says that the new pod is; the old one is asked too until it is gone.
    space.kubectl.wait("delete", (f"pod/{small}",), space.namespace, READY_TIMEOUT_S)
    space.ready("inference/probe", "modelaccess/probe")
    assert space.ask(x=900.0).version == "1"

    assert space.end_model("probe") == 1
    assert "the process that runs version 1 ended" in _says(space, "probe", Reason.POD_FAILING)
    space.ready("inference/probe", "modelaccess/probe")
    space.answers(1)
