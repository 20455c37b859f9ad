"""Caches the nodes and all pods on them, for the planners of pools."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from tidegate.api.meta import ObjectKey
from tidegate.kube import kinds
from tidegate.kube.client import KubeClient
from tidegate.kube.port import Manifest
from tidegate.kube.store import ObjectStore
from tidegate.kube.transforms import select_fields, trim_pod_spec
from tidegate.kube.watch import Reflector
from tidegate.planning.pools.nodes import NodeView, Occupant, parse_node, parse_occupant
from tidegate.resources.names import POOL_LABEL, UNMANAGED_SELECTOR

_READY_CONDITION: Final = "Ready"

Subscriber = Callable[[str], None]
"""Takes the name of a node."""


class NodeOccupancy:
    """Nodes and their pods as planners see them.

    The watch of nodes and of all pods starts with `start_watching`, so that clusters without a ComputePool do not pay for it.
    """

    def __init__(self, ours: ObjectStore, owns: Callable[[Manifest], bool] = lambda _: True) -> None:
        """Read our pods from `ours`, a cache that is filled elsewhere, by the selector OURS.

        `owns` returns whether such a pod is really an Inference's; the others occupy a node as any foreign pod does. Call
        `refresh_pod` when its answer for a pod changes.
        """
        self._ours = ours
        self._owns = owns
        self._nodes = ObjectStore(kinds.NODE, transform=_trim_node)
        self._foreign_pods = ObjectStore(kinds.POD, transform=_trim_foreign_pod)
        self._views: dict[ObjectKey, NodeView] = {}
        self._occupants: dict[ObjectKey, Occupant] = {}
        self._by_node: dict[str, dict[ObjectKey, Occupant]] = {}
        self._subscribers: list[Subscriber] = []
        self._started = asyncio.Event()
        self._nodes.subscribe(self._node_changed)
        for store, changed in ((self._foreign_pods, self._foreign_pod_changed), (ours, self.refresh_pod)):
            store.subscribe(changed)

    @property
    def has_synced(self) -> bool:
        """Return whether nodes and pods have been listed; before that, free room would be overestimated."""
        return self._nodes.synced.is_set() and self._foreign_pods.synced.is_set()

    async def wait_for_sync(self) -> None:
        """Wait until nodes and pods have been listed."""
        for store in (self._nodes, self._foreign_pods):
            await store.synced.wait()

    @property
    def own_stores(self) -> tuple[ObjectStore, ...]:
        """Return the own caches: of nodes, and of the pods that are not ours."""
        return self._nodes, self._foreign_pods

    def start_watching(self) -> None:
        """Start watching nodes and pods, if that has not begun."""
        if self._started.is_set():
            return
        self._started.set()
        for key in self._ours.keys():  # noqa: SIM118 - a store, not a dict
            self.refresh_pod(key)

    def refresh_pod(self, key: ObjectKey) -> None:
        """Read one of our pods from its cache again."""
        body = self._ours.get(key)
        if not self._started.is_set():
            # Parse it anyway: the cache then leaves out a malformed pod, and `start_watching` does not meet it.
            _ = parse_occupant(body) if body is not None else None
            return
        placed = body is not None and POOL_LABEL in (body["metadata"].get("labels") or {})
        self._update_occupant(
            key, parse_occupant(body, owned=placed and self._owns(body)) if body is not None else None
        )

    async def run(self, client: KubeClient) -> None:
        """Wait for `start_watching`, then watch until cancelled."""
        await self._started.wait()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(Reflector(client, self._nodes).run(), name="watch-nodes")
            foreign_pods = Reflector(client, self._foreign_pods, selector=UNMANAGED_SELECTOR)
            tasks.create_task(foreign_pods.run(), name="watch-other-pods")

    def subscribe(self, subscriber: Subscriber) -> None:
        """Call `subscriber` with each node that changes or whose occupants change; heartbeats do not count."""
        self._subscribers.append(subscriber)

    def list_nodes(self) -> Sequence[NodeView]:
        """Return every node, in no order."""
        return tuple(self._views.values())

    def get_node(self, name: str) -> NodeView | None:
        """Return the node of that name; None if there is none."""
        return self._views.get(ObjectKey("", name))

    def list_occupants(self, node: str) -> Sequence[Occupant]:
        """Return the pods of a node."""
        return tuple(self._by_node.get(node, {}).values())

    def _node_changed(self, key: ObjectKey) -> None:
        body = self._nodes.get(key)
        before = self._views.pop(key, None)
        if body is not None:
            self._views[key] = parse_node(body)
        if before != self._views.get(key):
            self._notify_subscribers(key.name)

    def _foreign_pod_changed(self, key: ObjectKey) -> None:
        body = self._foreign_pods.get(key)
        self._update_occupant(key, parse_occupant(body) if body is not None else None)

    def _update_occupant(self, key: ObjectKey, now: Occupant | None) -> None:
        before = self._occupants.pop(key, None)
        if before is not None:
            occupants = self._by_node[before.node]
            del occupants[key]
            if not occupants:
                del self._by_node[before.node]
        if now is not None:
            self._occupants[key] = now
            self._by_node.setdefault(now.node, {})[key] = now
        if before != now:
            for node in {pod.node for pod in (before, now) if pod is not None}:
                self._notify_subscribers(node)

    def _notify_subscribers(self, node: str) -> None:
        for subscriber in self._subscribers:
            subscriber(node)


def _trim_node(body: Manifest) -> Manifest:
    """Return what is read of a node; most of it is dropped: images, heartbeats, annotations."""
    status = body.get("status") or {}
    conditions = [
        condition for condition in status.get("conditions") or () if condition["type"] == _READY_CONDITION
    ]
    return {
        "metadata": _select_metadata(body, "labels"),
        "spec": select_fields(body.get("spec"), "unschedulable", "taints"),
        "status": {"allocatable": status.get("allocatable") or {}, "conditions": conditions},
    }


def _trim_foreign_pod(body: Manifest) -> Manifest:
    """Return the node, the resource requests and the phase of a pod that is not ours."""
    return {
        "metadata": _select_metadata(body),
        "spec": trim_pod_spec(body),
        "status": select_fields(body.get("status"), "phase"),
    }


def _select_metadata(body: Manifest, *fields: str) -> Mapping[str, Any]:
    return select_fields(
        body["metadata"], "name", "namespace", "uid", "resourceVersion", "deletionTimestamp", *fields
    )
