"""GPUs shared by ResourceClaims, on a real API server with the real scheduler and resource claim controller.

Nodes and GPUs are only said to be there: no kubelet and no DRA driver runs, so pods get a node and a claim, and no more.
"""

from __future__ import annotations

import pytest

from builders.waiting import wait_until
from fixtures.dra import DEVICE_CLASS_BODY, Claims
from fixtures.pools import Pools
from tidegate.api.reasons import Reason
from tidegate.resources.sharing.gpus import DEVICE_CLASS
from tidegate.resources.sharing.shared_claim import claim_name


def nodes_of(pools: Pools, name: str, count: int) -> set[str]:
    """Waits until so many pods of an Inference have a node; the nodes."""
    return {str(pod["spec"]["nodeName"]) for pod in pools.bound(name, count)}


def test_each_claim_gets_a_gpu_of_its_own_and_its_pods_are_on_that_node(claims: Claims) -> None:
    pools = claims.pools
    nodes = {claims.node("0"), claims.node("1")}
    pool = claims.pool()
    pools.counts(pool, 8, 8, 8)
    pools.says(pool, Reason.SHARING_CONFIGURED, "SharingConfigured")
    assert claims.all() == []  # nobody shares a GPU yet

    pools.inference("ctr", pool=pool, replicas=3)
    pools.inference("cvr", pool=pool, replicas=2)
    where = nodes_of(pools, "ctr", 3), nodes_of(pools, "cvr", 2)
    assert [len(each) for each in where] == [1, 1]
    assert where[0] | where[1] == nodes
    pools.inference("small", pool=pool)
    assert nodes_of(pools, "small", 1) == where[0]  # the fullest with room

    names = claims.names(2)
    assert names == sorted(claim_name(pool, 4, ordinal) for ordinal in (0, 1))
    devices = claims.devices()
    assert {devices[name] for name in names} == {(node, "gpu-0") for node in nodes}
    for name in ("ctr", "cvr"):
        for pod in claims.pods(name):
            (named,) = pod["spec"]["resourceClaims"]
            assert devices[named["resourceClaimName"]][0] == pod["spec"]["nodeName"]
            assert pod["spec"]["containers"][0]["resources"]["claims"] == [{"name": "gpu"}]
            assert pod["spec"]["securityContext"]["runAsUser"] == 1000
    assert sorted(claims.reserved(name) for name in names) == [2, 4]
    pools.tiers(pool, realtime=6)
    pools.counts(pool, 8, 8, 2)


def test_two_gpus_of_one_node_are_two_claims(claims: Claims) -> None:
    pools, node = claims.pools, claims.node(gpus=2)
    pool = claims.pool(slicesPerGPU=2)
    pools.counts(pool, 4, 4, 4)
    pools.inference("ctr", pool=pool, replicas=2)
    pools.inference("cvr", pool=pool, replicas=2)
    pools.bound("ctr", 2)
    pools.bound("cvr", 2)
    claims.names(2)
    assert set(claims.devices().values()) == {(node, "gpu-0"), (node, "gpu-1")}


@pytest.mark.produces(Reason.SCALING_UNSUPPORTED)
def test_one_gpu_bounds_an_inference_and_a_namespace(claims: Claims) -> None:
    pools = claims.pools
    claims.node()
    pool = claims.pool()
    pools.counts(pool, 4, 4, 4)
    pools.inference("ctr", pool=pool, replicas=6)
    assert "gives 4 of 6 replicas: all replicas of an Inference share one GPU of 4" in pools.placed(
        "ctr", Reason.POOL_FULL
    )
    pools.bound("ctr", 4)
    pools.inference("range", pool=pool, replicas=None, scaling={"minReplicas": 1, "maxReplicas": 2})
    assert "set spec.replicas" in pools.placed("range", Reason.SCALING_UNSUPPORTED)
    assert claims.reserved(claim_name(pool, 4, 0)) == 4


