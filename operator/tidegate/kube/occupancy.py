"""Caches the nodes and all pods on them, for the planners of pools."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from tidegate.api.meta import ObjectKey
from tidegate.kube import kinds
from tidegate.kube.client import KubeClient
from tidegate.kube.facts import occupying, only
from tidegate.kube.port import Manifest
from tidegate.kube.store import ObjectStore
from tidegate.kube.watch import Reflector
from tidegate.planning.nodes import NodeView, Occupant, node_view, occupant
from tidegate.resources.names import NOT_OURS, POOL_LABEL

_READY_CONDITION: Final = "Ready"

Subscriber = Callable[[str], None]
"""Takes the name of a node."""


class Occupancy:
    """Nodes and their pods as planners see them.

    The watch of nodes and of all pods starts with `begin`, so that clusters without a ComputePool do not pay for it.
    """

    def __init__(self, ours: ObjectStore, owns: Callable[[Manifest], bool] = lambda _: True) -> None:
        """Read our pods from `ours`, a cache that is filled elsewhere, by the selector OURS.

        `owns` returns whether such a pod is really an Inference's; the others occupy a node as any foreign pod does. Call
        `look_again` when its answer for a pod changes.
        """
        self._ours = ours
        self._owns = owns
        self._nodes = ObjectStore(kinds.NODE, transform=_node_facts)
        self._others = ObjectStore(kinds.POD, transform=_pod_facts)
        self._views: dict[ObjectKey, NodeView] = {}
        self._occupants: dict[ObjectKey, Occupant] = {}
        self._by_node: dict[str, dict[ObjectKey, Occupant]] = {}
        self._subscribers: list[Subscriber] = []
        self._begun = asyncio.Event()
        self._nodes.subscribe(self._node_changed)
        for store, changed in ((self._others, self._other_changed), (ours, self.look_again)):
            store.subscribe(changed)

    @property
    def known(self) -> bool:
        """Return whether nodes and pods have been listed; before that, free room would be overestimated."""
        return self._nodes.synced.is_set() and self._others.synced.is_set()

    async def until_known(self) -> None:
        """Wait until nodes and pods have been listed."""
        for store in (self._nodes, self._others):
            await store.synced.wait()

    @property
    def stores(self) -> tuple[ObjectStore, ...]:
        """Return the own caches: of nodes, and of the pods that are not ours."""
        return self._nodes, self._others

    def begin(self) -> None:
        """Start watching nodes and pods, if that has not begun."""
        if self._begun.is_set():
            return
        self._begun.set()
        for key in self._ours.keys():  # noqa: SIM118 - a store, not a dict
            self.look_again(key)

    def look_again(self, key: ObjectKey) -> None:
        """Read one of our pods from its cache again."""
        body = self._ours.get(key)
        if not self._begun.is_set():
            # Parse it anyway: the cache then leaves out a malformed pod, and `begin` does not meet it.
            _ = occupant(body) if body is not None else None
            return
        placed = body is not None and POOL_LABEL in (body["metadata"].get("labels") or {})
        self._take(key, occupant(body, owned=placed and self._owns(body)) if body is not None else None)

    async def run(self, client: KubeClient) -> None:
        """Wait for `begin`, then watch until cancelled."""
        await self._begun.wait()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(Reflector(client, self._nodes).run(), name="watch-nodes")
            foreign_pods = Reflector(client, self._others, selector=NOT_OURS)
            tasks.create_task(foreign_pods.run(), name="watch-other-pods")

    def subscribe(self, subscriber: Subscriber) -> None:
        """Call `subscriber` with each node that changes or whose occupants change; heartbeats do not count."""
        self._subscribers.append(subscriber)

    def nodes(self) -> Sequence[NodeView]:
        """Return every node, in no order."""
        return tuple(self._views.values())

    def node(self, name: str) -> NodeView | None:
        """Return the node of that name; None if there is none."""
        return self._views.get(ObjectKey("", name))

    def occupants(self, node: str) -> Sequence[Occupant]:
        """Return the pods of a node."""
        return tuple(self._by_node.get(node, {}).values())

    def _node_changed(self, key: ObjectKey) -> None:
        body = self._nodes.get(key)
        before = self._views.pop(key, None)
        if body is not None:
            self._views[key] = node_view(body)
        if before != self._views.get(key):
            self._tell(key.name)

    def _other_changed(self, key: ObjectKey) -> None:
        body = self._others.get(key)
        self._take(key, occupant(body) if body is not None else None)

    def _take(self, key: ObjectKey, now: Occupant | None) -> None:
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
                self._tell(node)

    def _tell(self, node: str) -> None:
        for subscriber in self._subscribers:
            subscriber(node)


def _node_facts(body: Manifest) -> Manifest:
    """Return what is read of a node; most of it is dropped: images, heartbeats, annotations."""
    status = body.get("status") or {}
    conditions = [
        condition for condition in status.get("conditions") or () if condition["type"] == _READY_CONDITION
    ]
    return {
        "metadata": _metadata(body, "labels"),
        "spec": only(body.get("spec"), "unschedulable", "taints"),
        "status": {"allocatable": status.get("allocatable") or {}, "conditions": conditions},
    }


def _pod_facts(body: Manifest) -> Manifest:
    """Return the node, the resource requests and the phase of a pod that is not ours."""
    return {
        "metadata": _metadata(body),
        "spec": occupying(body),
        "status": only(body.get("status"), "phase"),
    }


def _metadata(body: Manifest, *fields: str) -> Mapping[str, Any]:
    return only(body["metadata"], "name", "namespace", "uid", "resourceVersion", "deletionTimestamp", *fields)
