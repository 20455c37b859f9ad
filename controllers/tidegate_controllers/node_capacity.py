"""Finds the nodes with most free resources, only while a pod of ours is unschedulable."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tidegate.errors import TidegateError
from tidegate.kube.kinds import NODE, POD
from tidegate.kube.port import ClusterApi, Manifest
from tidegate.planning.inference.node_resources import (
    NodeResources,
    compute_node_resources,
    find_insufficient_resources,
    list_schedulable_nodes,
)
from tidegate.planning.pods import PodView
from tidegate.runtime.clock import Clock

_CACHE_S: Final = 10.0
"""Nodes are listed no more often than this, however many objects wait."""
_MAX_NODES: Final = 5
"""Nodes whose pods are listed: of a large cluster, those with most of the missing resource."""


@dataclass(frozen=True, slots=True)
class _CachedRooms:
    listed_at_s: float
    rooms: tuple[NodeResources, ...]


class NodeCapacityReader:
    """Lists the largest nodes and their pods, at most once in ten seconds for each resource."""

    def __init__(self, cluster: ClusterApi | None, clock: Clock) -> None:
        """Create the reader; without a cluster it finds nothing: a process with watchNamespaces may not list nodes."""
        self._cluster = cluster
        self._clock = clock
        self._cache: dict[str, _CachedRooms] = {}
        # Many pods become unschedulable at the same time; one worker lists nodes for all of them.
        self._lock = asyncio.Lock()

    async def find_rooms(self, pods: Sequence[PodView]) -> tuple[NodeResources, ...]:
        """Return the nodes with most of the resources that these pods lack; none if they lack nothing."""
        lacks = [
            name
            for pod in pods
            if not pod.terminating
            for name in find_insufficient_resources(pod.unschedulable)
        ]
        rooms = [room for name in dict.fromkeys(lacks) for room in await self._largest_nodes(name)]
        return tuple({room.name: room for room in rooms}.values())

    async def _largest_nodes(self, resource: str) -> tuple[NodeResources, ...]:
        async with self._lock:
            cached, now_s = self._cache.get(resource), self._clock.monotonic()
            if cached is None or now_s - cached.listed_at_s >= _CACHE_S:
                cached = self._cache[resource] = _CachedRooms(now_s, await self._list_rooms(resource))
            return cached.rooms

    async def _list_rooms(self, resource: str) -> tuple[NodeResources, ...]:
        if self._cluster is None:
            return ()
        nodes: Sequence[Manifest] = ()
        try:
            # Page by page: ten thousand nodes are half a gigabyte.
            async for page, _ in self._cluster.list_pages(NODE):
                nodes = list_schedulable_nodes([*nodes, *page], resource)[:_MAX_NODES]
            return tuple(
                [compute_node_resources(node, await _pods_on(self._cluster, node)) for node in nodes]
            )
        except TidegateError:
            return ()  # the scheduler's own message remains


async def _pods_on(cluster: ClusterApi, node: Manifest) -> Sequence[Manifest]:
    return await cluster.list(POD, fields=f"spec.nodeName={node['metadata']['name']}")
