"""The kind ComputeOverride: bounds that a person sets for a limited time, with a reason."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, ClassVar, Final

from pydantic import Field

from tidegate.api.conditions import ObservedCondition
from tidegate.api.fields import MAX_REPLICAS, ObjectName, TimeText
from tidegate.api.meta import (
    NOT_OBSERVED,
    ApiModel,
    CustomResource,
    ObjectKey,
    ObservedGeneration,
    StatusModel,
)
from tidegate.api.schema import ListMap, ValidationRule, ValidationRules, must_match

MAX_OVERRIDE_DURATION: Final = timedelta(days=7)
AUTHOR_ANNOTATION: Final = "tidegate.io/author"
"""The authenticated user who wrote the spec; the chart's admission policy sets it."""


class OverrideKind(StrEnum):
    """Kinds of an override's target."""

    INFERENCE = "Inference"
    COMPUTE_POOL = "ComputePool"


class OverrideAction(StrEnum):
    """What an override does to its target."""

    HOLD = "Hold"
    PIN = "Pin"
    FLOOR = "Floor"


class OverrideTarget(ApiModel):
    """The object that the override applies to."""

    RULES: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule(
            cel="(self.kind == 'Inference') == has(self.namespace)",
            message="namespace is for kind Inference, and needed there: set it, or remove it for kind ComputePool",
            check=lambda target: (target.kind is OverrideKind.INFERENCE) == (target.namespace is not None),
            field="namespace",
        ),
    )

    kind: Annotated[OverrideKind, Field(description="Inference or ComputePool.")]
    namespace: Annotated[
        ObjectName | None, Field(description="The Inference's namespace; absent for a ComputePool.")
    ] = None
    name: Annotated[ObjectName, Field(description="The object's name.")]

    @property
    def key(self) -> ObjectKey:
        """Return the namespace and name of the target."""
        return ObjectKey(self.namespace or "", self.name)


class ReplicaPin(ApiModel):
    """Fixes the number of replicas, between minReplicas and maxReplicas of spec.scaling."""

    replicas: Annotated[int, Field(strict=True, ge=0, le=MAX_REPLICAS, description="Number of replicas.")]


class ReplicaFloor(ApiModel):
    """Sets the smallest number of replicas, between minReplicas and maxReplicas of spec.scaling."""

    replicas: Annotated[
        int, Field(strict=True, ge=1, le=MAX_REPLICAS, description="Smallest number of replicas.")
    ]


class ComputeOverrideSpec(ApiModel):
    """The override, its end and its reason."""

    RULES: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule(
            cel="(has(self.pin) ? 1 : 0) + (has(self.floor) ? 1 : 0) + (self.hold ? 1 : 0) == 1",
            message="set exactly one of pin, floor and hold: true",
            check=lambda spec: (spec.pin is not None) + (spec.floor is not None) + spec.hold == 1,
        ),
        ValidationRule(
            cel="self.target.kind == 'Inference' || self.hold",
            message="a ComputePool can only be held: set hold: true, or name an Inference",
            check=lambda spec: spec.target.kind is OverrideKind.INFERENCE or spec.hold,
            field="target",
        ),
        ValidationRule(
            cel="self.target == oldSelf.target",
            message="the target cannot change: delete this override and make another",
            check=lambda _: True,  # only the API server knows the previous object
            field="target",
        ),
    )

    target: Annotated[OverrideTarget, Field(description=OverrideTarget.__doc__)]
    pin: Annotated[ReplicaPin | None, Field(description=ReplicaPin.__doc__)] = None
    floor: Annotated[ReplicaFloor | None, Field(description=ReplicaFloor.__doc__)] = None
    hold: Annotated[
        bool,
        Field(
            strict=True,
            description="True keeps the Inference's present number of replicas. For a ComputePool, it allows only moves that lost "
            "nodes or real-time floors require.",
        ),
    ] = False
    reason: Annotated[
        str,
        Field(min_length=1, max_length=512, description="Why the override exists, for other people."),
        ValidationRules(must_match(r"(?s).*[^ \t\n\r].*", "must say something")),
    ]
    expires_at: Annotated[
        TimeText,
        Field(
            description="When the override ends, as 2026-11-22T18:00:00Z. It ends at most 7 days after its creation, even if a later "
            "time was stored."
        ),
    ]

    @property
    def action(self) -> OverrideAction:
        """Return what the override does."""
        if self.pin is not None:
            return OverrideAction.PIN
        return OverrideAction.HOLD if self.floor is None else OverrideAction.FLOOR

    @property
    def replica_count(self) -> int | None:
        """Return the replicas of the pin or the floor; None for a hold."""
        bound = self.pin or self.floor
        return None if bound is None else bound.replicas


class ComputeOverrideStatus(StatusModel):
    """Whether the override is active."""

    observed_generation: ObservedGeneration = NOT_OBSERVED
    conditions: Annotated[
        tuple[ObservedCondition, ...],
        Field(max_length=8, description="Ready: whether the override is active."),
        ListMap("type"),
    ] = ()


class ComputeOverride(CustomResource):
    """Overrides the allocator for a limited time and for a reason: pins replicas, sets a floor, or holds."""

    KIND: ClassVar[str] = "ComputeOverride"
    PLURAL: ClassVar[str] = "computeoverrides"
    NAMESPACED: ClassVar[bool] = False

    spec: Annotated[ComputeOverrideSpec, Field(description=ComputeOverrideSpec.__doc__)]
    status: Annotated[ComputeOverrideStatus, Field(description=ComputeOverrideStatus.__doc__)] = (
        ComputeOverrideStatus()
    )

    @property
    def end_time(self) -> datetime:
        """Return when the override ends: at most seven days after its creation."""
        expiry, limit = datetime.fromisoformat(self.spec.expires_at), self.end_limit
        return expiry if limit is None else min(expiry, limit)

    @property
    def end_limit(self) -> datetime | None:
        """Return seven days after the creation: no later expiresAt extends the override; None before it is created."""
        created = self.metadata.creation_timestamp
        return None if created is None else created.astimezone(UTC) + MAX_OVERRIDE_DURATION

    @property
    def author(self) -> str:
        """Return the user who wrote the spec; empty if the admission policy is not installed."""
        return self.metadata.annotations.get(AUTHOR_ANNOTATION, "")
