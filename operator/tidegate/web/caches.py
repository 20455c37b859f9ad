"""The caches of all objects that the dashboard shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tidegate.api.allocation_decision import AllocationDecision
from tidegate.api.compute_override import ComputeOverride
from tidegate.api.compute_pool import ComputePool
from tidegate.api.feature_compute import FeatureCompute
from tidegate.api.inference import Inference
from tidegate.api.model_access import ModelAccess
from tidegate.kube import kinds
from tidegate.kube.store import ObjectStore
from tidegate.kube.transforms import trim_pod
from tidegate.kube.typed_cache import TypedCache
from tidegate.resources.names import FEATURE_COMPUTE_LABEL, INFERENCE_LABEL, POOL_LABEL

AnyCache: TypeAlias = TypedCache[Any]
"""The cache of any of our kinds."""


@dataclass(frozen=True, slots=True)
class FleetCaches:
    """The caches of our kinds and of their pods."""

    inferences: TypedCache[Inference] = field(
        default_factory=lambda: TypedCache(Inference, ObjectStore(kinds.INFERENCE))
    )
    accesses: TypedCache[ModelAccess] = field(
        default_factory=lambda: TypedCache(ModelAccess, ObjectStore(kinds.MODEL_ACCESS))
    )
    features: TypedCache[FeatureCompute] = field(
        default_factory=lambda: TypedCache(FeatureCompute, ObjectStore(kinds.FEATURE_COMPUTE))
    )
    pools: TypedCache[ComputePool] = field(
        default_factory=lambda: TypedCache(ComputePool, ObjectStore(kinds.COMPUTE_POOL))
    )
    overrides: TypedCache[ComputeOverride] = field(
        default_factory=lambda: TypedCache(ComputeOverride, ObjectStore(kinds.COMPUTE_OVERRIDE))
    )
    decisions: TypedCache[AllocationDecision] = field(
        default_factory=lambda: TypedCache(AllocationDecision, ObjectStore(kinds.ALLOCATION_DECISION))
    )
    pods: ObjectStore = field(
        default_factory=lambda: ObjectStore(
            kinds.POD, labels=(INFERENCE_LABEL, FEATURE_COMPUTE_LABEL, POOL_LABEL), transform=trim_pod
        )
    )

    def caches_by_plural(self) -> Mapping[str, AnyCache]:
        """Return the caches of our kinds by plural."""
        caches = (self.inferences, self.accesses, self.features, self.pools, self.overrides, self.decisions)
        return {cache.store.kind.plural: cache for cache in caches}

    def list_stores(self) -> tuple[ObjectStore, ...]:
        """Return the stores of our kinds; pods are watched separately, because only ours are cached."""
        return tuple(cache.store for cache in self.caches_by_plural().values())
