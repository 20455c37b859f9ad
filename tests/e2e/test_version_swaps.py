"""Versions change under load: every request is answered, by exactly one version; a bad one changes nothing."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from builders import probe_model
from builders.waiting import wait_until
from fixtures.installed import Space
from fixtures.stopwatch import Stopwatch
from tidegate.api.reasons import Reason

REQUESTS = 2_000


@pytest.mark.no_rerun("a lost request, a wrong answer")
def test_two_swaps_and_two_rollbacks_under_load_lose_no_request(space: Space) -> None:
    """Again and again, and for a million answers, in bench/churn.py."""
    space.publish("probe", 1, 2)
    space.inference(replicas=2)
    space.access()
    space.ready()
    with space.load(1, 2, max_seconds=300) as load:
        for _ in range(2):
            space.patch("inference", "probe", {"model": {"version": "2"}})
            space.serves("probe", 2)
            space.patch("inference", "probe", {"model": {"version": "1"}})
            space.serves("probe", 1)
        load.wait_sent(REQUESTS, timeout_s=200)
        report = load.finish()

    assert report.problems == ()
    assert report.sent >= REQUESTS
    assert set(report.versions) == {"1", "2"}
    assert sum(report.versions.values()) == report.sent
    assert _answered_by_gateways(space) >= report.sent


def test_kept_version_comes_back_on_every_replica_in_a_moment(space: Space) -> None:
    """Within a second on a quiet machine, which bench/rollback.py measures; here with room for two busy cores."""
    space.publish("probe", 1, 2)
    space.inference(replicas=2)
    space.access()
    space.ready()
    space.patch("inference", "probe", {"model": {"version": "2"}})
    space.serves("probe", 2)
    versions = space.status("inference", "probe")["versions"]
    assert versions["loaded"] == ["1", "2"]
    # A runner with NumPy and ONNX Runtime takes tens of megabytes; two would be nothing measured twice over.
    assert [each["version"] for each in versions["memory"]] == ["1", "2"]
    assert all(10 << 20 < each["bytes"] < 200 << 20 for each in versions["memory"])
    with space.load(1, 2, max_seconds=120) as load:
        load.wait_for("2", 100, timeout_s=60)
        before = _answered_by_servers(space, 1)
        with Stopwatch() as watch:
            space.patch("inference", "probe", {"model": {"version": "1"}})
            wait_until(
                lambda: _grown(before, _answered_by_servers(space, 1)),
                "version 1 answers on every replica",
                timeout_s=30,
            )
        space.serves("probe", 1)
        report = load.finish()

    assert report.problems == ()
    assert watch.seconds < 4  # one, and as much for each round of asking every Triton


def test_load_notices_lost_requests(space: Space) -> None:
    """The negative of the test above: without any replica requests do fail, and are counted."""
    space.publish("probe", 1)
    space.inference(tier="nearline")
    space.access()
    space.ready()
    with space.load(1, max_seconds=120) as load:
        load.wait_for("1", 50, timeout_s=30)
        space.patch("inference", "probe", {"replicas": 0})
        wait_until(
            lambda: space.status("inference", "probe").get("readyReplicas") == 0,
            "no replica is left",
        )
        load.wait_failed(1, timeout_s=30)
        report = load.finish()

    assert report.failed > 0


def test_truncated_model_leaves_the_old_version_serving_and_says_why(space: Space) -> None:
    space.publish("probe", 1, 2)
    broken = space.folder("probe") / "2" / "model.onnx"
    broken.write_bytes(broken.read_bytes()[:-20])
    space.inference(replicas=2)
    space.access()
    space.ready()
    with space.load(1, max_seconds=120) as load:
        space.patch("inference", "probe", {"model": {"version": "2"}})
        wait_until(
            lambda: space.condition("inference", "probe").get("status") == "False", "the failure shows"
        )
        wait_until(lambda: "failure" in space.status("inference", "probe"), "status.failure is set")
        load.wait_sent(500, timeout_s=60)
        report = load.finish()

    status = space.status("inference", "probe")
    assert report.problems == ()
    assert set(report.versions) == {"1"}
    assert {**status["versions"], "memory": []} == {
        "serving": "1",
        "loaded": ["1"],
        "memory": [],
        "target": "2",
    }
    assert status["failure"]["version"] == "2"
    assert status["failure"]["reason"] in ("ArtefactInvalid", "LoadFailed")
    assert space.condition("inference", "probe")["reason"] == status["failure"]["reason"]
    assert "version 1 keeps serving" in space.condition("inference", "probe")["message"]

    # The way out is the object itself: a corrected artefact under a new version.
    space.publish("probe", 3)
    space.patch("inference", "probe", {"model": {"version": "3"}})
    space.serves("probe", 3)
    assert "failure" not in space.status("inference", "probe")


@pytest.mark.produces(Reason.OUT_OF_MEMORY)
def test_version_that_does_not_fit_into_memory_leaves_the_old_one_serving(space: Space) -> None:
    space.publish("probe", 1)
    probe_model.publish_hungry(space.folder("probe"), 2, mebibytes=700)
    space.inference()
    space.access()
    space.ready()
    with space.load(1, 2, max_seconds=200) as load:
        space.patch("inference", "probe", {"model": {"version": "2"}})
        wait_until(
            lambda: space.status("inference", "probe").get("failure", {}).get("reason") == "OutOfMemory",
            "status.failure says OutOfMemory",
            evidence=lambda: space.status("inference", "probe"),
        )
        status = space.status("inference", "probe")
        assert "limit of 512 MiB" in status["failure"]["message"]
        assert status["versions"]["serving"] == "1"
        load.wait_for("1", 200, timeout_s=60)

        # The way out is in the message, and is the object alone.
        space.patch("inference", "probe", {"resources": {"memory": "2Gi"}})
        space.serves("probe", 2)
        load.wait_for("2", 20, timeout_s=60)
        report = load.finish()

    assert report.problems == ()
    assert set(report.versions) == {"1", "2"}


@pytest.mark.produces(Reason.CHECKSUM_MISMATCH)
@pytest.mark.no_rerun("a wrong answer")
def test_wrong_checksum_leaves_the_old_version_serving_and_the_right_one_is_taken(space: Space) -> None:
    digests = space.publish("probe", 1, 2)
    space.inference(version=1, sha256=digests[1])
    space.access()
    space.ready()
    with space.load(1, 2, max_seconds=120) as load:
        space.patch("inference", "probe", {"model": {"version": "2", "sha256": "0" * 64}})
        wait_until(
            lambda: space.status("inference", "probe").get("failure", {}).get("reason") == "ChecksumMismatch",
            "status.failure says ChecksumMismatch",
            evidence=lambda: space.status("inference", "probe"),
        )
        assert space.status("inference", "probe")["versions"]["serving"] == "1"
        assert digests[2] in space.status("inference", "probe")["failure"]["message"]
        space.patch("inference", "probe", {"model": {"sha256": digests[2]}})
        space.serves("probe", 2)
        report = load.finish()

    assert report.problems == ()


@pytest.mark.produces(Reason.ARTEFACT_NOT_FOUND)
def test_first_version_that_never_loads_is_reported_and_mended_by_the_spec_alone(space: Space) -> None:
    space.publish("probe", 1)
    space.inference(version=7)
    wait_until(
        lambda: space.condition("inference", "probe").get("reason") == "ArtefactNotFound",
        "Ready says ArtefactNotFound",
        evidence=lambda: space.status("inference", "probe"),
    )
    assert "7" in space.condition("inference", "probe")["message"]

    space.patch("inference", "probe", {"model": {"version": "1"}})
    space.serves("probe", 1)


def _answered_by_servers(space: Space, version: int) -> dict[str, float]:
    """Requests that each replica's own Triton has answered with `version`, by pod."""
    counts: dict[str, float] = {}
    for pod in space.installed.pods(space.namespace, "tidegate.io/inference=probe"):
        name = pod["metadata"]["name"]
        counts[name] = sum(
            metric.value
            for metric in space.installed.metrics(space.namespace, name, 8002)
            if metric.name == "nv_inference_request_success" and metric.labels.get("version") == str(version)
        )
    return counts


def _grown(before: Mapping[str, float], after: Mapping[str, float]) -> bool:
    return set(after) == set(before) and all(after[name] > before[name] for name in before)


def _answered_by_gateways(space: Space) -> float:
    """Requests that the gateways' own counters say were answered by this namespace's Inference."""
    total = 0.0
    for pod in space.installed.component("gateway"):
        page = space.installed.metrics("tidegate-system", pod["metadata"]["name"], 9902, "stats/prometheus")
        total += sum(
            metric.value
            for metric in page
            if metric.name == "envoy_cluster_upstream_rq_completed"
            and space.namespace in metric.labels.get("envoy_cluster_name", "")
        )
    return total