def test_a_pod_that_comes_instead_of_another_waits_at_the_gate_until_that_one_is_gone(claims: Claims) -> None:
    pools, node = claims.pools, claims.node()
    pool, name = claims.pool(), ""
    pools.counts(pool, 4, 4, 4)
    pools.inference("ctr", pool=pool, replicas=4)
    first = pools.bound("ctr", 4)[0]["metadata"]["name"]
    (name,) = claims.names(1)

    # No kubelet ends the pod, so it finishes its requests for as long as the test likes.
    claims.kubectl("delete", "pod", first, "-n", claims.namespace, "--wait=false")
    wait_until(lambda: claims.gated("ctr") == 1, what="its successor waits at the gate", timeout_s=60.0)
    assert f"pod {first} finishes its requests" in pools.placed("ctr", Reason.DRAINING, "Ready")
    assert claims.reserved(name) == 4

    # It is the gate that keeps the fifth out: the scheduler would let it in.
    spec = {
        "nodeSelector": pools.labels,
        "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
        "containers": [{"name": "c", "image": "c", "resources": {"claims": [{"name": "gpu"}]}}],
    }
    stranger = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "stranger"}, "spec": spec}
    claims.kubectl.apply(stranger, namespace=claims.namespace)
    wait_until(lambda: claims.reserved(name) == 5, what="the scheduler takes a fifth pod", timeout_s=60.0)
    claims.kubectl("delete", "pod", "stranger", "-n", claims.namespace, "--force", "--grace-period=0")

    pools.ended("ctr")
    assert nodes_of(pools, "ctr", 4) == {node}
    assert claims.gated("ctr") == 0
    wait_until(lambda: claims.reserved(name) == 4, what="four pods have the GPU", timeout_s=60.0)


def test_a_surge_waits_for_a_slice_and_takes_none_that_others_have(claims: Claims) -> None:
    pools = claims.pools
    claims.node()
    pool = claims.pool(slicesPerGPU=2)
    pools.counts(pool, 2, 2, 2)
    pools.inference("ctr", pool=pool)
    pools.inference("cvr", pool=pool)
    pools.bound("ctr", 1)
    pools.bound("cvr", 1)
    (name,) = claims.names(1)
    pools.inference("ctr", pool=pool, model={"uri": "file:///models/other"})
    wait_until(lambda: claims.gated("ctr") == 1, what="the successor waits", timeout_s=60.0)
    said = pools.placed("ctr", Reason.UNSCHEDULABLE, "Ready")
    assert f"waits until ResourceClaim {name} has a slice" in said
    assert claims.reserved(name) == 2

    claims.kubectl("delete", "inference", "cvr", "-n", claims.namespace)

    def let_in() -> bool:
        """No kubelet ends the other's pod here, and one that is not told to end yet would be made again."""
        for pod in claims.pods("cvr"):
            if "deletionTimestamp" in pod["metadata"]:
                name = pod["metadata"]["name"]
                claims.kubectl.run(
                    "delete", "pod", name, "-n", claims.namespace, "--force", "--grace-period=0"
                )
        return claims.gated("ctr") == 0

    wait_until(let_in, what="the successor is let in", timeout_s=60.0)


def test_after_a_change_of_size_what_runs_stays_until_it_is_drained(claims: Claims) -> None:
    pools, node = claims.pools, claims.node()
    pool = claims.pool()
    pools.counts(pool, 4, 4, 4)
    pools.inference("ctr", pool=pool)
    before = {pod["metadata"]["uid"] for pod in pools.bound("ctr", 1)}
    (old,) = claims.names(1)

    claims.pool(slicesPerGPU=2)
    said = pools.says(pool, Reason.SHARING_NOT_CONFIGURED, "SharingConfigured")
    assert f"node {node}, which has ResourceClaim {claims.namespace}/{old} of another slicesPerGPU" in said
    assert f"kubectl drain {node}" in said
    pools.counts(pool, 0, 0, 0)
    pools.inference("cvr", pool=pool)
    pools.placed("cvr", Reason.POOL_NOT_READY)
    assert {pod["metadata"]["uid"] for pod in pools.bound("ctr", 1)} == before
    assert claims.names(1) == [old]

    # What a drain brings about, with nobody there who would end the pods.
    claims.kubectl("cordon", node)
    claims.kubectl("delete", "pods", "--all", "-n", claims.namespace, "--force", "--grace-period=0")
    claims.kubectl("uncordon", node)
    new = claim_name(pool, 2, 0)
    wait_until(
        lambda: [each["metadata"]["name"] for each in claims.all()] == [new],
        what="the claim of the new size",
        timeout_s=60.0,
    )
    pools.bound("ctr", 1)
    pools.bound("cvr", 1)
    pools.says(pool, Reason.SHARING_CONFIGURED, "SharingConfigured")
    pools.counts(pool, 2, 2, 0)
    assert claims.devices() == {new: (node, "gpu-0")}


