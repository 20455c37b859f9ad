"""A real HorizontalPodAutoscaler of an Inference in a pool, bounded by a real allocator. It has no metrics: its bounds alone make it scale."""

from __future__ import annotations

import pytest

from builders.waiting import wait_until
from fixtures.allocated import Allocated, looks_again
from fixtures.processes import Running

pytestmark = [pytest.mark.usefixtures("controllers")]


def autoscaler(allocated: Allocated, name: str, own_most: str | None) -> None:
    target = {"apiVersion": "tidegate.io/v1alpha1", "kind": "Inference", "name": name}
    body = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {
            "name": name,
            "labels": {} if own_most is None else {"tidegate.io/max-replicas": own_most},
        },
        "spec": {"scaleTargetRef": target, "minReplicas": 1, "maxReplicas": 10},
    }
    allocated.kubectl.apply(body, namespace=allocated.pools.namespace)


def most(allocated: Allocated, name: str) -> int:
    found = allocated.kubectl.json("get", "hpa", name, "-n", allocated.pools.namespace)
    return int(found["spec"]["maxReplicas"])


def wanted(allocated: Allocated, name: str) -> int:
    found = allocated.kubectl.json("get", "inference", name, "-n", allocated.pools.namespace)
    return int(found["spec"]["replicas"])


@pytest.mark.slow(
    "unit/test_autoscaler_bounds.py: what is written to an autoscaler; here Kubernetes' own acts on it"
)
def test_an_autoscaler_asks_for_no_more_than_the_pool_could_give(
    allocated: Allocated, controllers: Running
) -> None:
    """Four slices: `guard` and `free` keep one each, and the batch has no right to any."""
    namespace = allocated.pools.namespace
    allocated.model("guard", 1, 1)
    allocated.model("batch", 0, 4, tier="offline")
    for name, own_most in (("ctr", "10"), ("free", None)):
        allocated.pools.inference(name, pool=allocated.pool)
        autoscaler(allocated, name, own_most)

    # Recommending moves nothing, and bounds nobody.
    allocated.decided(batch=1)
    looks_again(controllers, allocated.pool)
    assert most(allocated, "ctr") == 10
    allocated.mode("Auto")
    wait_until(lambda: most(allocated, "ctr") == 2, what="it may have two")
    allocated.settled(batch=1, ctr=1)

    # The API server takes any number; the autoscaler brings it back to what there is, and the batch gives its slice.
    allocated.kubectl("scale", "inference", "ctr", "-n", namespace, "--replicas=4")
    wait_until(lambda: wanted(allocated, "ctr") == 2, what="it wants two")
    allocated.settled(batch=0, ctr=2, free=1, guard=1)
    # One that is not marked goes as far as its author said.
    assert most(allocated, "free") == 10

    # Whoever puts his own maximum back is not corrected, until the pool has something else to say.
    allocated.kubectl(
        "patch", "hpa", "ctr", "-n", namespace, "--type=merge", "-p", '{"spec":{"maxReplicas":9}}'
    )
    looks_again(controllers, allocated.pool)
    assert most(allocated, "ctr") == 9
    allocated.kubectl("delete", "hpa,inference", "free", "-n", namespace, "--wait=false")

    def may_have_three() -> bool:
        allocated.kubelet()
        return most(allocated, "ctr") == 3

    wait_until(may_have_three, what="it may have three, once the pod of the other is gone")
