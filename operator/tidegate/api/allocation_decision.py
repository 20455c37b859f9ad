"""The kind AllocationDecision: one decision of the allocator, its inputs, its moves, why, and what came of it. Users only read it."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from tidegate.api.compute_pool import PolicyMode
from tidegate.api.inference import Tier
from tidegate.api.meta import Resource, StatusModel
from tidegate.api.schema import ListAtomic, Rule


class SolverMethod(StrEnum):
    """How the answer was found."""

    MILP = "MILP"
    LINEAR = "LP"
    GREEDY = "Greedy"


class Trigger(StrEnum):
    """Why it was decided just then."""

    STARTED = "Started"
    """The controllers' first look at the pool."""
    INTERVAL = "Interval"
    """Its time had come."""
    NODE_LOST = "NodeLost"
    OVERRIDE_CHANGED = "OverrideChanged"
    """One began, changed or ended."""
    POOL_CHANGED = "PoolChanged"
    """Its spec, or a freeze window began or ended."""
    INFERENCE_CHANGED = "InferenceChanged"
    """The spec of one that is decided about, or one came or went."""


class Predicted(StatusModel):
    """What is expected of it, once all of it is there."""

    value: Annotated[
        float, Field(ge=0, description="Value per second of what is served, without what moving costs.")
    ] = 0.0
    slo_misses: Annotated[
        float,
        Field(
            ge=0,
            description="Requests per second for real-time Inferences beyond what they serve within their SLO.",
        ),
    ] = 0.0


class DecidedMove(StatusModel):
    """One Inference whose replicas change."""

    inference: Annotated[str, Field(max_length=127, description="Namespace and name, with a slash between.")]
    tier: Annotated[Tier, Field(description="Its tier.")]
    before: Annotated[int, Field(alias="from", ge=0, description="Replicas that it had.")]
    after: Annotated[int, Field(alias="to", ge=0, description="Replicas that it is to have.")]
    slices: Annotated[int, Field(ge=1, description="Slices that each replica has.")]
    promoted: Annotated[
        int,
        Field(ge=0, description="Number of replicas that it gets of its warm spares, so that no pod starts."),
    ] = 0
    why: Annotated[str, Field(max_length=2048, description="Why, in one sentence.")] = ""


class DecidedSpare(StatusModel):
    """One Inference that is kept loaded replicas without requests."""

    inference: Annotated[str, Field(max_length=127, description="Namespace and name, with a slash between.")]
    replicas: Annotated[int, Field(ge=1, description="Number of them.")]
    slices: Annotated[int, Field(ge=1, description="Slices that each has.")]


class DecidedBinding(StatusModel):
    """A rule that holds the value down; where none does, what stops those that move: their demand or their bounds."""

    constraint: Annotated[str, Field(max_length=512, description="Which rule.")]
    price: Annotated[
        float, Field(description="What one unit less of it would earn, in value per second.")
    ] = 0.0


class NotKept(StatusModel):
    """A rule that could not be kept."""

    rule: Annotated[str, Field(max_length=64, description="Which rule.")]
    subject: Annotated[str, Field(max_length=127, description="Whose rule: an Inference or a pool.")]
    message: Annotated[str, Field(max_length=1024, description="By how much, and what helps.")] = ""


