"""A pool's slices: how many its nodes have, how many of them take pods, and who has how many."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from functools import cached_property
from typing import Final

from tidegate.api.compute_pool import ComputePool
from tidegate.planning.nodes import NodeView, Occupant
from tidegate.planning.room import Amounts, total
from tidegate.resources.names import label_value
from tidegate.resources.sharing.backend import SharingBackend, Taken
from tidegate.resources.sharing.choice import sharing_of

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
    gpus: int = 0
    """Whole GPUs behind `total`, where pods share each by a claim."""
    gpu_bytes: int = 0
    """Memory of the smallest one."""
    outdated: str = ""
    """What still shares a GPU out as the pool says no more; empty for nothing. The node's other GPUs are not concerned."""

    @property
    def healthy(self) -> int:
        """Slices that pods can be given, or have been given, while the node takes pods."""
        return 0 if self.fault else self.total - self.withdrawn

    @property
    def free(self) -> int:
        """Slices that a pod can be given now."""
        return max(self.healthy - sum(self.used.values()), 0)


@dataclass(frozen=True)
class PoolSlices:
    """All nodes of a pool. What is asked of all of them is added up once."""

    nodes: tuple[NodeSlices, ...] = ()
    shared: Mapping[str, str] = field(default_factory=dict[str, str])
    """Nodes that the pool selects and that belong to an older pool: node → that pool."""

    @cached_property
    def total(self) -> int:
        """Slices of all nodes."""
        return sum(node.total for node in self.nodes)

    @cached_property
    def healthy(self) -> int:
        """Slices of the nodes that take pods, without those of failed devices."""
        return sum(node.healthy for node in self.nodes)

    @cached_property
    def free(self) -> int:
        """Slices that pods can be given now."""
        return sum(node.free for node in self.nodes)

    @cached_property
    def largest(self) -> int:
        """The most slices that one pod can ever be given, once that node is empty."""
        return max((node.total for node in self.nodes), default=0)

    @cached_property
    def gpus(self) -> int:
        """GPUs of the nodes that take pods, where pods share each by a claim."""
        return sum(node.gpus for node in self.nodes if not node.fault)

    @cached_property
    def gpu_bytes(self) -> int:
        """Memory of the smallest of the pool's GPUs; zero where there is none."""
        return min((node.gpu_bytes for node in self.nodes if node.gpus), default=0)

    @cached_property
    def healthy_nodes(self) -> frozenset[str]:
        """Those that take pods."""
        return frozenset(node.node for node in self.nodes if node.healthy)

    def used(self, tier: str) -> int:
        """Slices that pods of a tier have."""
        return sum(node.used.get(tier, 0) for node in self.nodes)


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
    return _node_slices(node, occupants, pool, sharing_of(pool))


def together(parts: Iterable[NodeSlices | SharedNode]) -> PoolSlices:
    """A pool from its nodes, whatever their order."""
    sorted_parts = sorted(parts, key=lambda part: part.node)
    return PoolSlices(
        tuple(part for part in sorted_parts if isinstance(part, NodeSlices)),
        {part.node: part.owner for part in sorted_parts if isinstance(part, SharedNode)},
    )


def _node_slices(
    node: NodeView, occupants: Sequence[Occupant], pool: ComputePool, sharing: SharingBackend
) -> NodeSlices:
    takes, published = sharing.slice_takes, sharing.published(node.gpus)
    has = {**node.allocatable, **published.offers}
    unconfigured = sharing.unconfigured(node.labels, has).replace("<node>", node.name)
    fault = node.fault(sharing.tolerations) or (
        unconfigured and "does not share its GPUs out as the pool says"
    )
    name = label_value(pool.metadata.name)
    used: dict[str, int] = {}
    for each in occupants:
        if each.pool == name:
            used[each.tier] = used.get(each.tier, 0) + _slices(each.asks, takes)
    strangers = total(each.asks for each in occupants if each.pool != name)
    fitting = _fitting(has, strangers, takes)
    if unconfigured:
        return NodeSlices(node.name, fitting, used, fault, unconfigured)
    well = sharing.offered_when_well(node.labels)
    whole = _fitting({**has, **well}, strangers, takes)
    return NodeSlices(
        node.name,
        whole,
        used,
        fault,
        withdrawn=whole - fitting,
        failed=_failed(node.allocatable, well),
        gpus=published.gpus,
        gpu_bytes=published.memory_bytes,
        outdated=published.outdated.replace("<node>", node.name),
    )


def _failed(allocatable: Amounts, well: Taken) -> str:
    return " and ".join(
        f"offers {allocatable.get(name, Decimal(0)):f} of {due:f} {name}"
        for name, due in well.items()
        if allocatable.get(name, Decimal(0)) < due
    )


def _fitting(allocatable: Amounts, taken: Amounts, takes: Taken) -> int:
    """How many slices fit beside what strangers take."""
    return min(
        max(
            int(
                ((allocatable.get(name, Decimal(0)) - taken.get(name, Decimal(0))) / size).to_integral_value(
                    ROUND_FLOOR
                )
            ),
            0,
        )
        for name, size in takes.items()
    )


def _slices(asks: Amounts, takes: Taken) -> int:
    """How many slices a pod has. One from before a change of the slice's size may have more or less than it asked for."""
    return max(
        int((asks.get(name, Decimal(0)) / size).to_integral_value(ROUND_CEILING))
        for name, size in takes.items()
        if name != _PODS
    )


def _age(pool: ComputePool) -> tuple[str, str]:
    """Sorts the oldest first; of two that were made within one second, the name decides."""
    made = pool.metadata.creation_timestamp
    return (made.isoformat() if made is not None else "", pool.metadata.name)
