"""What routing starts from: the ModelAccesses, and for every backend the pods that can answer now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from tidegate.api.meta import ObjectKey
from tidegate.api.model_access import ModelAccess
from tidegate.routing.credentials import Credentials


class BackendKind(StrEnum):
    """The kinds that answer requests."""

    INFERENCE = "Inference"
    FEATURE_COMPUTE = "FeatureCompute"
    PIPELINE = "Pipeline"


@dataclass(frozen=True, slots=True, order=True)
class BackendKey:
    """Names one Inference, FeatureCompute or pipeline of a ModelAccess's route."""

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
        """Its namespace and name, without the kind."""
        return ObjectKey(self.namespace, self.name)


@dataclass(frozen=True, slots=True, order=True)
class Endpoint:
    """One pod that is ready and not terminating."""

    address: str
    grpc_port: int = 8001
    http_port: int = 8000
    decision: str = ""
    """The AllocationDecision by which its Inference has as many pods as it has; empty: none. Gateways write it into their log."""


@dataclass(frozen=True, slots=True)
class Backend:
    """One Inference, FeatureCompute or pipeline, and the pods of it that can answer now."""

    key: BackendKey
    model_name: str
    endpoints: tuple[Endpoint, ...] = ()
    uid: str = ""
    calls: tuple[str, ...] = ()
    """Of a pipeline: the Inferences that its pods call, those on their way out too."""
    callers: tuple[str, ...] = ()
    """Of a pipeline: the addresses that its pods call from, those on their way in or out too."""

    @property
    def distinct_endpoints(self) -> tuple[Endpoint, ...]:
        """Each endpoint once, in an order of its own: equal pods give equal bytes."""
        return tuple(sorted(set(self.endpoints)))


@dataclass(frozen=True, slots=True)
class FleetState:
    """All that the routing depends on, read from the caches at one moment.

    A backend is here as soon as its object exists, with or without endpoints: only then can a missing target be told from a sleeping one.
    """

    accesses: Sequence[ModelAccess]
    backends: Mapping[BackendKey, Backend]
    credentials: Credentials = field(default_factory=Credentials)
