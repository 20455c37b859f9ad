"""The slices of a pool: how many its nodes have, how many take pods, and how many each tier uses."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Final, Literal, TypeVar

from tidegate.api.compute_pool import ComputePool
from tidegate.planning.inference.node_resources import Amounts, sum_amounts
from tidegate.planning.pools.nodes import NodeView, Occupant
from tidegate.resources.names import to_label_value
from tidegate.resources.slices import (
    count_expected_devices,
    find_misconfiguration,
    list_tolerations,
    sum_slice_requests,
)

KeyT = TypeVar("KeyT", str, int, tuple[int, int])

_PODS: Final = "pods"


@dataclass(frozen=True, slots=True)
class NodeSlices:
    """The slices of one node of a pool."""

    node: str
    total: int
    used: Mapping[str, int]
    """Slices of the pool's pods, by tier."""
    fault: str
    """Why it takes no pods; empty if it does."""
    misconfiguration: str = ""
    """Why it does not share its GPUs as the pool says; empty if it does."""
    failed_slices: int = 0
    """Slices of `total` whose devices have failed."""
    failed_devices: str = ""
    """Which devices have failed, in a few words; empty if all work."""

    @property
    def healthy_slices(self) -> int:
        """Return the slices that pods can have while the node takes pods."""
        return 0 if self.fault else self.total - self.failed_slices

    @property
    def free_slices(self) -> int:
        """Return the slices that a new pod can have now."""
        return max(self.healthy_slices - sum(self.used.values()), 0)


@dataclass(frozen=True, slots=True)
class PoolSlices:
    """All nodes of a pool, and their sums, made by `PoolTally`."""

    nodes: tuple[NodeSlices, ...] = ()
    """By name."""
    overlapping_nodes: Mapping[str, str] = field(default_factory=dict[str, str])
    """Nodes that the pool selects and that belong to an older pool: node → that pool."""
    total: int = 0
    """Slices of all nodes."""
    healthy: int = 0
    """Slices of the nodes that take pods, without those of failed devices."""
    free: int = 0
    """Slices that new pods can have now."""
    largest_node: int = 0
    """The most slices that one pod can ever have, on an empty node."""
    used_by_tier: Mapping[str, int] = field(default_factory=dict[str, int])
    """Slices that the pool's pods have, by tier."""
    healthy_nodes: frozenset[str] = frozenset()
    """Nodes that take pods; the same object while they do not change."""
    faulty_nodes: tuple[NodeSlices, ...] = ()
    """Nodes that take no pods."""
    failing_nodes: tuple[NodeSlices, ...] = ()
    """Nodes that take pods, and have failed devices."""
    misconfigured: tuple[NodeSlices, ...] = ()
    """Nodes that do not share their GPUs as the pool says."""
    imbalance_percent: int | None = None
    """How much fuller the fullest healthy node is than the average of the healthy nodes, as a share of that average; None if no slice is assigned."""

    def count_used(self, tier: str) -> int:
        """Return the slices that pods of a tier have."""
        return self.used_by_tier.get(tier, 0)


@dataclass(frozen=True, slots=True)
class OverlappingNode:
    """A node that a pool selects and that belongs to an older pool."""

    node: str
    owner: str


def sum_pool_slices(
    pool: ComputePool,
    nodes: Iterable[NodeView],
    occupants: Mapping[str, Sequence[Occupant]],
    all_pools: Sequence[ComputePool] = (),
) -> PoolSlices:
    """Return the slices of `pool` on the nodes that it selects; `occupants` are the pods of each node.

    `all_pools`: a node belongs to the oldest one that selects it.
    """
    older_pools = find_older_pools(pool, all_pools)
    parts = (count_node_slices(pool, node, occupants.get(node.name, ()), older_pools) for node in nodes)
    return sum_nodes(part for part in parts if part is not None)


def find_older_pools(pool: ComputePool, pools: Iterable[ComputePool]) -> tuple[ComputePool, ...]:
    """Return the pools that are older than `pool`, the oldest first."""
    return tuple(
        sorted((other for other in pools if _make_age_key(other) < _make_age_key(pool)), key=_make_age_key)
    )


