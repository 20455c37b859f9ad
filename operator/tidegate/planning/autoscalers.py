"""A HorizontalPodAutoscaler of an Inference in a pool: how far it may go there, so that it asks for nothing that is not to be had."""

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
    """What is read of an autoscaler that somebody has marked for this."""

    key: ObjectKey
    resource_version: str
    inference: ObjectKey
    """The Inference that it scales."""
    least: int
    """Its minReplicas, below which its API allows no maximum."""
    most: int
    """Its maxReplicas at present."""
    own_most: int | None
    """The maximum that its author wants, whatever the pool has; None where the mark is no number."""
    bounded: str
    """The maximum that was written last, in words, or empty."""


def autoscaler_view(body: Mapping[str, Any]) -> AutoscalerView | None:
    """Reads one; None where it scales something else."""
    metadata, spec = body["metadata"], body["spec"]
    target = spec["scaleTargetRef"]
    if target.get("kind") != _KIND or not str(target.get("apiVersion", "")).startswith(f"{GROUP}/"):
        return None
    own = (metadata.get("labels") or {}).get(MOST_REPLICAS_LABEL, "")
    return AutoscalerView(
        key=ObjectKey(metadata["namespace"], metadata["name"]),
        resource_version=metadata["resourceVersion"],
        inference=ObjectKey(metadata["namespace"], target["name"]),
        least=spec.get("minReplicas") or 1,
        most=spec["maxReplicas"],
        own_most=int(own) if own.isdecimal() and int(own) > 0 else None,
        bounded=(metadata.get("annotations") or {}).get(BOUNDED_ANNOTATION, ""),
    )


def most_replicas(observed: AllocationObserved, member: Member, marked: Container[ObjectKey] = ()) -> int:
    """Replicas that the pool could give it while every other member keeps its least, and each tier its floor.

    What it has itself, and what others have beyond their least, does not count: the figure stays while it is used.
    Of the `marked`, who are told such a figure themselves, what they have counts and not what they wish for: two wishes that
    bound each other would swing.
    """
    least = dict.fromkeys(Tier, 0)
    for other in observed.members:
        if other.key != member.key:
            kept = least_of(observed, other)
            kept = min(kept, other.held) if other.key in marked else kept
            least[other.inference.spec.tier] += kept * other.slices
    tiers, own = observed.pool.spec.tiers, member.inference.spec.tier
    others = sum(max(least[tier], tiers.of(tier).floor) for tier in Tier if tier is not own)
    room = observed.room - others - least[own]
    ceiling = tiers.of(own).ceiling
    if ceiling is not None:
        room = min(room, ceiling - least[own])
    return max(room, 0) // member.slices


def bound(view: AutoscalerView, most: int) -> Mapping[str, Any] | None:
    """What to change of it, as a merge patch; None where it was told so already, or says no number.

    Whoever writes another maximum afterwards is left alone until the pool has something else to say: two that correct each other
    never end.
    """
    if view.own_most is None:
        return None
    wanted = max(min(view.own_most, most), view.least)
    if view.bounded == str(wanted) or (wanted == view.most and not view.bounded):
        return None
    metadata = {
        "resourceVersion": view.resource_version,
        "annotations": {BOUNDED_ANNOTATION: str(wanted)},
    }
    return {"metadata": metadata, "spec": {"maxReplicas": wanted}}
