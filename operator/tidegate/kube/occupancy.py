"""Who takes what of which node: every node and every pod on one, watched from the first ComputePool on."""

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

_NODE_CONDITION: Final = "Ready"

Subscriber = Callable[[str], None]
"""Takes the name of a node."""


class Occupancy:
    """Nodes and their pods as planners see them, and a call to whoever wants to know that they have changed.

    Clusters without a ComputePool are spared the watch of all pods: it begins with `begin`.
    """

    def __init__(self, ours: ObjectStore, owns: Callable[[Manifest], bool] = lambda _: True) -> None:
        """`ours` is a cache of our pods that somebody else fills, by the selector OURS.

        `owns` says which of them are: the others take room as anybody's do. `look_again` is called when it says so of one more.
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
        """Whether everything has been listed once: half a picture would have too much room."""
        return self._nodes.synced.is_set() and self._others.synced.is_set()

    async def until_known(self) -> None:
        """Returns once it is."""
        for store in (self._nodes, self._others):
            await store.synced.wait()

    @property
    def stores(self) -> tuple[ObjectStore, ...]:
        """Its own caches: of nodes, and of the pods that are not ours."""
        return self._nodes, self._others

    def begin(self) -> None:
        """Somebody wants to know: from now on nodes and pods are watched."""
        if self._begun.is_set():
            return
        self._begun.set()
        for key in self._ours.keys():  # noqa: SIM118 - a store, not a dict
            self.look_again(key)

    def look_again(self, key: ObjectKey) -> None:
        """Takes one of our pods as it is now."""
        body = self._ours.get(key)
        if not self._begun.is_set():
            # Read all the same: what raises an exception is left out by the cache, and not met when it has begun.
            _ = occupant(body) if body is not None else None
            return
        placed = body is not None and POOL_LABEL in (body["metadata"].get("labels") or {})
        self._take(key, occupant(body, owned=placed and self._owns(body)) if body is not None else None)

    async def run(self, client: KubeClient) -> None:
        """Watches, once that has begun, until cancelled."""
        await self._begun.wait()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(Reflector(client, self._nodes).run(), name="watch-nodes")
            others = Reflector(client, self._others, selector=NOT_OURS)
            tasks.create_task(others.run(), name="watch-other-pods")

    def subscribe(self, subscriber: Subscriber) -> None:
        """Calls `subscriber` with each node that has changed, or of which more or less is taken; not for its heartbeats."""
        self._subscribers.append(subscriber)

    def nodes(self) -> Sequence[NodeView]:
        """Every node, in no order."""
        return tuple(self._views.values())

    def node(self, name: str) -> NodeView | None:
        """The node of that name, if there is one."""
        return self._views.get(ObjectKey("", name))

    def occupants(self, node: str) -> Sequence[Occupant]:
        """The pods of a node."""
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
            there = self._by_node[before.node]
            del there[key]
            if not there:
                del self._by_node[before.node]
        if now is not None:
            self._occupants[key] = now
            self._by_node.setdefault(now.node, {})[key] = now
        if before != now:
            for node in {each.node for each in (before, now) if each is not None}:
                self._tell(node)

    def _tell(self, node: str) -> None:
        for subscriber in self._subscribers:
            subscriber(node)


def _node_facts(body: Manifest) -> Manifest:
    """What is read of a node: the rest of it (images, heartbeats, annotations) is most of it."""
    status = body.get("status") or {}
    conditions = [each for each in status.get("conditions") or () if each["type"] == _NODE_CONDITION]
    return {
        "metadata": _metadata(body, "labels"),
        "spec": only(body.get("spec"), "unschedulable", "taints"),
        "status": {"allocatable": status.get("allocatable") or {}, "conditions": conditions},
    }


def _pod_facts(body: Manifest) -> Manifest:
    """What is read of somebody's pod: where it is, and what it asks for."""
    return {
        "metadata": _metadata(body),
        "spec": occupying(body),
        "status": only(body.get("status"), "phase"),
    }


def _metadata(body: Manifest, *fields: str) -> Mapping[str, Any]:
    return only(body["metadata"], "name", "namespace", "uid", "resourceVersion", "deletionTimestamp", *fields)
