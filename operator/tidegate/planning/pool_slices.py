"""A pool's slices: how many its nodes have, how many of them take pods, and who has how many."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Final, Literal, TypeVar

from tidegate.api.compute_pool import ComputePool
from tidegate.planning.nodes import NodeView, Occupant
from tidegate.planning.room import Amounts, total
from tidegate.resources.names import label_value
from tidegate.resources.slices import (
    expected_devices,
    find_misconfiguration,
    pool_tolerations,
    slice_requests,
)

KeyT = TypeVar("KeyT", str, int)

_PODS: Final = "pods"


@dataclass(frozen=True, slots=True)
class NodeSlices:
    """One node of a pool."""

    node: str
    total: int
    used: Mapping[str, int]
    """Slices of the pool's pods, by tier."""
    fault: str
    """Why it takes no pods; empty when it does."""
    unconfigured: str = ""
    """Why it does not share itself out as the pool says; empty when it does."""
    withdrawn: int = 0
    """Slices of `total` whose devices have failed."""
    failed: str = ""
    """Which devices have failed, in a few words; empty when all work."""

    @property
    def healthy(self) -> int:
        """Slices that pods can be given, or have been given, while the node takes pods."""
        return 0 if self.fault else self.total - self.withdrawn

    @property
    def free(self) -> int:
        """Slices that a pod can be given now."""
        return max(self.healthy - sum(self.used.values()), 0)


@dataclass(frozen=True, slots=True)
class PoolSlices:
    """All nodes of a pool, and what is asked of all of them together, as `PoolTally` has added it up."""

    nodes: tuple[NodeSlices, ...] = ()
    """By name."""
    shared: Mapping[str, str] = field(default_factory=dict[str, str])
    """Nodes that the pool selects and that belong to an older pool: node → that pool."""
    total: int = 0
    """Slices of all nodes."""
    healthy: int = 0
    """Slices of the nodes that take pods, without those of failed devices."""
    free: int = 0
    """Slices that pods can be given now."""
    largest: int = 0
    """The most slices that one pod can ever be given, once that node is empty."""
    used_by_tier: Mapping[str, int] = field(default_factory=dict[str, int])
    """Slices that the pool's pods have, by tier."""
    healthy_nodes: frozenset[str] = frozenset()
    """Those that take pods; the same object as before while they are the same."""
    faulty: tuple[NodeSlices, ...] = ()
    """Nodes that take no pods."""
    failing: tuple[NodeSlices, ...] = ()
    """Nodes that take pods, on some of their devices."""
    unshared: tuple[NodeSlices, ...] = ()
    """Nodes that do not share themselves out as the pool says."""

    def used(self, tier: str) -> int:
        """Slices that pods of a tier have."""
        return self.used_by_tier.get(tier, 0)


@dataclass(frozen=True, slots=True)
class SharedNode:
    """A node that a pool selects and that belongs to an older one."""

    node: str
    owner: str


def pool_slices(
    pool: ComputePool,
    nodes: Iterable[NodeView],
    occupants: Mapping[str, Sequence[Occupant]],
    others: Sequence[ComputePool] = (),
) -> PoolSlices:
    """The slices of `pool` on the nodes that it selects; `occupants` are the pods of each node.

    `others` are all pools: a node belongs to the oldest one that selects it.
    """
    elder = elders(pool, others)
    parts = (part_of(pool, node, occupants.get(node.name, ()), elder) for node in nodes)
    return together(part for part in parts if part is not None)


def elders(pool: ComputePool, others: Iterable[ComputePool]) -> tuple[ComputePool, ...]:
    """The pools that are older than `pool`, the oldest first."""
    return tuple(sorted((each for each in others if _age(each) < _age(pool)), key=_age))


def part_of(
    pool: ComputePool, node: NodeView, occupants: Sequence[Occupant], elder: Sequence[ComputePool]
) -> NodeSlices | SharedNode | None:
    """What one node is to a pool; None when it is nothing to it."""
    if not node.selected_by(pool.spec.node_selector):
        return None
    owner = next((each for each in elder if node.selected_by(each.spec.node_selector)), None)
    if owner is not None:
        return SharedNode(node.name, owner.metadata.name)
    return _node_slices(node, occupants, pool)


def together(parts: Iterable[NodeSlices | SharedNode]) -> PoolSlices:
    """A pool from its nodes, whatever their order."""
    tally = PoolTally()
    for part in parts:
        tally.put(part)
    return tally.slices()


