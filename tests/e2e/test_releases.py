"""A release on real Tritons, through the gateways of the chart: promoted and taken back by what those counted."""

from __future__ import annotations

import pytest

from builders import probe_model
from fixtures.installed import Space, until


def release_of_b(space: Space) -> None:
    """The probe's access with a release of `b` beside `a`, in steps of a few seconds."""
    release = {
        "route": "default",
        "target": "b",
        "steps": [20, 60],
        "interval": "2s",
        "checks": [{"metric": "ErrorRate", "max": "0.01", "minRequests": 200}],
    }
    targets = [{"inference": "a", "weight": 100}, {"inference": "b", "weight": 0}]
    route = {"name": "default", "targets": targets, "timeout": "10s"}
    space.apply("ModelAccess", "probe", {"routes": [route], "release": release})


def a_and_b(space: Space) -> None:
    """Both models, ready; `b` gets nothing yet."""
    space.publish("a", 1)
    for name, version in (("a", 1), ("b", 2)):
        space.inference(name, version=version)
    space.access(("a", 100), ("b", 0))
    space.ready("inference/a", "inference/b", "modelaccess/probe")


def release_is(space: Space, phase: str) -> None:
    until(
        lambda: space.status("modelaccess", "probe").get("release", {}).get("phase") == phase,
        f"the release is {phase}",
        evidence=lambda: space.status("modelaccess", "probe"),
    )


@pytest.mark.timeout(300)
def test_a_good_model_is_promoted_under_load_and_aborted_afterwards(space: Space) -> None:
    space.publish("b", 2)
    a_and_b(space)
    before = space.counted("b")
    release_of_b(space)
    with space.load(1, 2, max_seconds=120) as load:
        release_is(space, "Promoted")
        report = load.finish()
    assert report.failed == 0, report.errors
    assert space.counted("b") - before > 200
    assert {space.ask().version for _ in range(20)} == {"2"}

    space.kubectl.run("annotate", "modelaccess", "probe", "-n", space.namespace, "tidegate.io/release=abort")
    release_is(space, "RolledBack")
    until(lambda: {space.ask().version for _ in range(5)} == {"1"}, "every request goes to the stable target")
    asked = space.counted("b")
    assert {space.ask().version for _ in range(20)} == {"1"}
    assert space.counted("b") == asked


@pytest.mark.timeout(300)
def test_a_model_that_cannot_answer_is_taken_back_at_its_first_requests(space: Space) -> None:
    """It loads and is ready, and its input has another name than clients send."""
    probe_model.publish(space.folder("b"), 2, takes="y")
    a_and_b(space)
    with space.load(1, max_seconds=120) as load:
        load.wait_sent(500, timeout_s=60)
        release_of_b(space)
        release_is(space, "RolledBack")
        report = load.finish()
    assert 0 < report.failed < 0.2 * report.sent
    assert space.status("modelaccess", "probe")["release"]["reason"] == "CheckFailed"
    assert {space.ask().version for _ in range(20)} == {"1"}
    assert space.counted("b") == 0
