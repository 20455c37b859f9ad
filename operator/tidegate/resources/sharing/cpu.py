"""CPU slices: so many cores and so much memory of a node, requested by pods as any others are."""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

from tidegate.api.compute_pool import ComputePool, CpuSlice, Toleration
from tidegate.api.inference import ModelFormat, Tier
from tidegate.api.quantities import parse_quantity
from tidegate.resources.sharing.backend import (
    Refused,
    Seat,
    Taken,
    left_for_server,
    pool_labels,
)


@dataclass(frozen=True, slots=True)
class CpuSharing:
    """The scheduler and the kernel share the node out; nothing has to be set up on it."""

    pool: ComputePool
    one: CpuSlice

    @property
    def slice_takes(self) -> Taken:
        """Each slice may be a pod of its own, so it takes one of the node's places for pods as well."""
        return {
            "cpu": parse_quantity(self.one.cpu),
            "memory": parse_quantity(self.one.memory),
            "pods": Decimal(1),
        }

    @property
    def tolerations(self) -> tuple[Toleration, ...]:
        """The pool's own."""
        return self.pool.spec.tolerations

    def refusal(self, slices: int, model: ModelFormat) -> Refused | None:
        """Any number and any model will do, as far as a node has room."""
        del slices, model
        return None

    def unconfigured(self, labels: Mapping[str, str], allocatable: Taken) -> str:
        """There is nothing to configure."""
        del labels, allocatable
        return ""

    def offered_when_well(self, labels: Mapping[str, str]) -> Taken:
        """There are no devices."""
        del labels
        return {}

    def seat(self, slices: int, tier: Tier) -> Seat:
        """So many slices in one pod are one larger pod. The tier makes no difference."""
        del tier
        spec = self.pool.spec
        cpu, memory = left_for_server(self.one.cpu, self.one.memory, slices)
        return Seat(
            labels=pool_labels(self.pool, slices),
            node_selector=dict(spec.node_selector),
            tolerations=tuple(each.pod_form() for each in self.tolerations),
            cpu=cpu,
            memory=memory,
        )