def test_claims_go_with_the_last_pod_and_with_the_pool(claims: Claims) -> None:
    pools = claims.pools
    claims.node(gpus=2)
    pool = claims.pool(slicesPerGPU=2)
    pools.counts(pool, 4, 4, 4)
    pools.inference("ctr", pool=pool, tier="offline", replicas=2)
    pools.inference("cvr", pool=pool, replicas=2)
    pools.bound("ctr", 2)
    pools.bound("cvr", 2)
    first, second = claims.names(2)
    mine = {pod["metadata"]["name"]: pod["spec"]["resourceClaims"] for pod in claims.pods("ctr")}
    (gone,) = {each[0]["resourceClaimName"] for each in mine.values()}

    claims.kubectl("scale", "inference/ctr", "--replicas=0", "-n", claims.namespace)
    wait_until(
        lambda: all("deletionTimestamp" in pod["metadata"] for pod in claims.pods("ctr")),
        what="the pods are on their way out",
        timeout_s=60.0,
    )
    assert len(claims.all()) == 2  # they have the GPU until they are gone
    pools.ended("ctr")
    assert claims.names(1) == [({first, second} - {gone}).pop()]

    claims.kubectl("delete", "computepool", pool, "--wait=false")
    pools.placed("cvr", Reason.POOL_NOT_FOUND)
    pools.bound("cvr", 2)  # what runs goes on
    claims.kubectl("delete", "inference", "cvr", "-n", claims.namespace)

    def none() -> bool:
        claims.kubectl("delete", "pods", "--all", "-n", claims.namespace, "--force", "--grace-period=0")
        return not claims.all()

    wait_until(none, what="no claim is left", timeout_s=90.0)


def test_a_claim_that_is_refused_keeps_only_its_own_pods_waiting(claims: Claims) -> None:
    pools = claims.pools
    claims.node(gpus=2)
    pool = claims.pool()
    pools.counts(pool, 8, 8, 8)
    first, second = (claim_name(pool, 4, ordinal) for ordinal in (0, 1))
    request = {"name": "g", "exactly": {"deviceClassName": DEVICE_CLASS}}
    theirs = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": first},
        "spec": {"devices": {"requests": [request]}},
    }
    claims.kubectl.apply(theirs, namespace=claims.namespace)
    pools.inference("ctr", pool=pool, replicas=4)
    wait_until(lambda: claims.gated("ctr") == 4, what="pods that wait for their claim", timeout_s=60.0)
    pools.inference("cvr", pool=pool, replicas=4)
    pools.bound("cvr", 4)
    said = pools.says(pool, Reason.SHARING_NOT_CONFIGURED, "SharingConfigured")
    assert f"the API server refuses ResourceClaim {claims.namespace}/{first}" in said
    assert claims.gated("ctr") == 4

    claims.kubectl("delete", "resourceclaim", first, "-n", claims.namespace)
    pools.bound("ctr", 4)
    pools.says(pool, Reason.SHARING_CONFIGURED, "SharingConfigured")
    assert claims.names(2) == sorted((first, second))


def test_gpus_of_others_are_not_counted(claims: Claims) -> None:
    pools, node = claims.pools, claims.node(gpus=2)
    pool = claims.pool()
    pools.counts(pool, 8, 8, 8)
    request = {"name": "g", "exactly": {"deviceClassName": DEVICE_CLASS}}
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "theirs"},
        "spec": {"devices": {"requests": [request]}},
    }
    spec = {
        "nodeSelector": pools.labels,
        "resourceClaims": [{"name": "g", "resourceClaimName": "theirs"}],
        "containers": [{"name": "c", "image": "c", "resources": {"claims": [{"name": "g"}]}}],
    }
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "theirs"}, "spec": spec}
    claims.kubectl.apply(claim, pod, namespace=claims.namespace)
    pools.counts(pool, 4, 4, 4)
    claims.kubectl("delete", "pod", "theirs", "-n", claims.namespace, "--force", "--grace-period=0")
    pools.counts(pool, 8, 8, 8)

    # Neither is one that the driver has put a taint on.
    claims.publish(node, 2, generation=2, tainted=(1,))
    pools.counts(pool, 4, 4, 4)


def test_what_the_cluster_lacks_is_named(claims: Claims) -> None:
    pools = claims.pools
    node = pools.node(cpu="64", memory="256Gi")
    pool = claims.pool()
    said = pools.says(pool, Reason.SHARING_NOT_CONFIGURED, "SharingConfigured")
    assert f"node {node}, which has no GPU in a ResourceSlice of the driver gpu.nvidia.com" in said

    claims.publish(node, 1)
    pools.says(pool, Reason.SHARING_CONFIGURED, "SharingConfigured")
    claims.kubectl("delete", "deviceclass", DEVICE_CLASS)
    said = pools.says(pool, Reason.SHARING_NOT_CONFIGURED, "SharingConfigured")
    assert f"there is no DeviceClass {DEVICE_CLASS}: install NVIDIA's DRA driver" in said
    claims.kubectl.apply(DEVICE_CLASS_BODY)
    pools.says(pool, Reason.SHARING_CONFIGURED, "SharingConfigured")
