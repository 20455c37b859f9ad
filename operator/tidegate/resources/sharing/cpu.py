"""CPU slices: so many cores and so much memory of a node, requested by pods as any others are."""

from dataclasses import dataclass
from decimal import Decimal

from tidegate.api.compute_pool import ComputePool
from tidegate.api.inference import Tier
from tidegate.api.quantities import parse_quantity
from tidegate.resources.sharing.backend import Seat, Taken, left_for_server, pool_labels


@dataclass(frozen=True, slots=True)
class CpuSharing:
    """The scheduler and the kernel share the node out; nothing has to be set up on it."""

    pool: ComputePool

    @property
    def slice_takes(self) -> Taken:
        """Each slice may be a pod of its own, so it takes one of the node's places for pods as well."""
        one = self.pool.spec.slice.cpu
        return {"cpu": parse_quantity(one.cpu), "memory": parse_quantity(one.memory), "pods": Decimal(1)}

    def refusal(self, slices: int) -> str:
        """Any number will do, as far as a node has it."""
        del slices
        return ""

    def seat(self, slices: int, tier: Tier) -> Seat:
        """So many slices in one pod are one larger pod. The tier makes no difference."""
        del tier
        spec = self.pool.spec
        cpu, memory = left_for_server(spec.slice.cpu.cpu, spec.slice.cpu.memory, slices)
        return Seat(
            labels=pool_labels(self.pool, slices),
            node_selector=dict(spec.node_selector),
            tolerations=tuple(each.pod_form() for each in spec.tolerations),
            cpu=cpu,
            memory=memory,
        )
