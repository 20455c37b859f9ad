"""Pods are replaced, scaled and evicted under load: no request is lost, and a template that never gets ready goes back."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from builders.scenario import require_scenario
from builders.waiting import LONGEST_S, wait_until
from fixtures.installed import READY_TIMEOUT_S, Space
from tidegate.api.reasons import Reason
from tidegate_localcluster.demo.errors import CommandError
from tidegate_localcluster.demo.load import CheckedLoad
from tidegate_localcluster.device_plugin import SharedGpuPlugin
from tidegate_localcluster.simulated_nodes import SHARED_GPU

LABEL = "tidegate.io/inference=probe"
REQUESTS = 1_000
SLICES = 2


def _pods(space: Space) -> Sequence[Mapping[str, Any]]:
    return space.installed.pods(space.namespace, LABEL)


def _uids(space: Space) -> set[str]:
    return {pod["metadata"]["uid"] for pod in _pods(space)}


def _ready(space: Space, reason: str) -> None:
    wait_until(
        lambda: space.condition("inference", "probe").get("reason") == reason,
        f"Ready says {reason}",
        evidence=lambda: space.condition("inference", "probe"),
    )


def _replaced(space: Space, before: set[str], count: int) -> None:
    wait_until(
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


def _lossless(load: CheckedLoad) -> None:
    """Enough requests were sent, and every one was answered."""
    load.wait_sent(REQUESTS)
    report = load.finish()
    assert report.problems == ()


def _gone(space: Space, left: int) -> bool:
    found = json.loads(space.kubectl.run("get", "pods", "-n", space.namespace, "-l", LABEL, "-o", "json"))
    return len(found["items"]) == left


@pytest.mark.alone("cordons the node of all others")
@pytest.mark.produces(Reason.UNSCHEDULABLE)
@pytest.mark.no_rerun("a lost request")
def test_drain_of_a_node_waits_for_the_budget_says_so_and_loses_no_request(space: Space) -> None:
    _served(space, replicas=2)
    before = _uids(space)
    node = _pods(space)[0]["spec"]["nodeName"]
    drain = (
        "drain",
        node,
        "--delete-emptydir-data",
        f"--pod-selector={LABEL}",
        "--timeout=0",
    )  # as long as it takes
    with space.load(1, threads=2) as load, ThreadPoolExecutor() as beside:
        load.wait_sent(100)
        try:
            # The only node without the taint of pools: the first pod's successor has nowhere to go, so the second must stay.
            draining = beside.submit(space.kubectl.run, *drain, timeout_s=LONGEST_S)
            _ready(space, "Unschedulable")
            # On a busy machine a pod may miss a probe, and is not counted for a moment.
            said = wait_until(
                lambda: _message_with(space, "1 of 2 replicas are ready"),
                "the message counts the pod that stays",
                evidence=lambda: space.condition("inference", "probe"),
            )
            assert "evictions of the others are refused" in said
            with pytest.raises(CommandError, match="disruption budget"):
                _evict(space, next(pod for pod in _pods(space) if "nodeName" in pod["spec"]))
            assert not draining.done()
        finally:
            space.kubectl.run("uncordon", node)
        wait_until(draining.done, "the node is drained")
        assert "evict" in draining.result()
        _replaced(space, before, 2)
        _lossless(load)


def _evict(space: Space, pod: Mapping[str, Any]) -> None:
    """Asks for it through the API, as kubectl drain does."""
    name = pod["metadata"]["name"]
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    path = f"/api/v1/namespaces/{space.namespace}/pods/{name}/eviction"
    space.kubectl.run("create", "--raw", path, "-f", "-", stdin=json.dumps(body))


@pytest.mark.no_rerun("a lost request")
@pytest.mark.produces(Reason.ROLLED_BACK)
def test_template_whose_pods_never_get_ready_goes_back_and_a_corrected_one_comes_up(space: Space) -> None:
    """After a rolling restart, and before the pods are fewer: nothing of it loses a request."""
    _served(space, replicas=2)
    with space.load(1, threads=2) as load:
        load.wait_sent(100)
        first = _uids(space)
        space.kubectl.run("rollout", "restart", "deployment/inf-probe", "-n", space.namespace)
        _replaced(space, first, 2)
        # Only a template that Kubernetes has called rolled out is one to go back to.
        space.kubectl.wait(
            'jsonpath={.status.conditions[?(@.type=="Progressing")].reason}=NewReplicaSetAvailable',
            ("deployment/inf-probe",),
            space.namespace,
            READY_TIMEOUT_S,
        )
        before = _uids(space)
        never = {"resources": {"memory": "8Ti"}, "rollout": {"progressDeadline": "10s"}}
        space.patch("inference", "probe", never)
        _ready(space, "RolledBack")
        wait_until(
            lambda: _uids(space) == before, "the pods are the old ones again", evidence=lambda: _uids(space)
        )
        assert space.condition("inference", "probe", "Stalled")["status"] == "True"
        said = space.condition("inference", "probe")["message"]
        assert "generation 2" in said
        assert "NoCapacity" in said
        assert "Insufficient memory" in said

        # Only a changed spec is another attempt; a new number of replicas is not.
        space.patch("inference", "probe", {"replicas": 1})
        wait_until(lambda: _gone(space, 1), "one pod is left, and none on its way out")
        assert space.condition("inference", "probe")["reason"] == "RolledBack"
        corrected = {"resources": {"memory": "768Mi"}, "rollout": {"progressDeadline": "5m"}}
        space.patch("inference", "probe", corrected)
        _replaced(space, before, 1)
        _lossless(load)


@pytest.mark.produces(Reason.NO_CAPACITY, Reason.DRAINING)
def test_in_place_replaces_every_pod_on_a_node_without_a_free_slice_and_surge_says_that_it_cannot(
    space: Space, tmp_path: Path
) -> None:
    with SharedGpuPlugin(space.installed.cluster.files, SLICES):
        _served_on_slices(space)
        before = _uids(space)
        with space.load(1, threads=2) as load, _watched(space, tmp_path / "ready") as ready:
            load.wait_sent(100)
            # Surge needs one slice more than there is.
            space.patch("inference", "probe", {"resources": {"memory": "513Mi"}})
            _ready(space, Reason.NO_CAPACITY)
            # On a busy machine a pod may miss a probe, and is not counted for a moment.
            said = wait_until(
                lambda: _message_with(space, f"{SLICES} ready pods of the previous template"),
                "the message counts every pod that is ready",
                evidence=lambda: space.condition("inference", "probe"),
            )
            assert "Insufficient nvidia.com/gpu.shared" in said
            assert f"pods {SLICES + 1}," in said
            assert "set spec.rollout.mode: InPlace" in said
            assert before < _uids(space)

            # The way out that the message names.
            space.patch("inference", "probe", {"rollout": {"mode": "InPlace"}})
            _ready(space, Reason.DRAINING)
            _replaced(space, before, SLICES)
            _lossless(load)
        lowest = min(ready())
        # A pod that did not answer a probe in time, as on a busy machine, is not ready beside the one that is replaced.
        late = _timed_out_probes(space)
        require_scenario(lowest == SLICES - 1 or not late, f"pods answer their probes in time: {late}")
        assert lowest == SLICES - 1
        assert {_slices_of(pod) for pod in _pods(space)} == {1}
    wait_until(lambda: _offered(space) == 0, "the node offers no slice any more")


def _message_with(space: Space, part: str) -> str | None:
    """Return the message of Ready if it has this part."""
    message: str = space.condition("inference", "probe")["message"]
    return message if part in message else None


def _timed_out_probes(space: Space) -> Sequence[str]:
    """Return what the kubelet says of readiness probes that no pod answered in time."""
    events = space.installed.api.list_items(f"/api/v1/namespaces/{space.namespace}/events")
    unhealthy = (event["message"] for event in events if event["reason"] == "Unhealthy")
    return [
        message for message in unhealthy if message.startswith("Readiness") and "deadline exceeded" in message
    ]


def _served_on_slices(space: Space) -> None:
    """As many replicas as there are slices, each on one.

    Tidegate asks for no slices yet (that is for pools); here somebody else does, and its applies leave that alone.
    """
    wait_until(lambda: _offered(space) == SLICES, f"the node offers {SLICES} slices")
    space.publish("probe", 1)
    space.inference(replicas=0, tier="nearline")
    wait_until(lambda: "selector" in space.status("inference", "probe"), "there is a Deployment")
    slices = {"name": "triton", "resources": {"limits": {SHARED_GPU: "1"}}}
    patch = json.dumps({"spec": {"template": {"spec": {"containers": [slices]}}}})
    place = ("deployment/inf-probe", "-n", space.namespace)
    space.kubectl.run("patch", *place, "--field-manager=slices", "-p", patch)
    space.kubectl.run("scale", "inference/probe", f"--replicas={SLICES}", "-n", space.namespace)
    space.access()
    wait_until(
        lambda: space.status("inference", "probe").get("readyReplicas") == SLICES,
        f"{SLICES} replicas are ready",
        evidence=lambda: space.status("inference", "probe"),
    )
    space.ready()


def _offered(space: Space) -> int:
    node = space.kubectl.get("node", "node-0", "default") or {}
    return int(node["status"]["allocatable"].get(SHARED_GPU, "0"))


def _slices_of(pod: Mapping[str, Any]) -> int:
    (triton,) = (one for one in pod["spec"]["containers"] if one["name"] == "triton")
    return int(triton["resources"]["limits"].get(SHARED_GPU, "0"))


@contextmanager
def _watched(space: Space, seen: Path) -> Generator[Callable[[], Sequence[int]]]:
    """Every number of ready replicas that the Deployment has had since; pods on their way out count for nothing."""
    cluster = space.installed.cluster
    binary, config = cluster.read_plan().binaries["kubectl"], f"--kubeconfig={cluster.files.kubeconfig}"
    shown = 'jsonpath={.status.readyReplicas}{"\\n"}'
    command = ["get", "deployment/inf-probe", "-n", space.namespace, "--watch", "-o", shown]
    with seen.open("w") as output:
        watch = subprocess.Popen([binary, config, *command], stdout=output)
        try:
            yield lambda: [int(line or "0") for line in seen.read_text().splitlines()]
        finally:
            watch.terminate()
            watch.wait(10)
