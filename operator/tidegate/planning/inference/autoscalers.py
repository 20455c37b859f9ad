"""Bound a HorizontalPodAutoscaler of an Inference by what its pool can provide."""

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tidegate.api.inference import Tier
from tidegate.api.meta import GROUP, ObjectKey
from tidegate.planning.allocator.observed_pool import AllocationObserved, PoolMember
from tidegate.planning.allocator.snapshot_builder import count_protected_replicas
from tidegate.resources.names import BOUNDED_ANNOTATION, MAX_REPLICAS_LABEL

_KIND: Final = "Inference"


@dataclass(frozen=True, slots=True)
class AutoscalerView:
    """Facts about an autoscaler that its author has labelled for this."""

    key: ObjectKey
    resource_version: str
    inference: ObjectKey
    """The Inference that it scales."""
    min_replicas: int
    """Its minReplicas; the API rejects a lower maximum."""
    max_replicas: int
    """Its present maxReplicas."""
    author_max: int | None
    """The maximum that its author set, regardless of the pool; None if the label is no number."""
    written_max: str
    """The maximum that we wrote last, as text; empty if we wrote none."""


def parse_autoscaler(body: Mapping[str, Any]) -> AutoscalerView | None:
    """Parse an autoscaler; return None if it scales another kind."""
    metadata, spec = body["metadata"], body["spec"]
    target = spec["scaleTargetRef"]
    if target.get("kind") != _KIND or not str(target.get("apiVersion", "")).startswith(f"{GROUP}/"):
        return None
    author_max = (metadata.get("labels") or {}).get(MAX_REPLICAS_LABEL, "")
    return AutoscalerView(
        key=ObjectKey(metadata["namespace"], metadata["name"]),
        resource_version=metadata["resourceVersion"],
        inference=ObjectKey(metadata["namespace"], target["name"]),
        min_replicas=spec.get("minReplicas") or 1,
        max_replicas=spec["maxReplicas"],
        author_max=int(author_max) if author_max.isdecimal() and int(author_max) > 0 else None,
        written_max=(metadata.get("annotations") or {}).get(BOUNDED_ANNOTATION, ""),
    )


def explain_unbounded(view: AutoscalerView, member: PoolMember) -> str:
    """Return why an autoscaler with our label has no bound; empty if it has one."""
    if view.author_max is None:
        return f"the label {MAX_REPLICAS_LABEL} must be a whole number above 0: set it to the maximum that you want"
    if member.has_several_pools:
        return (
            f"Inference {view.inference} runs in several pools, and none of them bounds it alone: remove the label "
            f"{MAX_REPLICAS_LABEL}, and set maxReplicas"
        )
    return ""


def compute_max_replicas(
    observed: AllocationObserved, member: PoolMember, bounded_keys: Container[ObjectKey] = ()
) -> int:
    """Return how many replicas the pool could provide while every other member and each tier keeps its floor.

    The Inference's own slices, and what others have beyond their floors, do not count: the result stays while it is used.
    Of the `bounded_keys`, whose autoscalers we bound too, the present slices count instead of the demand: two demands that
    bound each other would oscillate.
    """
    tier_floors = dict.fromkeys(Tier, 0)
    for other in observed.members:
        if other.key != member.key:
            floor = count_protected_replicas(observed, other)
            floor = min(floor, other.assigned_replicas) if other.key in bounded_keys else floor
            tier_floors[other.inference.spec.tier] += floor * other.replica_slices
    tiers, own_tier = observed.pool.spec.tiers, member.inference.spec.tier
    reserved = sum(
        max(tier_floors[tier], tiers.bounds_for(tier).floor) for tier in Tier if tier is not own_tier
    )
    free = observed.allocatable_slices - reserved - tier_floors[own_tier]
    ceiling = tiers.bounds_for(own_tier).ceiling
    if ceiling is not None:
        free = min(free, ceiling - tier_floors[own_tier])
    return max(free, 0) // member.replica_slices


def make_bound_patch(autoscaler: AutoscalerView, max_replicas: int) -> Mapping[str, Any] | None:
    """Return the merge patch for the autoscaler; None if it has this bound already, or if its label is no number.

    A maximum that somebody else writes afterwards stays until the pool's bound changes: two writers that correct each other
    never end.
    """
    if autoscaler.author_max is None:
        return None
    desired = max(min(autoscaler.author_max, max_replicas), autoscaler.min_replicas)
    if autoscaler.written_max == str(desired) or (
        desired == autoscaler.max_replicas and not autoscaler.written_max
    ):
        return None
    metadata = {
        "resourceVersion": autoscaler.resource_version,
        "annotations": {BOUNDED_ANNOTATION: str(desired)},
    }
    return {"metadata": metadata, "spec": {"maxReplicas": desired}}
