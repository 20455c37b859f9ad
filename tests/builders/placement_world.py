"""Two pools and the Inferences in them, as the caches of the controllers have them."""

from __future__ import annotations

from typing import Any

from builders.compute_pool import compute_pool_body, node_body
from builders.inference import inference_body
from builders.ownership import of_deployment, of_inference
from tidegate.api.compute_pool import ComputePool
from tidegate.api.inference import Inference
from tidegate.api.meta import ObjectKey
from tidegate.kube.occupancy import NodeOccupancy
from tidegate.kube.pool_slices_cache import PoolSlicesCache
from tidegate.kube.typed_cache import TypedCache
from tidegate.planning.pools.placement import PlacementResult
from tidegate.planning.pools.pool_slices import PoolSlices
from tidegate_controllers.ownership import Ownership
from tidegate_controllers.placements import Placements, PoolSources
from tidegate_controllers.stores import Stores


class PlacementWorld:
    """Two pools of one node with four slices each, and the caches behind them, fed as watches feed them."""

    def __init__(self) -> None:
        self.stores = Stores()
        self.inferences = TypedCache(Inference, self.stores.inferences)
        ownership = Ownership(self.stores)
        self.pools = pools = TypedCache(ComputePool, self.stores.pools)
        self.occupancy = occupancy = NodeOccupancy(self.stores.pods, ownership.owns_pod)
        ownership.subscribe(occupancy.refresh_pod)
        self.views = PoolSlicesCache(pools, occupancy)
        parts = PoolSources(pools, self.views, occupancy, ownership)
        self.placements = Placements(parts, self.inferences, self.stores)
        self.woken: set[str] = set()
        self.placements.subscribe(lambda key: self.woken.add(key.name))
        self._version = 0
        self._nodes = occupancy._nodes
        occupancy.start_watching()
        for name in ("a", "b"):
            self.has(self.stores.pools, compute_pool_body(f"cpu-{name}", nodeSelector={"pool": name}))
            self.node(f"node-{name}")
        self.woken.clear()

    def has(self, store: Any, body: dict[str, Any], *, gone: bool = False) -> None:
        self._version += 1
        metadata = {"uid": f"uid-{body['metadata']['name']}", **body["metadata"]}
        body = {**body, "metadata": {**metadata, "resourceVersion": str(self._version)}}
        store.observe("DELETED" if gone else "MODIFIED", body)

    def node(self, name: str, **facts: Any) -> None:
        """A node as it is now, and then its pool's status, as the pool's reconciler writes it."""
        self.has(self._nodes, node_body(name, **facts, labels={"pool": name[-1]}))
        pool = compute_pool_body(f"cpu-{name[-1]}", nodeSelector={"pool": name[-1]})
        self.has(self.stores.pools, {**pool, "status": {"slices": {"total": self._version}}})

    def inference(self, name: str, *pools: str, gone: bool = False, **spec: Any) -> None:
        """An Inference in one pool, by default cpu-a, or in several."""
        asked: dict[str, Any] = {"pool": pools[0] if pools else "cpu-a"}
        if len(pools) > 1:
            asked = {"pools": [{"name": pool} for pool in pools]}
        placement, status = {**asked, "slices": spec.pop("slices", 1)}, spec.pop("status", {})
        body = {
            **inference_body(name, "ads", placement=placement, **{"replicas": 4, **spec}),
            "status": status,
        }
        self.has(self.stores.inferences, body, gone=gone)

    def deployment(
        self,
        inference: str,
        replicas: int,
        pool: str = "cpu-a",
        *,
        name: str = "",
        slices: int = 1,
        gone: bool = False,
    ) -> None:
        labels = {**pool_labels(inference, pool), "tidegate.io/slices": str(slices)}
        template = {"metadata": {"labels": labels}, "spec": {}}
        metadata = {"name": name or f"inf-{inference}", "namespace": "ads", "labels": labels}
        metadata |= of_inference(inference)
        body = {"metadata": metadata, "spec": {"replicas": replicas, "template": template}}
        self.has(self.stores.deployments, body, gone=gone)

    def job(self, name: str, inference: str) -> None:
        labels = pool_labels(inference, "cpu-a")
        metadata = {"name": name, "namespace": "ads", "uid": f"uid-{name}", "labels": labels}
        spec = {"parallelism": 0, "template": {"metadata": {"labels": labels}}}
        self.has(self.stores.jobs, {"metadata": {**metadata, **of_inference(inference)}, "spec": spec})

    def forged(self, namespace: str = "tenant-b", **metadata: Any) -> None:
        """A tenant's own pod, with labels of its own choice."""
        labels = {**pool_labels("ctr", "cpu-a"), "tidegate.io/slices": "999" if namespace != "ads" else "1"}
        own = {"name": "hog", "namespace": namespace, "uid": "uid-hog"}
        own |= {**metadata, "labels": {**labels, **metadata.get("labels", {})}}
        requests = {"cpu": "1", "memory": "1Gi"}
        spec = {"nodeName": "node-a", "containers": [{"name": "c", "resources": {"requests": requests}}]}
        self.has(self.stores.pods, {"metadata": own, "spec": spec, "status": {"phase": "Running"}})

    def slices(self, pool: str) -> PoolSlices:
        found = self.pools.get(ObjectKey("", pool))
        assert found is not None
        return self.views.get_slices(found)

    def pod(self, name: str, number: int, pool: str = "cpu-a", *, cpu: str = "", gone: bool = False) -> None:
        metadata = {"name": f"{name}-{number}", "namespace": "ads"}
        metadata |= of_deployment(f"inf-{name}", pool_labels(name, pool))
        container = {"name": "triton", "resources": {"requests": {"cpu": cpu} if cpu else {}}}
        body = {
            "metadata": metadata,
            "spec": {"nodeName": f"node-{pool[-1]}", "containers": [container]},
            "status": {"phase": "Running"},
        }
        self.has(self.stores.pods, body, gone=gone)

    def of(self, name: str) -> PlacementResult:
        inference = self.inferences.get(ObjectKey("ads", name))
        assert inference is not None
        result = self.placements.place(inference)
        assert result is not None
        return result


def pool_labels(name: str, pool: str) -> dict[str, str]:
    """Labels of a Deployment or pod on one slice of a pool."""
    return {
        "app.kubernetes.io/managed-by": "tidegate",
        "tidegate.io/inference": name,
        "tidegate.io/pool": pool,
        "tidegate.io/slices": "1",
        "tidegate.io/tier": "offline",
    }
