"""The planned and the existing spares that the Inferences of a pool share, as values."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from datetime import datetime

SpareKey = tuple[str, int, str]
"""Namespace, number and node of a spare: on another node it is another pod."""

LoadedModel = tuple[SpareKey, str]
"""A spare and the name of an Inference."""


@dataclass(frozen=True, slots=True)
class PlannedSpare:
    """A spare that is to exist."""

    name: str
    """Name of its Deployment."""
    namespace: str
    number: int
    node: str
    slices: int
    models: tuple[str, ...]
    """Names of the Inferences whose models it loads, sorted."""
    reason: str = ""
    starts: bool = True
    """Whether its node has slices for its pod; Kubernetes would end pods of lower tiers for one that comes before."""

    @property
    def place(self) -> SpareKey:
        """Return its namespace, number and node."""
        return self.namespace, self.number, self.node


@dataclass(frozen=True, slots=True)
class PoolSparePlan:
    """The spares of a pool, by namespace and number, and the Inferences that none of them serves for, with the reason."""

    spares: tuple[PlannedSpare, ...] = ()
    uncovered: Mapping[str, str] = field(default_factory=dict[str, str])
    """By namespace/name."""
    covered: frozenset[str] = frozenset()
    """Inferences whose models as many spares have loaded as they need, as namespace/name: they hold no replica in reserve."""
    reloading: Mapping[str, datetime] = field(default_factory=dict[str, datetime])
    """Covered Inferences that too few spares serve now, with the time since when: these load another version."""
    kept_models: Mapping[LoadedModel, datetime] = field(default_factory=dict[LoadedModel, datetime])
    """Loaded models that nothing needs where they are, with the time since when."""
    excess_slices: int = 0
    """Slices of healthy nodes beyond the limit: spares that serve for missing replicas keep them until these serve, and nobody yields for them."""

    @property
    def slice_count(self) -> int:
        """Return the slices of all spares."""
        return sum(spare.slices for spare in self.spares)

    def count_slices(self, nodes: Container[str]) -> int:
        """Return the slices of its spares on these nodes."""
        return sum(spare.slices for spare in self.spares if spare.node in nodes)


@dataclass(frozen=True, slots=True)
class LiveSpare:
    """A spare as its Deployment and its pod show it."""

    planned: PlannedSpare
    serving: Mapping[str, int] = field(default_factory=dict[str, int])
    """Versions that its pod serves and that the Inferences have committed, by Inference."""
    is_placed: bool = False
    """Whether it has a pod on its node."""
    is_ready: bool = False
    """Whether that pod is ready, whatever it has loaded."""
