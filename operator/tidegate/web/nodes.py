"""Read the slices of each pool's nodes, as the controllers count them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from tidegate.api.compute_pool import ComputePool
from tidegate.kube.client import KubeClient
from tidegate.kube.occupancy import NodeOccupancy
from tidegate.kube.pool_slices_cache import PoolSlicesCache
from tidegate.planning.pools.nodes import NodeView
from tidegate.planning.pools.pool_slices import NodeSlices
from tidegate.web.caches import FleetCaches
from tidegate.web.topic_feed import TopicFeed


class PoolNodes:
    """Cache of the pools' nodes.

    The watches of nodes and of all pods on them are expensive, so they start with the first page that shows nodes.
    """

    def __init__(self, fleet: FleetCaches, changes: TopicFeed, *, watched: bool = True) -> None:
        """`watched` is False for a dashboard of one namespace, which cannot list the pods of the others."""
        self.watched = watched
        self._fleet = fleet
        self._changes = changes
        self.occupancy = NodeOccupancy(fleet.pods)
        self._views = PoolSlicesCache(fleet.pools, self.occupancy)
        self._nodes: dict[str, NodeView] = {}
        self.occupancy.subscribe(self._publish_change)

    async def watch_nodes(self, client: KubeClient) -> None:
        """Watch nodes from the first call of get_slices; a task of the process."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.occupancy.run(client), name="watch-occupancy")
            await self.occupancy.wait_for_sync()
            for pool in self._fleet.pools.list_all():
                self._changes.publish(f"computepools/{pool.key}")

    def get_slices(self, pool: ComputePool) -> Mapping[str, NodeSlices] | None:
        """Return the nodes of a pool by name; None while nodes are not read yet, or cannot be read."""
        self.occupancy.start_watching()
        if not (self.occupancy.has_synced and self._fleet.pods.synced.is_set()):
            return None
        return {node.node: node for node in self._views.get_slices(pool).nodes}

    def _publish_change(self, name: str) -> None:
        """Publish a change of the pools of a node, whose status a change of the node alone need not change."""
        old_node, new_node = self._nodes.get(name), self.occupancy.get_node(name)
        if old_node == new_node:
            return
        if new_node is None:
            del self._nodes[name]
        else:
            self._nodes[name] = new_node
        for pool in self._fleet.pools.list_all():
            selector = pool.spec.node_selector
            if any(node is not None and node.matches_selector(selector) for node in (old_node, new_node)):
                self._changes.publish(f"computepools/{pool.key}")
