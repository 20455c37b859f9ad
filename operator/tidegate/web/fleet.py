"""All objects that the dashboard knows, as caches hold them."""

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
"""Of any of our kinds."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """One cache for each kind."""

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
        """By the plural of the kind."""
        all_ = (self.inferences, self.accesses, self.features, self.pools, self.overrides, self.decisions)
        return {each.store.kind.plural: each for each in all_}

    def stores(self) -> tuple[ObjectStore, ...]:
        """Every cache of our own kinds, in whole; that of pods holds ours alone."""
        return tuple(each.store for each in self.catalogues().values())
