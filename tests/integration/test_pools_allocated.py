"""Two allocators that decide about one Inference, on a real API server: their parts add up, and each pool runs its part."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import Any

import pytest

from builders.inference import inference_body
from builders.waiting import wait_until
from fixtures.allocated import Allocated

pytestmark = pytest.mark.usefixtures("controllers")
_ADDRESSES = (f"127.92.0.{number}" for number in count(1))


class World:
    """The model ctr in the pool a of four slices, and behind it the pool b of four others."""

    def __init__(self, allocated: Allocated) -> None:
        self.allocated, self.pools = allocated, allocated.pools
        self.pools.kubectl("label", "node", allocated.node, "part=a")
        policy = {"mode": "Auto", "interval": "1s", "dwell": "0s"}
        self.first = self.pools.pool(selector={"part": "a"}, policy=policy)
        self.pools.node("b", labels={"part": "b"})
        self.second = self.pools.pool("b", selector={"part": "b"}, policy=policy)
        self.pools.counts(self.second, 4, 4, 4)

    def model(self, least: int, most: int) -> None:
        body = inference_body(
            "ctr",
            placement={"pools": [{"name": self.first}, {"name": self.second}]},
            replicas=None,
            scaling={"minReplicas": least, "maxReplicas": most},
        )
        self.pools.kubectl.apply({**body, "metadata": {"name": "ctr"}}, namespace=self.pools.namespace)

    def status(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.pools.kubectl.json(
            "get", "inference", "ctr", "-n", self.pools.namespace
        )
        return found.get("status", {})

    def has(self, first: int, second: int) -> None:
        """Waits until the pools run so many, all ready, while pods come and go."""
        summary = f"{self.first} {first}/{first}, {self.second} {second}/{second}"

        def found() -> str:
            self.allocated.kubelet(_ADDRESSES)
            return str(self.status().get("poolSummary"))

        wait_until(lambda: found() == summary, what=f"{summary}: {self.status()}")

    def parts(self) -> Mapping[str, int]:
        """What was decided, by pool."""
        allocation = self.status().get("allocation", {})
        parts = {pool["name"]: pool.get("replicas", 0) for pool in allocation.get("pools", ())}
        assert sum(parts.values()) == allocation.get("replicas", 0)
        return parts


def test_a_pin_is_met_by_both_pools_in_the_order_of_the_list(allocated: Allocated) -> None:
    allocated.check = lambda _: None  # type: ignore[method-assign]
    world = World(allocated)
    world.model(1, 8)
    world.has(1, 0)

    pin = allocated.override("more", "ctr", pin={"replicas": 6})
    world.has(4, 2)
    assert world.parts() == {world.first: 4, world.second: 2}
    for part in world.status()["allocation"]["pools"]:
        assert part["decision"].startswith(part["name"]), "each part names a decision of its own pool"

    # Fewer: the last pool of the list gives first.
    world.pools.kubectl("delete", "computeoverride", pin)
    allocated.override("fewer", "ctr", pin={"replicas": 3})
    world.has(3, 0)
