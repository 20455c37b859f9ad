"""Warm spares on a real API server: who gets them, that they get no requests, and that a promotion starts no pod.

No kubelet runs: a test says of pods that they are ready. What gateways would be told is what a ModelAccess says of its targets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

import pytest

from builders.model_access import a_route, model_access_body
from builders.waiting import wait_until
from fixtures.allocated import Allocated

pytestmark = pytest.mark.usefixtures("controllers")
_ADDRESSES = (f"127.91.0.{number}" for number in count(1))


class Warm:
    """The model ctr behind a ModelAccess, in a pool that keeps one spare."""

    def __init__(self, allocated: Allocated) -> None:
        self.allocated, self.kubectl = allocated, allocated.kubectl
        self.namespace = allocated.pools.namespace

    def pool(self, spares: int, mode: str = "Auto", **tiers: Any) -> None:
        tiers["realtime"] = {"warmSpares": spares, **tiers.get("realtime", {})}
        self.allocated.pools.pool(policy={"mode": mode, "interval": "1s"}, tiers=tiers)

    def access(self, *names: str) -> None:
        for name in names:
            targets = [{"inference": name, "weight": 100}]
            body = model_access_body(
                name, self.namespace, hosts=[], routes=[a_route("default", targets=targets)]
            )
            self.kubectl.apply(
                {**body, "metadata": {"name": name, "namespace": self.namespace}}, namespace=self.namespace
            )

    def pods(self, name: str = "ctr") -> Sequence[Mapping[str, Any]]:
        found = self.kubectl.json("get", "pods", "-n", self.namespace, "-l", f"tidegate.io/inference={name}")[
            "items"
        ]
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def names(self, name: str = "ctr") -> set[str]:
        return {pod["metadata"]["name"] for pod in self.pods(name)}

    def inference(self, name: str = "ctr") -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.kubectl.json("get", "inference", name, "-n", self.namespace)
        return found.get("status", {})

    def told(self, name: str = "ctr") -> tuple[int, int]:
        """Replicas and spares that were decided."""
        allocation = self.inference(name).get("allocation", {})
        return allocation.get("replicas", 0), allocation.get("spares", 0)

    def endpoints(self, name: str = "ctr") -> int:
        """Pods that the gateways are told of."""
        status = self.kubectl.json("get", "modelaccess", name, "-n", self.namespace).get("status", {})
        routes = status.get("routes", ())
        return sum(target["endpoints"] for route in routes for target in route["targets"])

    def until(self, wanted: Mapping[str, Any]) -> None:
        """Waits until all of it is so, while pods come and go."""

        def found() -> Mapping[str, Any]:
            self.allocated.kubelet(_ADDRESSES)
            read = {
                "told": self.told,
                "pods": lambda: len(self.pods()),
                "endpoints": self.endpoints,
                "spareReplicas": lambda: self.inference().get("spareReplicas"),
                "readyReplicas": lambda: self.inference().get("readyReplicas"),
            }
            return {name: read[name]() for name in wanted}

        wait_until(lambda: found() == wanted, what=f"{wanted}; it is {found()}")


@pytest.fixture
def warm(allocated: Allocated) -> Warm:
    return Warm(allocated)


def test_a_spare_is_loaded_and_gets_no_requests_until_it_is_promoted_without_a_pod_more(warm: Warm) -> None:
    warm.pool(1)
    warm.allocated.model("ctr", 1, 2)
    warm.access("ctr")
    warm.until({"told": (1, 1), "pods": 2, "readyReplicas": 2, "spareReplicas": 1, "endpoints": 1})
    [spare] = warm.allocated.decisions()[0]["spec"]["spares"]
    assert (spare["inference"], spare["replicas"]) == (f"{warm.namespace}/ctr", 1)
    assert warm.allocated.pools.placed("ctr", "Placed").endswith("1 of them as a warm spare")
    before = warm.names()

    warm.allocated.override("sale", "ctr", floor={"replicas": 2})
    warm.until({"told": (2, 0), "endpoints": 2, "spareReplicas": None})
    assert warm.names() == before
    decision = next(each for each in warm.allocated.decisions() if each["spec"].get("moves"))
    [move] = decision["spec"]["moves"]
    assert (move["from"], move["to"], move["promoted"]) == (1, 2, 1)
    assert move["why"].endswith("; from a warm spare")
    warm.allocated.applied(decision)


def test_without_a_spare_a_pod_starts(warm: Warm) -> None:
    """What the test before compares with."""
    warm.pool(0)
    warm.allocated.model("ctr", 1, 2)
    warm.access("ctr")
    warm.until({"told": (0, 0), "pods": 1, "endpoints": 1, "spareReplicas": None})
    before = warm.names()
    warm.allocated.override("sale", "ctr", floor={"replicas": 2})
    warm.until({"told": (2, 0), "endpoints": 2})
    assert before < warm.names()
    [move] = warm.allocated.decisions()[0]["spec"]["moves"]
    assert move["promoted"] == 0


def test_a_spare_takes_the_place_of_a_pod_that_fails_also_where_nothing_is_to_move(warm: Warm) -> None:
    warm.pool(1)
    warm.allocated.model("ctr", 1, 2)
    warm.access("ctr")
    warm.until({"told": (1, 1), "readyReplicas": 2, "endpoints": 1})
    warm.pool(1, "Hold")
    wait_until(
        lambda: warm.allocated.pools.status(warm.allocated.pool).get("mode") == "Hold",
        what="the pool is held",
    )
    said = len(warm.allocated.decisions())
    for pod in sorted(warm.names()):
        # Whichever of the two serves: when one fails the other one is there, and with both gone nobody is.
        warm.kubectl.report_pod(pod, warm.namespace, ready=False)
        wait_until(lambda: warm.inference().get("readyReplicas") == 1, what="one is ready")
        wait_until(lambda: warm.endpoints() == 1, what="one serves")
        assert warm.inference()["spareReplicas"] == 0
        warm.kubectl.report_pod(pod, warm.namespace)
        warm.until({"readyReplicas": 2, "endpoints": 1})
    assert len(warm.allocated.decisions()) == said
    assert warm.told() == (1, 1)
