"""What-if input: the same pool with other demand, bounds or capacity, now (`tidegate plan`) or over a day (`tidegate simulate`)."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from tidegate.api.fields import DurationText, ObjectName, duration_between
from tidegate.api.inference import NodeLossMode, Tier
from tidegate.api.meta import ApiModel
from tidegate.api.schema import ValidationRule

_MAX_NUMBER: int = 1_000_000


class InferenceChange(ApiModel):
    """Assumed demand, bounds or value of one Inference."""

    RULES: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule(
            cel="!(has(self.demand) && has(self.factor))",
            message="give demand or factor, and not both",
            check=lambda change: change.demand is None or change.factor is None,
            field="demand",
        ),
    )

    inference: Annotated[str, Field(max_length=127, description="Inference, as <namespace>/<name>.")]
    demand: Annotated[
        float | None,
        Field(
            ge=0,
            allow_inf_nan=False,
            description="Demand in requests per second; of tier offline, in slices.",
        ),
    ] = None
    factor: Annotated[
        float | None,
        Field(ge=0, le=_MAX_NUMBER, description="Factor for its present demand."),
    ] = None
    min_replicas: Annotated[
        int | None, Field(ge=0, le=_MAX_NUMBER, description="Smallest number of replicas.")
    ] = None
    max_replicas: Annotated[
        int | None, Field(ge=0, le=_MAX_NUMBER, description="Largest number of replicas.")
    ] = None
    value: Annotated[float | None, Field(gt=0, allow_inf_nan=False, description="Value of one request.")] = (
        None
    )


class TierChange(ApiModel):
    """Assumed bounds of one tier."""

    tier: Annotated[Tier, Field(description="Tier.")]
    floor: Annotated[int | None, Field(ge=0, le=_MAX_NUMBER, description="Floor of the tier, in slices.")] = (
        None
    )
    ceiling: Annotated[
        int | None, Field(ge=0, le=_MAX_NUMBER, description="Ceiling of the tier, in slices.")
    ] = None


class PoolChanges(ApiModel):
    """Assumed changes of a pool and its Inferences."""

    slices: Annotated[
        int | None, Field(ge=0, le=_MAX_NUMBER, description="Number of healthy slices of the pool.")
    ] = None
    factor: Annotated[float, Field(ge=0, le=_MAX_NUMBER, description="Factor for all present demand.")] = 1.0
    inferences: Annotated[tuple[InferenceChange, ...], Field(max_length=1_000)] = ()
    tiers: Annotated[tuple[TierChange, ...], Field(max_length=len(Tier))] = ()


class WhatIf(PoolChanges):
    """Assumed changes; without any, the allocator's present inputs."""

    without_budget: Annotated[
        bool, Field(description="Ignore the move budget, freeze windows and holds.")
    ] = False


class LostNodes(ApiModel):
    """Nodes that are lost together, with the replicas on them, and come back empty."""

    nodes: Annotated[int, Field(ge=1, le=_MAX_NUMBER, description="Number of nodes.")] = 1
    after: Annotated[
        Annotated[DurationText, duration_between("0s", "168h")],
        Field(description="Time of the loss, from the begin of the simulated time on."),
    ] = "0s"
    lasting: Annotated[
        Annotated[DurationText, duration_between("1s", "168h")],
        Field(description="Time until they are back."),
    ] = "10m"


class EventChange(ApiModel):
    """Another factor of an event of the pool: what the allocator plans for, not the demand itself."""

    event: Annotated[ObjectName, Field(description="Name of an event in spec.policy.events.")]
    factor: Annotated[
        float, Field(gt=1, le=100, allow_inf_nan=False, description="Factor, more than 1 and at most 100.")
    ]


class DayWhatIf(PoolChanges):
    """Assumed changes of a simulated time; without any, it is as recorded."""

    slices: Annotated[
        int | None,
        Field(
            ge=1,
            le=_MAX_NUMBER,
            description="Number of slices of the pool that are simulated: healthy, and not of Inferences without capacity.",
        ),
    ] = None
    nodes: Annotated[int | None, Field(ge=1, le=_MAX_NUMBER, description="Number of nodes of the pool.")] = (
        None
    )
    lost_nodes: Annotated[tuple[LostNodes, ...], Field(max_length=16, description="Losses of nodes.")] = ()
    dwell: Annotated[
        DurationText | None, Field(description="The pool's stabilization window, spec.policy.dwell.")
    ] = None
    node_loss: Annotated[
        NodeLossMode | None,
        Field(description="The pool's spec.policy.nodeLoss.mode; Inferences that set their own keep it."),
    ] = None
    events: Annotated[
        tuple[EventChange, ...], Field(max_length=64, description="Other factors of events.")
    ] = ()
