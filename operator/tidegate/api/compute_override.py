"""The kind ComputeOverride: a person's decision over the allocator's, with a reason and an end."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, ClassVar, Final

from pydantic import Field

from tidegate.api.conditions import ObservedCondition
from tidegate.api.fields import MAX_REPLICAS, ObjectName, TimeText
from tidegate.api.meta import NOT_OBSERVED, ApiModel, ObjectKey, ObservedGeneration, Resource, StatusModel
from tidegate.api.schema import ListMap, Rule, Rules, matches

LONGEST: Final = timedelta(days=7)
AUTHOR_ANNOTATION: Final = "tidegate.io/author"
"""The user who wrote the spec, as the API server knows them: set by the chart's admission policy, never typed."""


class OverrideKind(StrEnum):
    """What may be overridden."""

    INFERENCE = "Inference"
    COMPUTE_POOL = "ComputePool"


class OverrideTarget(ApiModel):
    """Which object it is about."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="(self.kind == 'Inference') == has(self.namespace)",
            message="namespace is for kind Inference, and needed there: set it, or remove it for kind ComputePool",
            check=lambda it: (it.kind is OverrideKind.INFERENCE) == (it.namespace is not None),
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
        """The object's namespace and name."""
        return ObjectKey(self.namespace or "", self.name)


class Pin(ApiModel):
    """Exactly so many replicas, within spec.scaling."""

    replicas: Annotated[
        int, Field(strict=True, ge=0, le=MAX_REPLICAS, description="Number of pods that it is to have.")
    ]


class Floor(ApiModel):
    """At least so many replicas, within spec.scaling."""

    replicas: Annotated[
        int, Field(strict=True, ge=1, le=MAX_REPLICAS, description="Number of pods that it has at least.")
    ]


class ComputeOverrideSpec(ApiModel):
    """What is decided, until when, and why."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="(has(self.pin) ? 1 : 0) + (has(self.floor) ? 1 : 0) + (self.hold ? 1 : 0) == 1",
            message="set exactly one of pin, floor and hold: true",
            check=lambda it: (it.pin is not None) + (it.floor is not None) + it.hold == 1,
        ),
        Rule(
            cel="self.target.kind == 'Inference' || self.hold",
            message="a ComputePool can only be held: set hold: true, or name an Inference",
            check=lambda it: it.target.kind is OverrideKind.INFERENCE or it.hold,
            field="target",
        ),
        Rule(
            cel="self.target == oldSelf.target",
            message="the target cannot change: delete this override and make another",
            check=lambda _: True,  # only the API server sees the object as it was
            field="target",
        ),
    )

    target: Annotated[OverrideTarget, Field(description=OverrideTarget.__doc__)]
    pin: Annotated[Pin | None, Field(description=Pin.__doc__)] = None
    floor: Annotated[Floor | None, Field(description=Floor.__doc__)] = None
    hold: Annotated[
        bool,
        Field(
            strict=True,
            description="True keeps the Inference's number of replicas as it is; of a ComputePool, moves only what lost "
            "nodes and realtime floors force.",
        ),
    ] = False
    reason: Annotated[
        str,
        Field(min_length=1, max_length=512, description="Why, in words for those who find it."),
        Rules(matches(r"(?s).*[^ \t\n\r].*", "must say something")),
    ]
    expires_at: Annotated[
        TimeText,
        Field(
            description="When it ends, as 2026-11-22T18:00:00Z; at most 7 days after it was made, and earlier than a later "
            "time that got past that rule."
        ),
    ]


class ComputeOverrideStatus(StatusModel):
    """Whether it is in force."""

    observed_generation: ObservedGeneration = NOT_OBSERVED
    conditions: Annotated[
        tuple[ObservedCondition, ...],
        Field(max_length=8, description="Ready: whether it is in force."),
        ListMap("type"),
    ] = ()


class ComputeOverride(Resource):
    """A person's decision over the allocator's: pins, raises or holds, for a while and for a reason."""

    KIND: ClassVar[str] = "ComputeOverride"
    PLURAL: ClassVar[str] = "computeoverrides"
    NAMESPACED: ClassVar[bool] = False

    spec: Annotated[ComputeOverrideSpec, Field(description=ComputeOverrideSpec.__doc__)]
    status: Annotated[ComputeOverrideStatus, Field(description=ComputeOverrideStatus.__doc__)] = (
        ComputeOverrideStatus()
    )

    @property
    def ends(self) -> datetime:
        """When it ends: never later than seven days after it was made."""
        until = datetime.fromisoformat(self.spec.expires_at)
        made = self.metadata.creation_timestamp
        return until if made is None else min(until, made.astimezone(UTC) + LONGEST)

    @property
    def author(self) -> str:
        """Who wrote it, as far as the API server says."""
        return self.metadata.annotations.get(AUTHOR_ANNOTATION, "")
