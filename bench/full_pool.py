"""What a change costs in a pool that is full: so many nodes of four slices, an Inference on each, and all want one slice more.

    python bench/full_pool.py [--inferences 10000] [--changes 100]

The controllers' caches, fed as watches feed them; no API server. Prints one JSON document with the median time on the event loop,
in milliseconds, of: the share of one Inference after another one's has changed; the plan of the pool after a node has changed;
a lost node, with the calls to those that it concerns, and how many they are. Exits 1 if one of them keeps the event loop for more
than 250 ms.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from builders.compute_pool import compute_pool_body, node_body
from builders.inference import inference_body
from builders.ownership import of_inference
from tidegate.api.compute_pool import ComputePool
from tidegate.api.inference import Inference
from tidegate.api.meta import ObjectKey
from tidegate.kube.occupancy import NodeOccupancy
from tidegate.kube.pool_slices_cache import PoolSlicesCache
from tidegate.kube.store import ObjectStore
from tidegate.kube.typed_cache import TypedCache
from tidegate.planning.pools.compute_pool import PoolObserved, plan_pool
from tidegate_controllers.ownership import Ownership
from tidegate_controllers.placements import Placements, PoolSources
from tidegate_controllers.stores import Stores

SLICES = 4
MOST_MS = 250.0
POOL = ObjectKey("", "cpu-a")


class PoolFleet:
    """The caches, and the views and placements that are built on them."""

    def __init__(self, inferences: int) -> None:
        self.stores = Stores()
        self.inferences = TypedCache(Inference, self.stores.inferences)
        self.occupancy, self.pools = (
            NodeOccupancy(self.stores.pods),
            TypedCache(ComputePool, self.stores.pools),
        )
        self.views = PoolSlicesCache(self.pools, self.occupancy)
        ownership = Ownership(self.stores)
        parts = PoolSources(self.pools, self.views, self.occupancy, ownership)
        self.placements = Placements(parts, self.inferences, self.stores)
        self.woken: list[ObjectKey] = []
        self.placements.subscribe(self.woken.append)
        self.occupancy.start_watching()
        self._version = 0
        self.deliver_event(self.stores.pools, compute_pool_body())
        for number in range(inferences):
            self.deliver_node(number)
            placement = {"pool": POOL.name, "slices": 1}
            body = inference_body(f"m{number}", "ads", placement=placement, replicas=SLICES + 1)
            self.deliver_event(self.stores.inferences, body)
            self.deliver_deployment(number, SLICES)
        self.deliver_pool()

    def deliver_pool(self) -> None:
        """Deliver the pool as its reconciler writes it."""
        self.deliver_event(
            self.stores.pools, {**compute_pool_body(), "status": {"slices": {"total": self._version}}}
        )

    def deliver_event(self, store: ObjectStore, body: dict[str, Any]) -> None:
        """Deliver one event of a watch."""
        self._version += 1
        body = {**body, "metadata": {**body["metadata"], "resourceVersion": str(self._version)}}
        store.observe("MODIFIED", body)

    def deliver_node(self, number: int, *, ready: bool = True) -> None:
        """Deliver a node."""
        self.deliver_event(self.occupancy._nodes, node_body(f"node-{number}", ready=ready))  # noqa: SLF001 - as its watch feeds it

    def deliver_deployment(self, number: int, replicas: int) -> None:
        """Deliver the Deployment of an Inference."""
        labels = {
            "app.kubernetes.io/managed-by": "tidegate",
            "tidegate.io/inference": f"m{number}",
            "tidegate.io/pool": POOL.name,
            "tidegate.io/slices": "1",
            "tidegate.io/tier": "realtime",
        }
        metadata = {
            "name": f"inf-m{number}",
            "namespace": "ads",
            "uid": f"uid-inf-m{number}",
            "labels": labels,
            **of_inference(f"m{number}"),
        }
        spec = {"replicas": replicas, "template": {"metadata": {"labels": labels}, "spec": {}}}
        self.deliver_event(self.stores.deployments, {"metadata": metadata, "spec": spec})

    def place_inference(self, number: int) -> None:
        """Place one Inference after the Deployment of another has changed."""
        self.deliver_deployment(number + 1, SLICES - number % 2)
        inference = self.inferences.get(ObjectKey("ads", f"m{number}"))
        assert inference is not None
        self.placements.place(inference)
        self.placements.forget_assumed(inference.key)

    def plan_status(self, number: int) -> None:
        """Plan the pool's status after a node has changed."""
        self.deliver_node(number, ready=number % 2 == 0)
        pool = self.pools.get(POOL)
        assert pool is not None
        plan_pool(PoolObserved(pool, datetime.now(UTC), self.views.get_slices(pool)))

    def lose_node(self, number: int) -> None:
        """Make a node unready, and deliver the pool's status that reports it."""
        self.deliver_node(number, ready=False)
        self.deliver_pool()


def median_ms(act: Callable[[int], None], changes: int) -> float:
    """Return the median time of `act` in milliseconds."""
    times: list[float] = []
    for number in range(changes):
        started_at = time.perf_counter()
        act(number)
        times.append((time.perf_counter() - started_at) * 1000)
    return round(statistics.median(times), 3)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--inferences", type=int, default=10_000)
    parser.add_argument("--changes", type=int, default=100)
    args = parser.parse_args()
    fleet = PoolFleet(args.inferences)
    figures = {
        "share_ms": median_ms(fleet.place_inference, args.changes),
        "plan_ms": median_ms(fleet.plan_status, args.changes),
    }
    fleet.woken.clear()
    figures["lost_node_ms"] = median_ms(fleet.lose_node, args.changes)
    figures["woken_per_lost_node"] = len(fleet.woken) / args.changes
    met = all(figures[name] <= MOST_MS for name in ("share_ms", "plan_ms", "lost_node_ms"))
    print(json.dumps({"inferences": args.inferences, "met": met, "most_ms": MOST_MS, **figures}, indent=2))
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
