"""One Inference in two pools on a real API server, with a real scheduler and Kubernetes' own controllers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from builders.inference import inference_body
from builders.waiting import wait_until
from fixtures.pools import Pools
from tidegate.api.reasons import Reason
from tidegate.resources.names import POOL_LABEL, make_pool_deployment_name

pytestmark = pytest.mark.usefixtures("controllers")


class Spilling:
    """The Inference ctr in pools a and b, each with a node of its own."""

    def __init__(self, pools: Pools) -> None:
        self.pools = pools
        pools.node("a", labels={"part": "a"}, cpu="2")
        pools.node("b", labels={"part": "b"})
        self.first, self.second = (pools.pool(part, selector={"part": part}) for part in ("a", "b"))
        pools.counts(self.first, 2, 2, 2)
        pools.counts(self.second, 4, 4, 4)

    def asks(self, replicas: int, *pools: str) -> None:
        """Applies what the Inference asks for, and waits until the controllers have seen it."""
        asked = {"pools": [{"name": pool} for pool in pools], "slices": 1}
        body = inference_body("ctr", placement=asked, replicas=replicas)
        self.pools.kubectl.apply({**body, "metadata": {"name": "ctr"}}, namespace=self.pools.namespace)
        wait_until(self._is_observed, what="the controllers have seen the spec")

    def status(self) -> Mapping[str, Any]:
        """The status of the Inference."""
        return self._object().get("status", {})

    def pods(self, pool: str, count: int) -> Mapping[str, Mapping[str, Any]]:
        """Waits until so many pods have a node of a pool; they by uid."""

        def found() -> Mapping[str, Mapping[str, Any]]:
            selector = f"tidegate.io/inference=ctr,{POOL_LABEL}={pool}"
            pods = self.pools.kubectl.json("get", "pods", "-n", self.pools.namespace, "-l", selector)["items"]
            return {
                pod["metadata"]["uid"]: pod
                for pod in pods
                if pod["spec"].get("nodeName") and "deletionTimestamp" not in pod["metadata"]
            }

        wait_until(lambda: len(found()) == count, what=f"{count} pods run in {pool}: {len(found())}")
        return found()

    def deployments(self) -> set[str]:
        """The names of the Deployments."""
        names = self.pools.kubectl("get", "deployments", "-n", self.pools.namespace, "--output=name").split()
        return {name.removeprefix("deployment.apps/") for name in names}

    def report_ready(self, pods: Mapping[str, Mapping[str, Any]]) -> None:
        """Says, as a kubelet would, that pods are ready."""
        for number, pod in enumerate(pods.values(), start=1):
            address = f"10.9.{pod['spec']['nodeName'].encode()[-1]}.{number}"
            self.pools.kubectl.report_pod(pod["metadata"]["name"], self.pools.namespace, address=address)

    def _object(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.pools.kubectl.json(
            "get", "inference", "ctr", "-n", self.pools.namespace
        )
        return found

    def _is_observed(self) -> bool:
        found = self._object()
        observed = found.get("status", {}).get("observedGeneration")
        return bool(observed == found["metadata"]["generation"])


def test_replicas_spill_over_stay_where_they_run_and_leave_a_pool_when_others_are_ready(pools: Pools) -> None:
    world = Spilling(pools)
    first, second = world.first, world.second
    own = make_pool_deployment_name("ctr", second)
    pools.inference("ctr", pool=first, replicas=2)
    before = world.pods(first, 2).keys()

    # 1. A second pool takes what the first has no room for, and restarts nothing.
    world.asks(3, first, second)
    assert world.pods(first, 2).keys() == before
    [spilled] = world.pods(second, 1).values()
    assert spilled["spec"]["nodeName"] == f"{pools.namespace}-b"
    assert world.deployments() == {"inf-ctr", own}
    message = pools.placed("ctr", Reason.PLACED)
    assert message == f"3 of 3 replicas have slices (2 in ComputePool {first}, 1 in ComputePool {second})"
    pools.tiers(first, realtime=2)
    pools.tiers(second, realtime=1)

    # 2. More than both have waits, and names both.
    pools.kubectl("scale", "inference/ctr", "--replicas=7", "-n", pools.namespace)
    message = pools.placed("ctr", Reason.POOL_FULL)
    assert message.startswith("6 of 7 replicas have slices (")
    assert first in message
    assert f"ComputePool {second} gives 4 of 5 replicas" in message
    pools.kubectl("scale", "inference/ctr", "--replicas=3", "-n", pools.namespace)
    pools.placed("ctr", Reason.PLACED)
    world.pods(first, 2)
    [spilled_uid] = world.pods(second, 1)
    pools.ended("ctr")

    # 3. Another order moves nothing.
    world.asks(3, second, first)
    assert world.pods(first, 2).keys() == before
    assert world.pods(second, 1).keys() == {spilled_uid}

    # 4. The second pool leaves: while the first is full its pod stays.
    world.report_ready({**world.pods(first, 2), **world.pods(second, 1)})
    world.asks(3, first)
    message = pools.placed("ctr", Reason.POOL_FULL)
    assert message.endswith(f"end as others become ready: 1 in ComputePool {second}")
    assert world.pods(second, 1).keys() == {spilled_uid}

    # 5. A node more for the first: its new pod starts, and the other ends only once that is ready.
    pools.node("more-a", labels={"part": "a"}, cpu="1")
    third = {uid: pod for uid, pod in world.pods(first, 3).items() if uid not in before}
    pools.placed("ctr", Reason.PLACED)
    assert world.pods(second, 1).keys() == {spilled_uid}
    summary = f"{first} 2/3, {second} 1/1"
    wait_until(lambda: world.status().get("poolSummary") == summary, what=f"{summary}: {world.status()}")
    world.report_ready(third)
    world.pods(second, 0)
    pools.ended("ctr")
    wait_until(
        lambda: world.deployments() == {"inf-ctr"}, what="the Deployment of the second pool is deleted"
    )
    assert world.pods(first, 3).keys() >= before
    pools.tiers(second)


def test_a_pool_that_does_not_exist_is_named_and_takes_nothing_from_the_other(pools: Pools) -> None:
    world = Spilling(pools)
    missing = f"{pools.namespace}-c"
    world.asks(3, missing, world.second)
    message = pools.placed("ctr", Reason.POOL_NOT_FOUND)
    assert (
        f"3 of 3 replicas have slices (3 in ComputePool {world.second}): there is no ComputePool {missing}"
        in message
    )
    running = world.pods(world.second, 3).keys()

    # A pool that is deleted in a move: its pods stay, and what is new goes to the other.
    world.asks(4, world.second, world.first)
    pools.kubectl("delete", "computepool", world.second)
    message = pools.placed("ctr", Reason.POOL_NOT_FOUND)
    assert f"there is no ComputePool {world.second}; its " in message
    world.asks(6, world.second, world.first)
    world.pods(world.first, 2)
    assert world.pods(world.second, 4).keys() > running
