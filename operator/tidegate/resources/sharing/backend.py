"""What every way of sharing nodes out in slices can say: what a slice takes of a node, and what a pod on slices looks like."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Protocol

from tidegate.api.compute_pool import ComputePool, Toleration
from tidegate.api.inference import ModelFormat, Tier
from tidegate.api.quantities import canonical, parse_quantity
from tidegate.api.reasons import Reason
from tidegate.resources.names import POOL_LABEL, SLICES_LABEL, label_value
from tidegate.resources.pod import AGENT_CPU, AGENT_MEMORY

Taken = Mapping[str, Decimal]
"""By resource, in base units: cores, bytes, devices."""


@dataclass(frozen=True, slots=True)
class Seat:
    """What a pod is given by its pool: where it runs, and how much of the node its server may use."""

    labels: Mapping[str, str]
    node_selector: Mapping[str, str]
    tolerations: tuple[Mapping[str, object], ...]
    cpu: str
    """Cores of the server, as the API server writes them; the agent's share is off already."""
    memory: str
    """Memory of the server, likewise."""
    devices: Mapping[str, str] = field(default_factory=dict[str, str])
    """Devices of the server, by the resource's name."""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    """Environment of the server."""
    run_as_user: int | None = None
    """User of the pod; None for that of every pod of ours."""
    shared_memory_of_node: bool = False
    """Whether the node mounts a /dev/shm into the server that all of its pods share."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a pod cannot have what it wants, in a sentence with the way out."""

    reason: Reason
    message: str


class SharingBackend(Protocol):
    """One way of sharing nodes out in slices, for one pool."""

    @property
    def slice_takes(self) -> Taken:
        """What one slice takes of its node."""
        ...

    @property
    def tolerations(self) -> tuple[Toleration, ...]:
        """Taints that pods on slices may land on: what a node is judged by, and what each seat has."""
        ...

    def refusal(self, slices: int, model: ModelFormat) -> Refused | None:
        """Why no pod can have so many slices, or serve such a model on them; None when one can."""
        ...

    def unconfigured(self, labels: Mapping[str, str], allocatable: Taken) -> str:
        """Why a node with these labels and resources does not share itself out so, and what to do; empty when it does.

        Reads as the end of a sentence that begins with the node.
        """
        ...

    def offered_when_well(self, labels: Mapping[str, str]) -> Taken:
        """Devices that a configured node with these labels offers while each of them works; empty where it has none."""
        ...

    def seat(self, slices: int, tier: Tier) -> Seat:
        """What a pod of this tier gets with so many slices."""
        ...


def pool_labels(pool: ComputePool, slices: int) -> dict[str, str]:
    """Labels of everything that runs on slices of the pool."""
    return {POOL_LABEL: label_value(pool.metadata.name), SLICES_LABEL: str(slices)}


def left_for_server(cpu: str, memory: str, slices: int) -> tuple[str, str]:
    """Cores and memory of the server in a pod of so many slices: all but what the agent beside it asks for."""
    cores = parse_quantity(cpu) * slices - parse_quantity(AGENT_CPU)
    size = parse_quantity(memory) * slices - parse_quantity(AGENT_MEMORY)
    return canonical(f"{cores:f}"), canonical(_in_kibibytes(size))


def _in_kibibytes(size: Decimal) -> str:
    return f"{size:f}" if size % 1024 else f"{size / 1024:f}Ki"
