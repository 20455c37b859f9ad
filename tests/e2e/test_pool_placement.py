"""Who gets a slice of a GPU, and how many are left, by the scheduler: the models there are KWOK's pretence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from builders.waiting import wait_until
from fixtures.installed import Space
from tidegate_localcluster.simulated_nodes import GPUS_PER_NODE, REPLICAS_PER_GPU, SHARED_GPU

GPU_POOL = "e2e-gpu"
GPU_NODES = 2


def test_gpu_pods_are_scheduled_on_simulated_nodes_and_counted(space: Space) -> None:
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
