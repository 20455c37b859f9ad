"""ComputePools on a real API server with a real scheduler, and the controllers as a real process.

The nodes are only said to be there: no kubelet runs, so pods get a node and no more.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import pytest

from builders.compute_pool import node_body
from builders.waiting import wait_until
from fixtures.pools import Pools
from fixtures.processes import Running
from tidegate.api.reasons import Reason
from tidegate.resources.names import INFERENCE_LABEL
from tidegate.resources.slices import SHARED_GPU

pytestmark = pytest.mark.usefixtures("controllers")

STRANGER_CPU = "1500m"


@contextmanager
def _stranger(pools: Pools, node: str) -> Generator[None]:
    """Somebody's pod on a node."""
    container = {"name": "c", "image": "c", "resources": {"requests": {"cpu": STRANGER_CPU}}}
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "stranger"},
        "spec": {"nodeName": node, "containers": [container]},
    }
    pools.kubectl.apply(body, namespace=pools.namespace)
    yield
    pools.kubectl("delete", "pod", "stranger", "-n", pools.namespace, "--force", "--grace-period=0")


@pytest.mark.produces(Reason.NO_NODES, Reason.NODES_UNHEALTHY)
def test_pool_counts_what_its_nodes_have_and_follows_them(pools: Pools) -> None:
    pool = pools.pool()
    assert f"kubectl label node <name> pool={pools.namespace}" in pools.says(pool, Reason.NO_NODES)

    first = pools.node("0")
    pools.counts(pool, 4, 4, 4)
    second = pools.node("1", cpu="2")
    pools.counts(pool, 6, 6, 6)
    assert pools.says(pool, Reason.POOL_READY) == "6 slices on 2 nodes"

    pools.kubectl("cordon", second)
    pools.counts(pool, 6, 4, 4)
    assert f"node {second} is cordoned" in pools.says(pool, Reason.NODES_UNHEALTHY, "Healthy")
    assert pools.condition(pool)["status"] == "True"
    pools.kubectl("uncordon", second)
    pools.counts(pool, 6, 6, 6)

    with _stranger(pools, first):
        pools.counts(pool, 4, 4, 4)
    pools.counts(pool, 6, 6, 6)

    pools.node_status(first, {"conditions": [{"type": "Ready", "status": "Unknown"}]})
    pools.counts(pool, 6, 2, 2)
    pools.kubectl("delete", "node", first)
    pools.counts(pool, 2, 2, 2)


@pytest.mark.produces(Reason.SLICE_TOO_LARGE, Reason.FLOORS_EXCEED_POOL, Reason.NODES_OVERLAP)
def test_pools_that_ask_for_more_than_there_is_name_the_figures(pools: Pools) -> None:
    pools.node()
    pool = pools.pool(slice={"cpu": {"cpu": "8"}})
    assert "cpu 8 and memory 1Gi" in pools.says(pool, Reason.SLICE_TOO_LARGE)

    pools.pool(tiers={"realtime": {"floor": 4}, "offline": {"floor": 1}})
    assert "(realtime 4, nearline 0, offline 1), the pool has 4" in pools.says(
        pool, Reason.FLOORS_EXCEED_POOL
    )

    pools.pool(tiers=None)
    pools.says(pool, Reason.POOL_READY)
    # Made within one second they are as old as each other, and then the name decides.
    newer = pools.pool("b")
    assert f"to ComputePool {pool}" in pools.says(newer, Reason.NODES_OVERLAP)
    pools.kubectl("delete", "computepool", pool)
    pools.says(newer, Reason.POOL_READY)


def test_settled_pool_is_not_written_again(pools: Pools, controllers: Running) -> None:
    node, pool = pools.node(), pools.pool()
    pools.counts(pool, 4, 4, 4)
    _is_looked_after(pools, pool)
    before, looked = _written(pools, pool), _looks(controllers)

    # A label that no pool selects by concerns no slice.
    pools.kubectl("label", "node", node, "heart=beats")
    wait_until(lambda: _looks(controllers) > looked, what="the controllers look again")
    assert _written(pools, pool) == before

    # What does concern them is written: the same measure moves.
    pools.kubectl("cordon", node)
    pools.counts(pool, 4, 0, 0)
    assert _written(pools, pool) != before


def _is_looked_after(pools: Pools, pool: str) -> None:
    """Waits for the allocator's first word, which follows the slices."""
    wait_until(lambda: "mode" in pools.status(pool), what=f"{pool} has a mode")


