"""Real Tritons on slices of a CPU pool: what the pool's status counts is what the kubelet has given."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from builders.waiting import wait_until
from fixtures.cluster import POOL_NODE, POOL_TOLERATION
from fixtures.installed import Space
from tidegate.api.reasons import Reason
from tidegate.resources.names import POOL_LABEL
from tidegate_localcluster.fleet import GPUS_PER_NODE, REPLICAS_PER_GPU, SHARED_GPU

POOL = "e2e-cpu"
SLICE = {"cpu": "200m", "memory": "640Mi"}
LABEL = "e2e/pool"


@contextmanager
def _a_pool(space: Space) -> Generator[None]:
    """A pool of slices of the node that is kept for pools."""
    space.kubectl.run("label", "node", POOL_NODE, f"{LABEL}=cpu", "--overwrite")
    _apply_pool(space)
    try:
        yield
    finally:
        space.kubectl.run("delete", "computepool", POOL, "--ignore-not-found")
        space.kubectl.run("label", "node", POOL_NODE, f"{LABEL}-")


def _apply_pool(space: Space) -> None:
    on_node = {"nodeSelector": {LABEL: "cpu"}, "tolerations": [POOL_TOLERATION]}
    space.apply("ComputePool", POOL, {**on_node, "slice": {"cpu": SLICE}})


def _pool(space: Space) -> Mapping[str, Any]:
    found = space.installed.api.get(f"/apis/tidegate.io/v1alpha1/computepools/{POOL}")
    return (found or {}).get("status", {})


def _placed(space: Space, name: str) -> Mapping[str, Any]:
    return space.condition("inference", name, "Placed")


def _inference(space: Space, name: str, *, replicas: int, slices: int = 1) -> None:
    model = {"name": "probe", "uri": space.uri("probe"), "version": "1"}
    placement = {"pool": POOL, "slices": slices}
    space.apply("Inference", name, {"model": model, "replicas": replicas, "placement": placement})


@pytest.mark.produces(Reason.POOL_FULL, Reason.POOL_NOT_FOUND)
def test_model_serves_from_a_cpu_pool_that_counts_it_and_outlives_the_pool(space: Space) -> None:
    space.publish("probe", 1)
    space.has_node(POOL_NODE)
    with _a_pool(space):
        wait_until(
            lambda: _pool(space).get("slices", {}).get("free", 0) >= 4,
            "four slices",
            evidence=lambda: _pool(space),
        )
        total, free = _pool(space)["slices"]["total"], _pool(space)["slices"]["free"]
        _inference(space, "probe", replicas=1, slices=2)
        space.access()
        space.ready()

        # The answer is the real Triton's, in a container whose limits are those of two slices less the agent's.
        counted = space.counted("probe")
        assert space.ask().version == "1"
        space.counts_to("probe", counted + 1)
        pod = space.pods("probe")[0]
        assert pod["metadata"]["labels"][POOL_LABEL] == POOL
        assert pod["spec"]["containers"][0]["resources"]["limits"] == {"memory": "1152Mi"}
        wait_until(
            lambda: _pool(space)["slices"]["free"] == free - 2,
            "two slices are taken",
            evidence=lambda: _pool(space),
        )
        assert _pool(space)["slices"]["total"] == total
        assert {"name": "realtime", "slices": 2} in _pool(space)["tiers"]

        _inference(space, "more", replicas=2, slices=free - 2)
        wait_until(
            lambda: _placed(space, "more").get("reason") == "PoolFull",
            "more than there is",
            evidence=lambda: _placed(space, "more"),
        )
        said = _placed(space, "more")["message"]
        assert f"ComputePool {POOL} gives 1 of 2 replicas their {free - 2} slices" in said
        space.kubectl.run("delete", "inference", "more", "-n", space.namespace)

        before = {each["metadata"]["uid"] for each in space.pods("probe")}
        space.kubectl.run("delete", "computepool", POOL)
        wait_until(lambda: _placed(space, "probe").get("reason") == "PoolNotFound", "the pool is missed")
        assert space.ask().version == "1"
        assert space.condition("inference", "probe")["status"] == "True"

        # Versions still change in place, without the pool.
        space.publish("probe", 2)
        space.patch("inference", "probe", {"model": {"version": "2"}})
        space.serves("probe", 2)
        assert {each["metadata"]["uid"] for each in space.pods("probe")} == before

        _apply_pool(space)
        wait_until(lambda: _placed(space, "probe").get("reason") == "Placed", "it is placed again")
        assert {each["metadata"]["uid"] for each in space.pods("probe")} == before


GPU_POOL = "e2e-gpu"
GPU_NODES = 2


def test_gpu_pods_are_scheduled_on_simulated_nodes_and_counted(space: Space) -> None:
    """The models there are KWOK's pretence; who gets a node, and how many devices are left, is the scheduler's work."""
    space.publish("probe", 1)
    slices = GPU_NODES * GPUS_PER_NODE * REPLICAS_PER_GPU
    mps = {"slicesPerGPU": REPLICAS_PER_GPU, "cpu": "1", "memory": "4Gi"}
    toleration = {"key": "kwok.x-k8s.io/node", "operator": "Exists"}
    selector = {"tidegate.io/simulated": "true"}
    spec = {"nodeSelector": selector, "tolerations": [toleration], "slice": {"mps": mps}}
    space.apply("ComputePool", GPU_POOL, spec)
    path = f"/apis/tidegate.io/v1alpha1/computepools/{GPU_POOL}"

    def counts() -> Mapping[str, Any]:
        found: Mapping[str, Any] = (space.installed.api.get(path) or {}).get("status", {})
        return found.get("slices", {})

    try:
        free = {"total": slices, "healthy": slices, "free": slices}
        wait_until(lambda: counts() == free, "every slice is free", evidence=counts)
        model = {"name": "probe", "uri": space.uri("probe"), "version": "1"}
        spec = {"model": model, "replicas": 5, "placement": {"pool": GPU_POOL}, "tier": "offline"}
        space.apply("Inference", "gpu", spec)
        wait_until(lambda: counts().get("free") == slices - 5, "five slices are taken", evidence=counts)
        pods = space.pods("gpu")
        assert {pod["spec"]["nodeName"][:7] for pod in pods} == {"gpu-sim"}
        assert all(pod["spec"]["containers"][0]["resources"]["limits"][SHARED_GPU] == "1" for pod in pods)

        # A node is cordoned: its slices are not healthy, and its pods keep them.
        space.kubectl.run("cordon", "gpu-sim-0")
        wait_until(
            lambda: counts().get("healthy") == slices // GPU_NODES, "one node takes pods", evidence=counts
        )
        assert len(space.pods("gpu")) == 5
    finally:
        space.kubectl.run("uncordon", "gpu-sim-0")
        space.kubectl.run("delete", "computepool", GPU_POOL, "--ignore-not-found")