def count_node_slices(
    pool: ComputePool, node: NodeView, occupants: Sequence[Occupant], older_pools: Sequence[ComputePool]
) -> NodeSlices | OverlappingNode | None:
    """Return what one node gives to a pool; None if the pool does not select it."""
    if not node.matches_selector(pool.spec.node_selector):
        return None
    owner = next((older for older in older_pools if node.matches_selector(older.spec.node_selector)), None)
    if owner is not None:
        return OverlappingNode(node.name, owner.metadata.name)
    return _make_node_slices(node, occupants, pool)


def sum_nodes(parts: Iterable[NodeSlices | OverlappingNode]) -> PoolSlices:
    """Sum up a pool from its nodes, in any order."""
    tally = PoolTally()
    for part in parts:
        tally.put_node(part)
    return tally.get_slices()


class PoolTally:
    """The sums over a pool's nodes, kept up to date: a changed node costs its own share, not the pool's."""

    def __init__(self) -> None:
        self._parts: dict[str, NodeSlices | OverlappingNode] = {}
        self._nodes, self._faulty, self._failing, self._unshared = (_SortedNodes() for _ in range(4))
        self._shared: dict[str, str] = {}
        self._sums: Counter[str] = Counter()
        self._used: Counter[str] = Counter()
        self._sizes: Counter[int] = Counter()
        self._loads: Counter[tuple[int, int]] = Counter()
        """Healthy nodes by the slices that pods have and those that pods can have."""
        self._healthy_nodes: set[str] = set()
        self._healthy_nodes_before: frozenset[str] | None = frozenset()
        """None if they have changed since the last call of `get_slices`."""
        self._slices: PoolSlices | None = None

    def put_node(self, part: NodeSlices | OverlappingNode) -> None:
        """Count a node as it is now, in place of what it was."""
        if self._parts.get(part.node) == part:
            return
        self.remove_node(part.node)
        self._parts[part.node] = part
        self._add_node(part, 1)

    def remove_node(self, node: str) -> None:
        """Stop counting a node, if it was counted."""
        before = self._parts.pop(node, None)
        if before is not None:
            self._add_node(before, -1)

    def get_slices(self) -> PoolSlices:
        """Return the pool as it is now: the same value until a node has changed."""
        if self._slices is not None:
            return self._slices
        if self._healthy_nodes_before is None:
            self._healthy_nodes_before = frozenset(self._healthy_nodes)
        self._slices = PoolSlices(
            nodes=tuple(self._nodes.by_name),
            overlapping_nodes=dict(sorted(self._shared.items())),
            total=self._sums["total"],
            healthy=self._sums["healthy"],
            free=self._sums["free"],
            largest_node=max(self._sizes, default=0),
            used_by_tier=dict(self._used),
            healthy_nodes=self._healthy_nodes_before,
            faulty_nodes=tuple(self._faulty.by_name),
            failing_nodes=tuple(self._failing.by_name),
            misconfigured=tuple(self._unshared.by_name),
            imbalance_percent=_compute_imbalance(self._loads),
        )
        return self._slices

    def _add_node(self, part: NodeSlices | OverlappingNode, sign: Literal[1, -1]) -> None:
        self._slices = None
        if isinstance(part, OverlappingNode):
            if sign > 0:
                self._shared[part.node] = part.owner
            else:
                del self._shared[part.node]
            return
        _change_count(self._sizes, part.total, sign)
        self._sums["total"] += sign * part.total
        self._sums["healthy"] += sign * part.healthy_slices
        self._sums["free"] += sign * part.free_slices
        for tier, slices in part.used.items():
            _change_count(self._used, tier, sign * slices)
        if part.healthy_slices:
            _change_count(self._loads, (sum(part.used.values()), part.healthy_slices), sign)
            self._healthy_nodes_before = None
            (self._healthy_nodes.add if sign > 0 else self._healthy_nodes.discard)(part.node)
        self._nodes.change_node(part, sign)
        if part.fault:
            self._faulty.change_node(part, sign)
        elif part.failed_devices:
            self._failing.change_node(part, sign)
        if part.misconfiguration:
            self._unshared.change_node(part, sign)


