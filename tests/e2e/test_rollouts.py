"""Pods are replaced, scaled and evicted under load: no request is lost, and a template that never gets ready goes back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from fixtures.installed import Space, until
from tidegate_localcluster.demo.kubectl import CommandError
from tidegate_localcluster.demo.load import Load

LABEL = "tidegate.io/inference=probe"
REQUESTS = 1_000


def _pods(space: Space) -> Sequence[Mapping[str, Any]]:
    return space.installed.pods(space.namespace, LABEL)


def _uids(space: Space) -> set[str]:
    return {pod["metadata"]["uid"] for pod in _pods(space)}


def _ready(space: Space, reason: str) -> None:
    until(
        lambda: space.condition("inference", "probe").get("reason") == reason,
        f"Ready says {reason}",
        evidence=lambda: space.condition("inference", "probe"),
    )


def _replaced(space: Space, before: set[str], count: int) -> None:
    until(
        lambda: (
            not before & (now := _uids(space))
            and len(now) == count
            and space.condition("inference", "probe").get("status") == "True"
        ),
        f"all of {count} pods are new ones and ready",
        evidence=lambda: space.status("inference", "probe"),
    )


def _served(space: Space, *, replicas: int, **inference: Any) -> None:
    space.publish("probe", 1)
    space.inference(replicas=replicas, **inference)
    space.access()
    space.ready()


def _lossless(load: Load) -> None:
    """Enough requests were sent, and every one was answered."""
    load.wait_sent(REQUESTS, timeout_s=60)
    report = load.finish()
    assert report.failed == 0, report.errors


@pytest.mark.timeout(300)
def test_rolling_restart_scale_down_and_drain_lose_no_request(space: Space) -> None:
    _served(space, replicas=2)
    with space.load(1, max_seconds=240) as load:
        load.wait_sent(100, timeout_s=30)
        before = _uids(space)
        space.kubectl.run("rollout", "restart", "deployment/inf-probe", "-n", space.namespace)
        _replaced(space, before, 2)

        space.kubectl.run("scale", "inference/probe", "--replicas=3", "-n", space.namespace)
        until(lambda: space.status("inference", "probe").get("readyReplicas") == 3, "three are ready")
        space.kubectl.run("scale", "inference/probe", "--replicas=1", "-n", space.namespace)
        until(lambda: _gone(space, 1), "one pod is left, and none on its way out")
        _lossless(load)


def _gone(space: Space, left: int) -> bool:
    found = json.loads(space.kubectl.run("get", "pods", "-n", space.namespace, "-l", LABEL, "-o", "json"))
    return len(found["items"]) == left


@pytest.mark.timeout(300)
def test_drain_of_a_node_waits_for_the_budget_says_so_and_loses_no_request(space: Space) -> None:
    _served(space, replicas=2)
    before = _uids(space)
    node = _pods(space)[0]["spec"]["nodeName"]
    drain = ("drain", node, "--delete-emptydir-data", f"--pod-selector={LABEL}", "--timeout=100s")
    with space.load(1, max_seconds=240) as load, ThreadPoolExecutor() as beside:
        load.wait_sent(100, timeout_s=30)
        try:
            # The only real node: the first pod's successor has nowhere to go, so the second must stay.
            draining = beside.submit(space.kubectl.run, *drain, timeout_s=120)
            _ready(space, "Unschedulable")
            said = space.condition("inference", "probe")["message"]
            assert "1 of 2 replicas are ready" in said
            assert "evictions of the others are refused" in said
            with pytest.raises(CommandError, match="disruption budget"):
                _evict(space, next(pod for pod in _pods(space) if "nodeName" in pod["spec"]))
            assert not draining.done()
        finally:
            space.kubectl.run("uncordon", node)
        assert "evict" in draining.result(timeout=120)
        _replaced(space, before, 2)
        _lossless(load)


def _evict(space: Space, pod: Mapping[str, Any]) -> None:
    """Asks for it through the API, as kubectl drain does."""
    name = pod["metadata"]["name"]
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    path = f"/api/v1/namespaces/{space.namespace}/pods/{name}/eviction"
    space.kubectl.run("create", "--raw", path, "-f", "-", stdin=json.dumps(body))


@pytest.mark.timeout(300)
def test_template_whose_pods_never_get_ready_goes_back_and_a_corrected_one_comes_up(space: Space) -> None:
    _served(space, replicas=2, rollout={"progressDeadline": "10s"})
    before = _uids(space)
    with space.load(1, max_seconds=240) as load:
        load.wait_sent(100, timeout_s=30)
        space.patch("inference", "probe", {"resources": {"memory": "8Ti"}})
        _ready(space, "Unschedulable")
        assert "set spec.rollout.mode: InPlace" in space.condition("inference", "probe")["message"]
        _ready(space, "RolledBack")
        until(
            lambda: _uids(space) == before, "the pods are the old ones again", evidence=lambda: _uids(space)
        )
        assert space.condition("inference", "probe", "Stalled")["status"] == "True"
        said = space.condition("inference", "probe")["message"]
        assert "generation 2" in said
        assert "Insufficient memory" in said

        # Only a changed spec is another attempt; a new number of replicas is not.
        space.patch("inference", "probe", {"replicas": 1})
        until(lambda: _gone(space, 1), "one pod is left")
        assert space.condition("inference", "probe")["reason"] == "RolledBack"
        corrected = {"resources": {"memory": "768Mi"}, "rollout": {"progressDeadline": "5m"}}
        space.patch("inference", "probe", corrected)
        _replaced(space, before, 1)
        _lossless(load)