class PoolTally:
    """A pool's nodes added up, and kept so while nodes come, change and go: each costs its own share, not the pool's."""

    def __init__(self) -> None:
        self._parts: dict[str, NodeSlices | SharedNode] = {}
        self._nodes, self._faulty, self._failing, self._unshared = (_Nodes() for _ in range(4))
        self._shared: dict[str, str] = {}
        self._sums: Counter[str] = Counter()
        self._used: Counter[str] = Counter()
        self._sizes: Counter[int] = Counter()
        self._healthy_nodes: set[str] = set()
        self._healthy_nodes_before: frozenset[str] | None = frozenset()
        """None where they have changed since `slices` was last asked for."""
        self._slices: PoolSlices | None = None

    def put(self, part: NodeSlices | SharedNode) -> None:
        """Counts a node as it is now, in place of what it was."""
        if self._parts.get(part.node) == part:
            return
        self.remove(part.node)
        self._parts[part.node] = part
        self._count(part, 1)

    def remove(self, node: str) -> None:
        """Counts a node no more, if it was counted."""
        before = self._parts.pop(node, None)
        if before is not None:
            self._count(before, -1)

    def slices(self) -> PoolSlices:
        """The pool as it is now: the same value until a node has changed."""
        if self._slices is not None:
            return self._slices
        if self._healthy_nodes_before is None:
            self._healthy_nodes_before = frozenset(self._healthy_nodes)
        self._slices = PoolSlices(
            nodes=tuple(self._nodes.by_name),
            shared=dict(sorted(self._shared.items())),
            total=self._sums["total"],
            healthy=self._sums["healthy"],
            free=self._sums["free"],
            largest=max(self._sizes, default=0),
            used_by_tier=dict(self._used),
            healthy_nodes=self._healthy_nodes_before,
            faulty=tuple(self._faulty.by_name),
            failing=tuple(self._failing.by_name),
            unshared=tuple(self._unshared.by_name),
        )
        return self._slices

    def _count(self, part: NodeSlices | SharedNode, sign: Literal[1, -1]) -> None:
        self._slices = None
        if isinstance(part, SharedNode):
            if sign > 0:
                self._shared[part.node] = part.owner
            else:
                del self._shared[part.node]
            return
        _change(self._sizes, part.total, sign)
        self._sums["total"] += sign * part.total
        self._sums["healthy"] += sign * part.healthy
        self._sums["free"] += sign * part.free
        for tier, slices in part.used.items():
            _change(self._used, tier, sign * slices)
        if part.healthy:
            self._healthy_nodes_before = None
            (self._healthy_nodes.add if sign > 0 else self._healthy_nodes.discard)(part.node)
        self._nodes.change(part, sign)
        if part.fault:
            self._faulty.change(part, sign)
        elif part.failed:
            self._failing.change(part, sign)
        if part.unconfigured:
            self._unshared.change(part, sign)


class _Nodes:
    """Nodes by name."""

    def __init__(self) -> None:
        self.by_name: list[NodeSlices] = []
        self._names: list[str] = []

    def change(self, node: NodeSlices, sign: Literal[1, -1]) -> None:
        """Takes a node in, or out again."""
        at = bisect_left(self._names, node.node)
        if sign > 0:
            self._names.insert(at, node.node)
            self.by_name.insert(at, node)
        else:
            del self._names[at], self.by_name[at]


def _change(counts: Counter[KeyT], key: KeyT, more: int) -> None:
    """What is there no longer has no entry: the largest and the smallest are looked for among the entries."""
    counts[key] += more
    if not counts[key]:
        del counts[key]


def _node_slices(node: NodeView, occupants: Sequence[Occupant], pool: ComputePool) -> NodeSlices:
    requests = slice_requests(pool)
    unconfigured = find_misconfiguration(pool, node.labels, node.allocatable).replace("<node>", node.name)
    fault = node.fault(pool_tolerations(pool)) or (
        unconfigured and "does not share its GPUs out as the pool says"
    )
    name = label_value(pool.metadata.name)
    used: dict[str, int] = {}
    for pod in occupants:
        if pod.pool == name:
            used[pod.tier] = used.get(pod.tier, 0) + _count_slices_of_pod(pod.asks, requests)
    others = total(pod.asks for pod in occupants if pod.pool != name)
    fitting = _count_slices_that_fit(node.allocatable, others, requests)
    if unconfigured:
        return NodeSlices(node.name, fitting, used, fault, unconfigured)
    expected = expected_devices(pool, node.labels)
    whole = _count_slices_that_fit({**node.allocatable, **expected}, others, requests)
    return NodeSlices(
        node.name,
        whole,
        used,
        fault,
        withdrawn=whole - fitting,
        failed=_describe_failed(node.allocatable, expected),
    )


def _describe_failed(allocatable: Amounts, expected: Amounts) -> str:
    return " and ".join(
        f"offers {allocatable.get(name, Decimal(0)):f} of {count:f} {name}"
        for name, count in expected.items()
        if allocatable.get(name, Decimal(0)) < count
    )


def _count_slices_that_fit(allocatable: Amounts, others: Amounts, requests: Amounts) -> int:
    """Return how many slices fit next to what `others`, the pods from outside the pool, ask for."""
    return min(
        max(
            int(
                ((allocatable.get(name, Decimal(0)) - others.get(name, Decimal(0))) / size).to_integral_value(
                    ROUND_FLOOR
                )
            ),
            0,
        )
        for name, size in requests.items()
    )


def _count_slices_of_pod(asks: Amounts, requests: Amounts) -> int:
    """Return how many slices a pod has; after a change of the slice's size, an older pod has another number than it asked for."""
    return max(
        int((asks.get(name, Decimal(0)) / size).to_integral_value(ROUND_CEILING))
        for name, size in requests.items()
        if name != _PODS
    )


def _age(pool: ComputePool) -> tuple[str, str]:
    """Sorts the oldest first; of two that were made within one second, the name decides."""
    made = pool.metadata.creation_timestamp
    return (made.isoformat() if made is not None else "", pool.metadata.name)
