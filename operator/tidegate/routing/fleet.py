"""The input of routing: the ModelAccesses, and the pods of every backend that can answer now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from tidegate.api.meta import ObjectKey
from tidegate.api.model_access import ModelAccess
from tidegate.routing.credentials import CallerCredentials

FULL_WEIGHT: Final = 100
"""The weight of a pod with the capacity in the Inference's spec."""


class BackendKind(StrEnum):
    """The kinds of objects whose pods answer requests."""

    INFERENCE = "Inference"
    FEATURE_COMPUTE = "FeatureCompute"
    PIPELINE = "Pipeline"


@dataclass(frozen=True, slots=True, order=True)
class BackendKey:
    """The key of one Inference, FeatureCompute or pipeline of a ModelAccess's route."""

    kind: BackendKind
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"

    def __hash__(self) -> int:
        # Without the kind: an enum's hash takes longer than the rest, and backends are looked up all the time.
        return hash((self.namespace, self.name))

    @property
    def object_key(self) -> ObjectKey:
        """Namespace and name, without the kind."""
        return ObjectKey(self.namespace, self.name)


@dataclass(frozen=True, slots=True, order=True)
class Endpoint:
    """One pod that is ready and not terminating."""

    address: str
    grpc_port: int = 8001
    http_port: int = 8000
    decision: str = ""
    """The AllocationDecision that set the number of pods of its Inference, or empty; gateways write it into their access log."""
    weight: int = 0
    """Share of the requests relative to other pods, in hundredths of the Inference's capacity; 0 if all have the same."""


@dataclass(frozen=True, slots=True)
class SparePods:
    """Pods that several Inferences share, with a model of this one loaded; they get the share of its own pods that do not answer.

    `needed` is how many pods of its own should answer: those that were decided; more, in fractions, while clients send more
    requests than these serve.
    """

    pods: tuple[Endpoint, ...]
    needed: float

    def count_replaced(self, ready: int) -> float:
        """Return how many missing pods they replace while `ready` pods can answer: each spare at most one."""
        return min(max(self.needed - ready, 0), len(self.pods))


@dataclass(frozen=True, slots=True)
class Backend:
    """One Inference, FeatureCompute or pipeline, and its pods that can answer now."""

    key: BackendKey
    model_name: str
    endpoints: tuple[Endpoint, ...] = ()
    uid: str = ""
    calls: tuple[str, ...] = ()
    """The Inferences that the pods of a pipeline call, including terminating pods."""
    callers: tuple[str, ...] = ()
    """The addresses of the pods of a pipeline, including pods that are starting or terminating."""
    value: str = "1"
    """The value of one answered request: spec.value.perRequest of an Inference."""
    spares: SparePods | None = None
    checked: bool = False
    """Whether gateways ask its pods if they are ready, since pods that Inferences share are to serve for it, now or later."""
    shared_with: tuple[str, ...] = ()
    """The other namespaces whose ModelAccesses may use an Inference."""

    @property
    def pods_by_capacity(self) -> Mapping[float, float]:
        """Number of pods, and of spares in the place of missing ones, by their capacity as a multiple of one replica's."""
        own = self.distinct_endpoints
        counts: Counter[float] = Counter(
            endpoint.weight / FULL_WEIGHT if endpoint.weight else 1.0 for endpoint in own
        )
        replaced = self.spares.count_replaced(len(own)) if self.spares is not None else 0
        return {**counts, 1.0: counts[1.0] + replaced}

    @property
    def distinct_endpoints(self) -> tuple[Endpoint, ...]:
        """Each endpoint once, sorted: equal pods give equal bytes."""
        return tuple(sorted(set(self.endpoints)))

    @property
    def answering_pods(self) -> tuple[Endpoint, ...]:
        """Return its own pods, or the spares while it has none: each pod once, sorted."""
        own = self.distinct_endpoints
        return own if own or self.spares is None else self.spares.pods

    def with_spares(self, pods: Collection[Endpoint], needed: float) -> Backend:
        """Return the backend with shared pods beside its own."""
        if not pods:
            return self
        return replace(self, spares=SparePods(tuple(sorted(set(pods))), needed), checked=True)


@dataclass(frozen=True, slots=True)
class FleetState:
    """Everything that the routing depends on, read from the caches at one moment.

    A backend is present as soon as its object exists, with or without endpoints: this distinguishes a missing target from one without pods.
    """

    accesses: Sequence[ModelAccess]
    backends: Mapping[BackendKey, Backend]
    credentials: CallerCredentials = field(default_factory=CallerCredentials)
