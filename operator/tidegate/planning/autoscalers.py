"""Bound a HorizontalPodAutoscaler of an Inference by what its pool can provide."""

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tidegate.api.inference import Tier
from tidegate.api.meta import GROUP, ObjectKey
from tidegate.planning.allocation_view import AllocationObserved, Member, least_of
from tidegate.resources.names import BOUNDED_ANNOTATION, MOST_REPLICAS_LABEL

_KIND: Final = "Inference"


@dataclass(frozen=True, slots=True)
class AutoscalerView:
    """Facts about an autoscaler that its author has labelled for this."""

    key: ObjectKey
    resource_version: str
    inference: ObjectKey
    """The Inference that it scales."""
    least: int
    """Its minReplicas; the API rejects a lower maximum."""
    most: int
    """Its present maxReplicas."""
    own_most: int | None
    """The maximum that its author set, regardless of the pool; None if the label is no number."""
    bounded: str
    """The maximum that we wrote last, as text; empty if we wrote none."""


def autoscaler_view(body: Mapping[str, Any]) -> AutoscalerView | None:
    """Parse an autoscaler; return None if it scales another kind."""
    metadata, spec = body["metadata"], body["spec"]
    target = spec["scaleTargetRef"]
    if target.get("kind") != _KIND or not str(target.get("apiVersion", "")).startswith(f"{GROUP}/"):
        return None
    author_max = (metadata.get("labels") or {}).get(MOST_REPLICAS_LABEL, "")
    return AutoscalerView(
        key=ObjectKey(metadata["namespace"], metadata["name"]),
        resource_version=metadata["resourceVersion"],
        inference=ObjectKey(metadata["namespace"], target["name"]),
        least=spec.get("minReplicas") or 1,
        most=spec["maxReplicas"],
        own_most=int(author_max) if author_max.isdecimal() and int(author_max) > 0 else None,
        bounded=(metadata.get("annotations") or {}).get(BOUNDED_ANNOTATION, ""),
    )


def most_replicas(observed: AllocationObserved, member: Member, marked: Container[ObjectKey] = ()) -> int:
    """Return how many replicas the pool could provide while every other member and each tier keeps its floor.

    The Inference's own slices, and what others have beyond their floors, do not count: the result stays while it is used.
    Of the `bounded_keys`, whose autoscalers we bound too, the present slices count instead of the demand: two demands that
    bound each other would oscillate.
    """
    tier_floors = dict.fromkeys(Tier, 0)
    for other in observed.members:
        if other.key != member.key:
            floor = least_of(observed, other)
            floor = min(floor, other.held) if other.key in marked else floor
            tier_floors[other.inference.spec.tier] += floor * other.slices
    tiers, own_tier = observed.pool.spec.tiers, member.inference.spec.tier
    reserved = sum(max(tier_floors[tier], tiers.of(tier).floor) for tier in Tier if tier is not own_tier)
    free = observed.room - reserved - tier_floors[own_tier]
    ceiling = tiers.of(own_tier).ceiling
    if ceiling is not None:
        free = min(free, ceiling - tier_floors[own_tier])
    return max(free, 0) // member.slices


def bound(view: AutoscalerView, most: int) -> Mapping[str, Any] | None:
    """Return the merge patch for the autoscaler; None if it has this bound already, or if its label is no number.

    A maximum that somebody else writes afterwards stays until the pool's bound changes: two writers that correct each other
    never end.
    """
    if view.own_most is None:
        return None
    desired = max(min(view.own_most, most), view.least)
    if view.bounded == str(desired) or (desired == view.most and not view.bounded):
        return None
    metadata = {
        "resourceVersion": view.resource_version,
        "annotations": {BOUNDED_ANNOTATION: str(desired)},
    }
    return {"metadata": metadata, "spec": {"maxReplicas": desired}}
