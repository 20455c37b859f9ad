"""GPUs that NVIDIA's DRA driver publishes and the claims that have them, watched from the first pool on that shares GPUs so."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from tidegate.api.meta import ObjectKey
from tidegate.kube import kinds
from tidegate.kube.client import KubeClient
from tidegate.kube.port import Manifest
from tidegate.kube.store import ObjectStore
from tidegate.kube.watch import Reflector
from tidegate.resources.names import POOL_LABEL, label_value
from tidegate.resources.sharing.gpus import (
    DEVICE_CLASS,
    DRIVER,
    DeviceId,
    Gpu,
    PublishedGpu,
    allocated,
    pool_of_claim,
    published_gpus,
)

_DRIVERS_OWN: Final = f"spec.driver={DRIVER}"
_CLASS_KEY: Final = ObjectKey("", DEVICE_CLASS)

Subscriber = Callable[[str], None]
"""Takes the name of a node; empty where no node in particular is concerned."""


class Gpus:
    """Each node's GPUs as planners see them, and a call to whoever wants to know that they have changed.

    Clusters without a pool that shares GPUs by claims are spared these watches: they begin with `begin`.
    """

    def __init__(self, client: KubeClient) -> None:
        self.claims = ObjectStore(kinds.RESOURCE_CLAIM, labels=(POOL_LABEL,))
        self._slices = ObjectStore(kinds.RESOURCE_SLICE)
        self._classes = ObjectStore(kinds.DEVICE_CLASS)
        self._reflectors = (
            Reflector(client, self._slices, fields=_DRIVERS_OWN),
            Reflector(client, self.claims),
            Reflector(client, self._classes),
        )
        self._begun = asyncio.Event()
        self._of_slice: dict[ObjectKey, tuple[str, int, tuple[PublishedGpu, ...]]] = {}
        self._slices_of: dict[str, set[ObjectKey]] = {}
        self._node_of: dict[str, str] = {}
        self._owners: dict[DeviceId, tuple[ObjectKey, str]] = {}
        self._devices_of: dict[ObjectKey, tuple[DeviceId, ...]] = {}
        self._subscribers: list[Subscriber] = []
        self._slices.subscribe(self._slice_changed)
        self.claims.subscribe(self._claim_changed)
        self._classes.subscribe(lambda _: self._tell(""))

    @property
    def known(self) -> bool:
        """Whether everything has been listed once, or the API server has said that there is none."""
        return all(each.settled.is_set() for each in self._reflectors)

    @property
    def missing(self) -> str:
        """Why no GPU of the cluster can be shared by claims, and what to do; empty where it can."""
        if any(each.absent for each in self._reflectors):
            return (
                "the API server does not serve resource.k8s.io/v1: SharedClaim needs Kubernetes 1.34 or later; "
                "use a pool with backend DevicePlugin"
            )
        if not self.known or not all(each.synced.is_set() for each in (self._slices, self.claims)):
            return "ResourceSlices and ResourceClaims cannot be listed: look at the logs of the controllers"
        if self._classes.get(_CLASS_KEY) is None:
            return (
                f"there is no DeviceClass {DEVICE_CLASS}: install NVIDIA's DRA driver with GPUs enabled (resources.gpus.enabled "
                "in its Helm values), or use a pool with backend DevicePlugin"
            )
        return ""

    def begin(self) -> None:
        """Somebody wants to know."""
        self._begun.set()

    async def run(self) -> None:
        """Watches, once that has begun, until cancelled."""
        await self._begun.wait()
        async with asyncio.TaskGroup() as tasks:
            for each in self._reflectors:
                tasks.create_task(each.run())

    def subscribe(self, subscriber: Subscriber) -> None:
        """Calls `subscriber` with each node whose GPUs have changed, or have changed hands."""
        self._subscribers.append(subscriber)

    def of(self, node: str) -> tuple[Gpu, ...]:
        """The GPUs of a node, by name."""
        slices = [self._of_slice[key] for key in self._slices_of.get(node, ())]
        # While a driver publishes anew, what it said before is there as well.
        newest = max((generation for _, generation, _ in slices), default=0)
        found = (one for _, generation, gpus in slices if generation == newest for one in gpus)
        return tuple(self._gpu(one) for one in sorted(found, key=lambda one: one.id))

    def claims_of(self, pool: str) -> Sequence[Manifest]:
        """The claims that a ComputePool has made."""
        bodies = self.claims.by_label(POOL_LABEL, label_value(pool))
        return [body for body in bodies if pool_of_claim(body)]

    def _gpu(self, one: PublishedGpu) -> Gpu:
        owner = self._owners.get(one.id)
        return Gpu(one) if owner is None else Gpu(one, *owner)

    def _slice_changed(self, key: ObjectKey) -> None:
        body = self._slices.get(key)
        before = self._of_slice.pop(key, None)
        if before is not None:
            self._slices_of[before[0]].discard(key)
        spec: Mapping[str, Any] = body["spec"] if body is not None else {}
        node = spec.get("nodeName", "")
        if body is not None and node:
            self._of_slice[key] = (node, spec["pool"]["generation"], published_gpus(body))
            self._slices_of.setdefault(node, set()).add(key)
            self._node_of[spec["pool"]["name"]] = node
        for name in {before[0] if before is not None else "", node} - {""}:
            self._tell(name)

    def _claim_changed(self, key: ObjectKey) -> None:
        body = self.claims.get(key)
        before = self._devices_of.pop(key, ())
        for each in before:
            # A listing says who has a GPU now before it says who no longer has it.
            if each in self._owners and self._owners[each][0] == key:
                del self._owners[each]
        now = tuple(allocated(body)) if body is not None else ()
        if body is not None and now:
            self._devices_of[key] = now
            self._owners.update({each: (key, pool_of_claim(body)) for each in now})
        for node in {self._node_of.get(each.pool, "") for each in (*before, *now)} or {""}:
            self._tell(node)

    def _tell(self, node: str) -> None:
        for subscriber in self._subscribers:
            subscriber(node)