class _SortedNodes:
    """Nodes sorted by name."""

    def __init__(self) -> None:
        self.by_name: list[NodeSlices] = []
        self._names: list[str] = []

    def change_node(self, node: NodeSlices, sign: Literal[1, -1]) -> None:
        """Insert or remove a node."""
        index = bisect_left(self._names, node.node)
        if sign > 0:
            self._names.insert(index, node.node)
            self.by_name.insert(index, node)
        else:
            del self._names[index], self.by_name[index]


def _compute_imbalance(loads: Mapping[tuple[int, int], int]) -> int | None:
    """Return how much fuller the fullest node is than all, in percent, from the number of nodes of each (used, healthy) slices."""
    used = sum(used * nodes for (used, _), nodes in loads.items())
    if not used:
        return None
    mean = used / sum(healthy * nodes for (_, healthy), nodes in loads.items())
    return round(100 * (max(used / healthy for used, healthy in loads) / mean - 1))


def _change_count(counts: Counter[KeyT], key: KeyT, change: int) -> None:
    """Change a count, and delete it at zero: the largest is looked up among the entries."""
    counts[key] += change
    if not counts[key]:
        del counts[key]


def _make_node_slices(node: NodeView, occupants: Sequence[Occupant], pool: ComputePool) -> NodeSlices:
    requests = sum_slice_requests(pool)
    unconfigured = find_misconfiguration(pool, node.labels, node.allocatable).replace("<node>", node.name)
    fault = node.explain_fault(list_tolerations(pool)) or (
        unconfigured and "does not share its GPUs out as the pool says"
    )
    name = to_label_value(pool.metadata.name)
    used: dict[str, int] = {}
    for pod in occupants:
        if pod.pool == name:
            used[pod.tier] = used.get(pod.tier, 0) + _count_slices_of_pod(pod.requests, requests)
    foreign = sum_amounts(pod.requests for pod in occupants if pod.pool != name)
    fitting = _count_slices_that_fit(node.allocatable, foreign, requests)
    if unconfigured:
        return NodeSlices(node.name, fitting, used, fault, unconfigured)
    expected = count_expected_devices(pool, node.labels)
    capacity = _count_slices_that_fit({**node.allocatable, **expected}, foreign, requests)
    return NodeSlices(
        node.name,
        capacity,
        used,
        fault,
        failed_slices=capacity - fitting,
        failed_devices=_describe_failed(node.allocatable, expected),
    )


def _describe_failed(allocatable: Amounts, expected: Amounts) -> str:
    return " and ".join(
        f"offers {allocatable.get(name, Decimal(0)):f} of {count:f} {name}"
        for name, count in expected.items()
        if allocatable.get(name, Decimal(0)) < count
    )


def _count_slices_that_fit(allocatable: Amounts, foreign: Amounts, requests: Amounts) -> int:
    """Return how many slices fit next to `foreign`, the requests of pods from outside the pool."""
    return min(
        max(
            int(
                (
                    (allocatable.get(name, Decimal(0)) - foreign.get(name, Decimal(0))) / size
                ).to_integral_value(ROUND_FLOOR)
            ),
            0,
        )
        for name, size in requests.items()
    )


def _count_slices_of_pod(asks: Amounts, requests: Amounts) -> int:
    """Return how many slices a pod has.

    After a change of the slice's size, an older pod has another number than it asked for.
    """
    return max(
        int((asks.get(name, Decimal(0)) / size).to_integral_value(ROUND_CEILING))
        for name, size in requests.items()
        if name != _PODS
    )


def _make_age_key(pool: ComputePool) -> tuple[str, str]:
    """Return a key that sorts the oldest first; of two from the same second, the name decides."""
    made = pool.metadata.creation_timestamp
    return (made.isoformat() if made is not None else "", pool.metadata.name)