def _written(pools: Pools, pool: str) -> str:
    return str(pools.kubectl.json("get", "computepool", pool)["metadata"]["resourceVersion"])


def _looks(running: Running) -> float:
    """How often a pool has been reconciled without an error."""
    return sum(
        float(line.rsplit(" ", 1)[1])
        for line in running.metrics().splitlines()
        if line.startswith("tidegate_reconciles_total{") and 'queue="compute-pool"' in line
    )


def test_table_shows_the_pool_at_a_glance(pools: Pools) -> None:
    pools.node()
    pool = pools.pool()
    pools.counts(pool, 4, 4, 4)
    _is_looked_after(pools, pool)
    header, row = pools.kubectl("get", "cpool", pool).splitlines()
    assert header.split() == [
        *("NAME", "SLICES", "FREE", "REALTIME", "NEARLINE", "OFFLINE", "MODE", "READY", "REASON", "AGE")
    ]
    assert row.split()[:9] == [pool, "4", "4", "0", "0", "0", "RecommendOnly", "True", "PoolReady"]


@pytest.mark.produces(Reason.POOL_FULL)
def test_pods_run_on_slices_of_the_pool_and_those_for_which_none_is_left_are_not_made(pools: Pools) -> None:
    node, pool = pools.node(), pools.pool()
    pools.counts(pool, 4, 4, 4)
    pools.inference("ctr", pool=pool, slices=2)
    pod = pools.bound("ctr", 1)[0]
    assert pod["spec"]["nodeName"] == node
    assert pod["spec"]["nodeSelector"] == pools.labels
    asked = [
        each["resources"]["requests"] for each in (*pod["spec"]["containers"], *pod["spec"]["initContainers"])
    ]
    assert asked == [{"cpu": "1950m", "memory": "1920Mi"}, {"cpu": "50m", "memory": "128Mi"}]
    pools.tiers(pool, realtime=2)
    pools.counts(pool, 4, 4, 2)

    pools.inference("batch", pool=pool, tier="offline", replicas=3)
    said = pools.placed("batch", Reason.POOL_FULL)
    assert "gives 2 of 3 replicas their 1 slice: of 4 healthy slices 0 are left to tier offline" in said
    pools.bound("batch", 2)
    pools.tiers(pool, realtime=2, offline=2)
    pods = pools.kubectl.json("get", "pods", "-n", pools.namespace)["items"]
    assert len(pods) == 3  # none waits for a node

    # Room is made elsewhere: whoever waits for it gets it without another step.
    pools.kubectl("delete", "inference", "ctr", "-n", pools.namespace)
    mine = ("-n", pools.namespace, "-l", f"{INFERENCE_LABEL}=ctr")

    def gone() -> bool:
        """No kubelet ends its pods here, and its Deployment may replace one before it goes itself."""
        pools.kubectl("delete", "pods", *mine, "--force", "--grace-period=0")
        return not pools.kubectl("get", "deployments,replicasets,pods", *mine, "--output=name").strip()

    wait_until(gone, what="ctr and its pods are gone")
    pools.bound("batch", 3)
    pools.placed("batch", Reason.PLACED)


@pytest.mark.produces(Reason.TIER_FULL, Reason.TOO_MANY_SLICES)
def test_floors_ceilings_and_the_largest_node_bound_what_is_given(pools: Pools) -> None:
    pools.node()
    tiers = {"realtime": {"floor": 2}, "nearline": {"ceiling": 1}}
    pool = pools.pool(tiers=tiers)
    pools.counts(pool, 4, 4, 4)

    pools.inference("near", pool=pool, tier="nearline", replicas=2)
    assert "tier nearline has 1 slices and a ceiling of 1" in pools.placed("near", Reason.TIER_FULL)
    pools.inference("batch", pool=pool, tier="offline", replicas=3)
    assert "gives 1 of 3 replicas" in pools.placed("batch", Reason.POOL_FULL)
    pools.inference("large", pool=pool, slices=5)
    assert "the largest has 4" in pools.placed("large", Reason.TOO_MANY_SLICES)

    pools.inference("ctr", pool=pool, replicas=2)
    pools.bound("ctr", 2)
    pools.tiers(pool, realtime=2, nearline=1, offline=1)
    pools.pool(tiers={"nearline": {"ceiling": 2}})
    pools.kubectl("scale", "inference/ctr", "--replicas=1", "-n", pools.namespace)
    pools.bound("ctr", 1)
    # The pod that goes has its slice until it is gone, and without a kubelet nobody else says when that is.
    pools.placed("near", Reason.POOL_FULL)
    pools.ended("ctr")
    pools.placed("near", Reason.PLACED)