class AllocationDecisionSpec(StatusModel):
    """What was decided, from what, and why."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="self == oldSelf",
            message="what was decided stays as it was: write nothing here",
            check=lambda _: True,  # only the API server sees the object as it was
        ),
    )

    pool: Annotated[str, Field(max_length=63, description="The ComputePool.")]
    at: Annotated[datetime, Field(description="When it was decided.")]
    trigger: Annotated[Trigger | None, Field(description=Trigger.__doc__)] = None
    mode: Annotated[PolicyMode, Field(description="What was to be done with it.")]
    moves: Annotated[
        tuple[DecidedMove, ...],
        Field(max_length=1000, description="Whose replicas change, those that give before those that take."),
        ListAtomic(),
    ] = ()
    move_count: Annotated[int, Field(ge=0, description="Number of Inferences whose replicas change.")] = 0
    spares: Annotated[
        tuple[DecidedSpare, ...],
        Field(
            max_length=1000,
            description="Who is to have warm spares; all others are to have none. The first gains most from them.",
        ),
        ListAtomic(),
    ] = ()
    binding: Annotated[
        tuple[DecidedBinding, ...],
        Field(
            max_length=20,
            description="The dearest rules that hold the value down. Where none does, what stops those that move, at price 0.",
        ),
        ListAtomic(),
    ] = ()
    not_kept: Annotated[
        tuple[NotKept, ...],
        Field(max_length=100, description="Rules that could not be kept, the first the most important."),
        ListAtomic(),
    ] = ()
    price: Annotated[
        float, Field(ge=0, description="What one more slice of the pool would earn, in value per second.")
    ] = 0.0
    objective: Annotated[
        float, Field(description="Value per second of what is served, less what moving costs.")
    ] = 0.0
    predicted: Annotated[Predicted | None, Field(description=Predicted.__doc__)] = None
    gap: Annotated[
        float | None,
        Field(
            ge=0, description="How far from the best it may be, as a share of it; absent where nobody knows."
        ),
    ] = None
    solver: Annotated[SolverMethod, Field(description="MILP, LP or Greedy: how it was found.")]
    note: Annotated[
        str, Field(max_length=1024, description="Why by no better method; absent when by the best.")
    ] = ""
    seconds: Annotated[float, Field(ge=0, description="Seconds that solving took.")] = 0.0
    inputs_hash: Annotated[str, Field(max_length=64, description="SHA-256 of what it was decided from.")] = ""


class Outcome(StatusModel):
    """What came of it."""

    applied_at: Annotated[
        datetime | None, Field(description="When the data plane had it all: replicas ready, others gone.")
    ] = None
    reclaim_seconds: Annotated[
        float | None,
        Field(ge=0, description="Seconds until the last replica that gave its slices was gone."),
    ] = None
    moved_slices: Annotated[
        int | None,
        Field(ge=0, description="Slices that have changed hands by it, those given and those taken."),
    ] = None
    error: Annotated[
        str, Field(max_length=1024, description="Why it was not carried out, or not to the end.")
    ] = ""


class AllocationDecisionStatus(StatusModel):
    """What came of it."""

    outcome: Annotated[Outcome | None, Field(description=Outcome.__doc__)] = None


class AllocationDecision(Resource):
    """One decision of a ComputePool's allocator. Tidegate writes it and keeps the last 200 of each pool."""

    KIND: ClassVar[str] = "AllocationDecision"
    PLURAL: ClassVar[str] = "allocationdecisions"
    NAMESPACED: ClassVar[bool] = False
    RULES: ClassVar[tuple[Rule, ...]] = ()

    spec: Annotated[AllocationDecisionSpec, Field(description=AllocationDecisionSpec.__doc__)]
    status: Annotated[AllocationDecisionStatus, Field(description=AllocationDecisionStatus.__doc__)] = (
        AllocationDecisionStatus()
    )

    @property
    def executed(self) -> bool:
        """Whether it was made to be carried out."""
        return self.spec.mode.executes

    @property
    def finished(self) -> bool:
        """Whether nothing is done about it any more: it was carried out, or given up."""
        outcome = self.status.outcome
        return outcome is not None and (outcome.applied_at is not None or bool(outcome.error))

    @property
    def moved_slices(self) -> int:
        """Slices that it has moved as far as is known; all of them until then."""
        outcome = self.status.outcome
        if outcome is not None and outcome.moved_slices is not None:
            return outcome.moved_slices
        return sum(abs(move.after - move.before) * move.slices for move in self.spec.moves)
