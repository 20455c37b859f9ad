"""What somebody would like to know of the allocator: the same pool with other demand, floors or capacity."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from tidegate.api.inference import Tier
from tidegate.api.meta import ApiModel
from tidegate.api.schema import Rule

_MOST: int = 1_000_000


class InferenceChange(ApiModel):
    """One Inference as it is not."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="!(has(self.demand) && has(self.factor))",
            message="give demand or factor, and not both",
            check=lambda change: change.demand is None or change.factor is None,
            field="demand",
        ),
    )

    inference: Annotated[str, Field(max_length=127, description="Namespace and name, with a slash between.")]
    demand: Annotated[
        float | None,
        Field(
            ge=0,
            allow_inf_nan=False,
            description="What is asked of it, in requests per second; offline: slices.",
        ),
    ] = None
    factor: Annotated[
        float | None,
        Field(ge=0, le=_MOST, description="Its demand of now, so many times."),
    ] = None
    min_replicas: Annotated[int | None, Field(ge=0, le=_MOST, description="At least so many replicas.")] = (
        None
    )
    max_replicas: Annotated[int | None, Field(ge=0, le=_MOST, description="At most so many.")] = None
    value: Annotated[
        float | None, Field(gt=0, allow_inf_nan=False, description="What a request to it is worth.")
    ] = None


class TierChange(ApiModel):
    """One tier's rules as they are not."""

    tier: Annotated[Tier, Field(description="Which tier.")]
    floor: Annotated[int | None, Field(ge=0, le=_MOST, description="Slices that it holds at least.")] = None
    ceiling: Annotated[int | None, Field(ge=0, le=_MOST, description="Slices that it holds at most.")] = None


class WhatIf(ApiModel):
    """The changes; nothing given is the allocator's own question of now."""

    slices: Annotated[
        int | None, Field(ge=0, le=_MOST, description="Slices in good health that the pool has.")
    ] = None
    factor: Annotated[
        float, Field(ge=0, le=_MOST, description="All demand that is known, so many times.")
    ] = 1.0
    inferences: Annotated[tuple[InferenceChange, ...], Field(max_length=1_000)] = ()
    tiers: Annotated[tuple[TierChange, ...], Field(max_length=3)] = ()
    without_budget: Annotated[
        bool, Field(description="Leave aside how much may move, and what holds the pool.")
    ] = False