@pytest.mark.produces(Reason.POOL_NOT_FOUND, Reason.POOL_NOT_READY)
def test_pool_that_is_not_there_or_takes_no_pods_is_named_and_what_runs_stays(pools: Pools) -> None:
    node, missing = pools.node(), f"{pools.namespace}-a"
    pools.inference("ctr", pool=missing)
    assert f"there is no ComputePool {missing}" in pools.placed("ctr", Reason.POOL_NOT_FOUND)

    pool = pools.pool()
    before = pools.bound("ctr", 1)
    pools.placed("ctr", Reason.PLACED)

    pools.kubectl("cordon", node)
    pools.inference("cvr", pool=pool)
    assert f"node {node} is cordoned" in pools.placed("cvr", Reason.POOL_NOT_READY)
    pools.placed("ctr", Reason.PLACED)
    pools.kubectl("uncordon", node)
    pools.bound("cvr", 1)

    pools.kubectl("delete", "computepool", pool)
    assert "its 1 pods stay as they are" in pools.placed("ctr", Reason.POOL_NOT_FOUND)
    pools.kubectl("scale", "inference/ctr", "--replicas=2", "-n", pools.namespace)
    pools.placed("ctr", Reason.POOL_NOT_FOUND, "Ready")
    after = pools.bound("ctr", 1)
    assert [pod["metadata"]["uid"] for pod in after] == [pod["metadata"]["uid"] for pod in before]

    pools.pool()
    running = {pod["metadata"]["uid"] for pod in pools.bound("ctr", 2)}
    pools.kubectl("delete", "computepool", pool)
    pools.placed("ctr", Reason.POOL_NOT_FOUND)
    pools.kubectl("scale", "inference/ctr", "--replicas=1", "-n", pools.namespace)
    assert {pod["metadata"]["uid"] for pod in pools.bound("ctr", 1)} < running


@pytest.mark.produces(Reason.SHARING_NOT_CONFIGURED, Reason.MODEL_NOT_SHAREABLE)
def test_gpu_pods_get_one_device_each_on_nodes_that_are_shared_out_as_the_pool_says(pools: Pools) -> None:
    labels = {
        "nvidia.com/gpu.count": "1",
        "nvidia.com/gpu.sharing-strategy": "mps",
        "nvidia.com/mps.capable": "true",
        "nvidia.com/device-plugin.config": "mps-2",
    }
    node = pools.node(labels=labels, cpu="16", memory="64Gi", **{SHARED_GPU: "2"})
    mps = {"slicesPerGPU": 4, "runAsUser": 1000, "cpu": "2", "memory": "4Gi"}
    pool = pools.pool(slice={"cpu": None, "mps": mps})
    said = pools.says(pool, Reason.SHARING_NOT_CONFIGURED, "SharingConfigured")
    assert f"kubectl drain {node}" in said
    assert f"kubectl label node {node} --overwrite nvidia.com/device-plugin.config=mps-4" in said
    pools.counts(pool, 2, 0, 0)

    # What the commands bring about, once the plugin has read its other configuration.
    pools.kubectl("label", "node", node, "--overwrite", "nvidia.com/device-plugin.config=mps-4")
    status = node_body(node, cpu="16", memory="64Gi", **{SHARED_GPU: "4"})["status"]
    pools.node_status(node, status)
    pools.counts(pool, 4, 4, 4)
    pools.says(pool, Reason.SHARING_CONFIGURED, "SharingConfigured")

    pools.inference("ctr", pool=pool, replicas=5)
    assert "gives 4 of 5 replicas" in pools.placed("ctr", Reason.POOL_FULL)
    for pod in pools.bound("ctr", 4):
        triton = pod["spec"]["containers"][0]
        assert triton["resources"]["limits"][SHARED_GPU] == "1"
        assert pod["spec"]["securityContext"]["runAsUser"] == 1000
    pools.tiers(pool, realtime=4)

    pools.inference("script", pool=pool, model={"format": "Python"})
    assert "export it as ONNX or TensorRT" in pools.placed("script", Reason.MODEL_NOT_SHAREABLE)
