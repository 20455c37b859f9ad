"""What-if input of `tidegate plan`: the same pool with other demand, bounds or capacity."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from tidegate.api.inference import Tier
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


class WhatIf(ApiModel):
    """Assumed changes; without any, the allocator's present inputs."""

    slices: Annotated[
        int | None, Field(ge=0, le=_MAX_NUMBER, description="Number of healthy slices of the pool.")
    ] = None
    factor: Annotated[float, Field(ge=0, le=_MAX_NUMBER, description="Factor for all present demand.")] = 1.0
    inferences: Annotated[tuple[InferenceChange, ...], Field(max_length=1_000)] = ()
    tiers: Annotated[tuple[TierChange, ...], Field(max_length=len(Tier))] = ()
    without_budget: Annotated[
        bool, Field(description="Ignore the move budget, freeze windows and holds.")
    ] = False
