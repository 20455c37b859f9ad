"""GPU slices by the device plugin: what a pod gets, what a node must show, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from builders.compute_pool import a_compute_pool, node_body, pod_on
from builders.conditions import find_condition
from tidegate.api.compute_pool import ComputePool
from tidegate.api.inference import ArtefactFormat, Tier
from tidegate.api.meta import ObjectKey
from tidegate.api.reasons import Reason
from tidegate.planning.plan import ReconcilePlan
from tidegate.planning.pools.claims import PoolClaim
from tidegate.planning.pools.compute_pool import PoolObserved, plan_pool
from tidegate.planning.pools.nodes import parse_node, parse_occupant
from tidegate.planning.pools.placement import place_claim
from tidegate.planning.pools.pool_claims import PoolClaims
from tidegate.planning.pools.pool_slices import sum_pool_slices
from tidegate.resources.slices import make_slice_resources
from tidegate_localcluster.simulated_nodes import GPUS_PER_NODE, REPLICAS_PER_GPU, make_simulated_gpu_node

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MPS = {"slicesPerGPU": 4, "runAsUser": 1000, "cpu": "2", "memory": "8Gi"}
GPU_LABELS = {
    "pool": "a",
    "nvidia.com/device-plugin.config": "mps-4",
    "nvidia.com/gpu.sharing-strategy": "mps",
    "nvidia.com/gpu.count": "2",
    "nvidia.com/mps.capable": "true",
}


def gpu_pool(name: str = "gpu-a", **spec: Any) -> ComputePool:
    return a_compute_pool(name, **{"slice": {"cpu": None, "mps": MPS}, **spec})


def gpu_node(
    name: str = "gpu-0", *, slices: int = 8, labels: dict[str, Any] | None = None, **facts: Any
) -> dict[str, Any]:
    """A node of two GPUs that the plugin has shared out; a label of None is not there."""
    merged = {**GPU_LABELS, **(labels or {})}
    kept = {key: value for key, value in merged.items() if value is not None}
    return node_body(
        name, cpu="64", memory="256Gi", labels=kept, **{"nvidia.com/gpu.shared": str(slices)}, **facts
    )


def planned(
    pool: ComputePool, *nodes: dict[str, Any], pods: tuple[dict[str, Any], ...] = ()
) -> ReconcilePlan:
    views = [parse_node(node) for node in nodes]
    found = [each for each in (parse_occupant(pod) for pod in pods) if each is not None]
    occupants = {view.name: [each for each in found if each.node == view.name] for view in views}
    return plan_pool(PoolObserved(pool, NOW, sum_pool_slices(pool, views, occupants)))


def test_slices_are_what_the_plugin_offers_beside_cpu_and_memory() -> None:
    plan = planned(gpu_pool(), gpu_node())
    assert plan.status["slices"] == {"total": 8, "healthy": 8, "free": 8}
    assert find_condition(plan, "SharingConfigured")["status"] == "True"

    hungry = gpu_pool(slice={"cpu": None, "mps": {**MPS, "cpu": "16"}})
    assert planned(hungry, gpu_node()).status["slices"] == {"total": 4, "healthy": 4, "free": 4}


def test_a_node_is_judged_by_what_its_pods_tolerate() -> None:
    taint = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
    dedicated = {"key": "dedicated", "value": "ads", "effect": "NoSchedule"}

    assert planned(gpu_pool(), gpu_node(taints=[taint])).status["slices"] == {
        "total": 8,
        "healthy": 8,
        "free": 8,
    }
    both = planned(gpu_pool(), gpu_node(taints=[taint, dedicated]))
    assert "has taint dedicated=ads:NoSchedule" in find_condition(both, "Healthy")["message"]
    pool = gpu_pool(tolerations=[{"key": "dedicated", "value": "ads"}])
    assert find_condition(planned(pool, gpu_node(taints=[taint, dedicated])), "Healthy")["status"] == "True"
    assert (
        find_condition(planned(gpu_pool(), gpu_node(taints=[{**taint, "effect": "NoExecute"}])), "Healthy")[
            "status"
        ]
        == "False"
    )


def test_a_pods_slice_is_counted_by_its_device() -> None:
    pod = pod_on("gpu-0", pool="gpu-a", cpu="2", memory="8Gi")
    pod["spec"]["containers"][0]["resources"]["requests"]["nvidia.com/gpu.shared"] = "1"
    assert planned(gpu_pool(), gpu_node(), pods=(pod,)).status["slices"] == {
        "total": 8,
        "healthy": 8,
        "free": 7,
    }


@pytest.mark.parametrize(
    ("node", "words"),
    [
        (
            gpu_node(labels={"nvidia.com/device-plugin.config": "mps-8"}),
            "has nvidia.com/device-plugin.config=mps-8 instead of mps-4: kubectl drain gpu-0 --ignore-daemonsets",
        ),
        (
            gpu_node(labels={"nvidia.com/device-plugin.config": None}),
            "kubectl label node gpu-0 --overwrite nvidia.com/device-plugin.config=mps-4",
        ),
        (
            gpu_node(labels={"nvidia.com/gpu.sharing-strategy": "none"}),
            "look at the logs of GPU feature discovery",
        ),
        (gpu_node(slices=0), "offers 0 nvidia.com/gpu.shared instead of 8 (2 GPUs of 4 slices)"),
        (gpu_node(slices=6), "offers 6 nvidia.com/gpu.shared instead of 8"),
        (gpu_node(slices=12), "offers 12 nvidia.com/gpu.shared instead of 8"),
    ],
)
def test_a_node_that_is_not_shared_out_as_the_pool_says_is_named_with_the_way_out(
    node: dict[str, Any], words: str
) -> None:
    plan = planned(gpu_pool(), node, gpu_node("gpu-1"))

    said = find_condition(plan, "SharingConfigured")
    assert (said["status"], said["reason"]) == ("False", "SharingNotConfigured")
    assert "1 of 2 nodes; the first is node gpu-0, which" in said["message"]
    assert words in said["message"]
    slices: Any = plan.status["slices"]
    assert slices["healthy"] == slices["free"] == 8  # those of the other node alone
    assert find_condition(plan, "Ready")["status"] == "True"


def test_a_gpu_that_fails_takes_its_own_slices_away_and_no_others() -> None:
    labels = {"nvidia.com/gpu.count": "8"}
    plan = planned(
        gpu_pool(), gpu_node(slices=28, labels=labels), gpu_node("gpu-1", slices=32, labels=labels)
    )

    assert plan.status["slices"] == {"total": 64, "healthy": 60, "free": 60}
    assert find_condition(plan, "SharingConfigured")["status"] == "True"
    said = find_condition(plan, "Healthy")
    assert (said["status"], said["reason"]) == ("False", "NodesUnhealthy")
    assert said["message"].startswith(
        "1 of 2 nodes have devices that failed, 60 of 64 slices are healthy: "
        "node gpu-0 offers 28 of 32 nvidia.com/gpu.shared; look at"
    )
    assert find_condition(plan, "Ready")["status"] == "True"


def test_a_change_of_the_slices_size_says_which_of_them_are_still_in_use() -> None:
    pod = pod_on("gpu-0", pool="gpu-a", cpu="2", memory="8Gi")
    smaller = gpu_pool(slice={"cpu": None, "mps": {**MPS, "slicesPerGPU": 8}})
    said = find_condition(planned(smaller, gpu_node(), pods=(pod,)), "SharingConfigured")
    assert "1 of its slices are assigned" in said["message"]


def test_a_pod_gets_one_device_one_user_and_its_tiers_priority() -> None:
    pool = gpu_pool(tolerations=[{"key": "dedicated", "value": "ads"}])
    resources = make_slice_resources(pool, 1, Tier.REALTIME)

    assert resources.devices == {"nvidia.com/gpu.shared": "1"}
    assert resources.run_as_user == 1000
    assert resources.env == {"CUDA_MPS_CLIENT_PRIORITY": "0"}
    assert resources.node_selector == {"pool": "a", "nvidia.com/mps.capable": "true"}
    assert [each["key"] for each in resources.tolerations] == ["nvidia.com/gpu", "dedicated"]
    assert (resources.cpu, resources.memory) == ("1950m", "8064Mi")
    for tier in (Tier.NEARLINE, Tier.OFFLINE):
        assert make_slice_resources(pool, 1, tier).env == {"CUDA_MPS_CLIENT_PRIORITY": "1"}


@pytest.mark.parametrize(
    ("slices", "model", "reason"),
    [
        (2, ArtefactFormat.ONNX, Reason.TOO_MANY_SLICES),
        (1, ArtefactFormat.PYTHON, Reason.MODEL_NOT_SHAREABLE),
        (1, ArtefactFormat.TENSORRT, Reason.PLACED),
    ],
)
def test_a_pod_is_one_process_on_one_slice(slices: int, model: ArtefactFormat, reason: Reason) -> None:
    pool = gpu_pool()
    claim = PoolClaim(ObjectKey("ads", "ctr"), Tier.REALTIME, slices, 1, 0, "", model)
    result = place_claim(
        claim, None, pool, sum_pool_slices(pool, [parse_node(gpu_node())], {}), PoolClaims((claim,))
    )
    assert result.verdict.reason is reason
    assert result.replicas == int(reason is Reason.PLACED)


def test_a_simulated_node_is_as_its_pool_says() -> None:
    """The local cluster's nodes claim to be what the plugin leaves behind; a pool on them is how that is checked."""
    body: dict[str, Any] = {**make_simulated_gpu_node(0)}
    body["status"] = {**body["status"], "conditions": [{"type": "Ready", "status": "True"}]}
    pool = a_compute_pool(
        nodeSelector={"pool": None, "tidegate.io/simulated": "true"},
        slice={"cpu": None, "mps": {**MPS, "slicesPerGPU": REPLICAS_PER_GPU}},
        tolerations=[{"key": "kwok.x-k8s.io/node", "operator": "Exists"}],
    )
    total = GPUS_PER_NODE * REPLICAS_PER_GPU
    assert planned(pool, body).status["slices"] == {"total": total, "healthy": total, "free": total}
