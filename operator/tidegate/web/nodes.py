"""The slices of each pool's nodes, as the controllers count them; nodes are watched from the first page on that shows them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from tidegate.api.compute_pool import ComputePool
from tidegate.kube.client import KubeClient
from tidegate.kube.occupancy import Occupancy
from tidegate.kube.pool_views import PoolViews
from tidegate.planning.nodes import NodeView
from tidegate.planning.pool_slices import NodeSlices
from tidegate.web.fleet import Fleet
from tidegate.web.live import Changes


class Nodes:
    """Who never looks at a pool's nodes is spared the watch of them, and that of everybody's pods, which take room on them."""

    def __init__(self, fleet: Fleet, changes: Changes, *, watched: bool = True) -> None:
        """`watched`: whether they ever are; a dashboard of one namespace does not know the pods of the others."""
        self.watched = watched
        self._fleet = fleet
        self._changes = changes
        self.occupancy = Occupancy(fleet.pods)
        self._views = PoolViews(fleet.pools, self.occupancy)
        self._seen: dict[str, NodeView] = {}
        self.occupancy.subscribe(self._changed)

    async def keep(self, client: KubeClient) -> None:
        """Watches, once somebody has asked; a task of the process."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.occupancy.run(client), name="watch-occupancy")
            await self.occupancy.until_known()
            for pool in self._fleet.pools.all():
                self._changes.tell(f"computepools/{pool.key}")

    def of(self, pool: ComputePool) -> Mapping[str, NodeSlices] | None:
        """Return every node of a pool, by name; None while nodes are not read yet, or may not be read."""
        self.occupancy.begin()
        if not (self.occupancy.known and self._fleet.pods.synced.is_set()):
            return None
        return {each.node: each for each in self._views.slices(pool).nodes}

    def _changed(self, name: str) -> None:
        """Pods that come and go change the pool's own status; a node alone may not."""
        before, now = self._seen.get(name), self.occupancy.node(name)
        if before == now:
            return
        if now is None:
            del self._seen[name]
        else:
            self._seen[name] = now
        for pool in self._fleet.pools.all():
            selector = pool.spec.node_selector
            if any(each is not None and each.selected_by(selector) for each in (before, now)):
                self._changes.tell(f"computepools/{pool.key}")
