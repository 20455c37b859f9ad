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
from tidegate.kube.occupancy import occupying
from tidegate.kube.parsed import Parsed
from tidegate.kube.port import Manifest
from tidegate.kube.store import ObjectStore
from tidegate.resources.names import FEATURE_COMPUTE_LABEL, INFERENCE_LABEL, POOL_LABEL

Catalogue: TypeAlias = Parsed[Any]
"""Of any of our kinds."""


def pod_facts(body: Manifest) -> Manifest:
    """What pages show of a pod and what it takes of its node, and no more: there may be many of them."""
    metadata: Mapping[str, Any] = body["metadata"]
    status: Mapping[str, Any] = body.get("status") or {}
    kept = ("name", "namespace", "uid", "resourceVersion", "labels", "creationTimestamp", "deletionTimestamp")
    return {
        "metadata": {name: metadata[name] for name in kept if name in metadata},
        "spec": occupying(body),
        "status": {name: status[name] for name in ("phase", "conditions") if name in status},
    }


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
