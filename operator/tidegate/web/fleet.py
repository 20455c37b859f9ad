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
from tidegate.kube.facts import pod_facts
from tidegate.kube.parsed import Parsed
from tidegate.kube.store import ObjectStore
from tidegate.resources.names import FEATURE_COMPUTE_LABEL, INFERENCE_LABEL, POOL_LABEL

Catalogue: TypeAlias = Parsed[Any]
"""The cache of any of our kinds."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """The caches of our kinds and of their pods."""

    inferences: Parsed[Inference] = field(
        default_factory=lambda: Parsed(Inference, ObjectStore(kinds.INFERENCE))
    )
    accesses: Parsed[ModelAccess] = field(
        default_factory=lambda: Parsed(ModelAccess, ObjectStore(kinds.MODEL_ACCESS))
    )
    features: Parsed[FeatureCompute] = field(
        default_factory=lambda: Parsed(FeatureCompute, ObjectStore(kinds.FEATURE_COMPUTE))
    )
    pools: Parsed[ComputePool] = field(
        default_factory=lambda: Parsed(ComputePool, ObjectStore(kinds.COMPUTE_POOL))
    )
    overrides: Parsed[ComputeOverride] = field(
        default_factory=lambda: Parsed(ComputeOverride, ObjectStore(kinds.COMPUTE_OVERRIDE))
    )
    decisions: Parsed[AllocationDecision] = field(
        default_factory=lambda: Parsed(AllocationDecision, ObjectStore(kinds.ALLOCATION_DECISION))
    )
    pods: ObjectStore = field(
        default_factory=lambda: ObjectStore(
            kinds.POD, labels=(INFERENCE_LABEL, FEATURE_COMPUTE_LABEL, POOL_LABEL), transform=pod_facts
        )
    )

    def catalogues(self) -> Mapping[str, Catalogue]:
        """Return the caches of our kinds by plural."""
        caches = (self.inferences, self.accesses, self.features, self.pools, self.overrides, self.decisions)
        return {cache.store.kind.plural: cache for cache in caches}

    def stores(self) -> tuple[ObjectStore, ...]:
        """Return the stores of our kinds; pods are watched separately, because only ours are cached."""
        return tuple(cache.store for cache in self.catalogues().values())
