"""Caches the slices of every pool, and recomputes only those of changed nodes."""

from dataclasses import dataclass, field

from tidegate.api.compute_pool import ComputePool
from tidegate.api.meta import ObjectKey
from tidegate.kube.occupancy import NodeOccupancy
from tidegate.kube.typed_cache import TypedCache
from tidegate.planning.pools.pool_slices import PoolSlices, PoolTally, count_node_slices, find_older_pools


@dataclass(slots=True)
class _PoolView:
    elders: tuple[ComputePool, ...]
    tally: PoolTally = field(default_factory=PoolTally)
    changed: set[str] = field(default_factory=set[str])
    """Nodes whose slices are out of date."""


class PoolSlicesCache:
    """Slices of each pool, updated per node.

    With a thousand nodes and a thousand Inferences, every Inference would otherwise go through all nodes.
    """

    def __init__(self, pools: TypedCache[ComputePool], occupancy: NodeOccupancy) -> None:
        self._pools = pools
        self._occupancy = occupancy
        self._views: dict[ObjectKey, _PoolView] = {}
        self._specs: dict[ObjectKey, object] = {}
        pools.store.subscribe(self._pool_changed)
        occupancy.subscribe(self._node_changed)

    def get_slices(self, pool: ComputePool) -> PoolSlices:
        """Return the slices of a pool that is in the cache."""
        view = self._views.get(pool.key)
        if view is None:
            view = self._views[pool.key] = _PoolView(find_older_pools(pool, self._pools.list_all()))
            view.changed.update(node.name for node in self._occupancy.list_nodes())
        for name in view.changed:
            self._update_node(view, pool, name)
        view.changed.clear()
        return view.tally.get_slices()

    def _update_node(self, view: _PoolView, pool: ComputePool, name: str) -> None:
        node = self._occupancy.get_node(name)
        occupants = self._occupancy.list_occupants(name)
        part = count_node_slices(pool, node, occupants, view.elders) if node is not None else None
        if part is None:
            view.tally.remove_node(name)
        else:
            view.tally.put_node(part)

    def _pool_changed(self, key: ObjectKey) -> None:
        spec = (self._pools.store.get(key) or {}).get("spec")
        if self._specs.get(key) != spec:
            self._specs[key] = spec
            self._views.clear()  # the pool of a node depends on all pools' selectors

    def _node_changed(self, name: str) -> None:
        for view in self._views.values():
            view.changed.add(name)
