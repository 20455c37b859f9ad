"""Caches the slices of every pool, and recomputes only those of changed nodes."""

from dataclasses import dataclass, field

from tidegate.api.compute_pool import ComputePool
from tidegate.api.meta import ObjectKey
from tidegate.kube.occupancy import Occupancy
from tidegate.kube.parsed import Parsed
from tidegate.planning.pool_slices import PoolSlices, PoolTally, elders, part_of


@dataclass(slots=True)
class _View:
    elder: tuple[ComputePool, ...]
    tally: PoolTally = field(default_factory=PoolTally)
    changed: set[str] = field(default_factory=set[str])
    """Nodes whose slices are out of date."""


class PoolViews:
    """Slices of each pool, updated per node.

    With a thousand nodes and a thousand Inferences, every Inference would otherwise go through all nodes.
    """

    def __init__(self, pools: Parsed[ComputePool], occupancy: Occupancy) -> None:
        self._pools = pools
        self._occupancy = occupancy
        self._views: dict[ObjectKey, _View] = {}
        self._specs: dict[ObjectKey, object] = {}
        pools.store.subscribe(self._pool_changed)
        occupancy.subscribe(self._node_changed)

    def slices(self, pool: ComputePool) -> PoolSlices:
        """Return the slices of a pool that is in the cache."""
        view = self._views.get(pool.key)
        if view is None:
            view = self._views[pool.key] = _View(elders(pool, self._pools.all()))
            view.changed.update(node.name for node in self._occupancy.nodes())
        for name in view.changed:
            self._look_at(view, pool, name)
        view.changed.clear()
        return view.tally.slices()

    def _look_at(self, view: _View, pool: ComputePool, name: str) -> None:
        node = self._occupancy.node(name)
        occupants = self._occupancy.occupants(name)
        part = part_of(pool, node, occupants, view.elder) if node is not None else None
        if part is None:
            view.tally.remove(name)
        else:
            view.tally.put(part)

    def _pool_changed(self, key: ObjectKey) -> None:
        spec = (self._pools.store.get(key) or {}).get("spec")
        if self._specs.get(key) != spec:
            self._specs[key] = spec
            self._views.clear()  # the pool of a node depends on all pools' selectors

    def _node_changed(self, name: str) -> None:
        for view in self._views.values():
            view.changed.add(name)
