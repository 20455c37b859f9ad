"""The kind AllocationDecision: one decision of the allocator with its moves, its reasons and its outcome."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from tidegate.api.compute_pool import PolicyMode
from tidegate.api.inference import Tier
from tidegate.api.meta import CustomResource, StatusModel
from tidegate.api.schema import ListAtomic, ValidationRule
from tidegate.api.shared_spares import MAX_SHARED_SPARES, DecidedSharedSpare


class SolverMethod(StrEnum):
    """How the solver found the decision."""

    MILP = "MILP"
    LINEAR = "LP"
    GREEDY = "Greedy"


class DecisionTrigger(StrEnum):
    """What made the allocator decide."""

    STARTED = "Started"
    """First decision about the pool since the controllers started."""
    INTERVAL = "Interval"
    """The policy's interval has passed."""
    NODE_LOST = "NodeLost"
    OVERRIDE_CHANGED = "OverrideChanged"
    """A ComputeOverride of the pool began, changed or ended."""
    POOL_CHANGED = "PoolChanged"
    """The pool's spec changed, a freeze window began or ended, or an event came near or ended."""
    INFERENCE_CHANGED = "InferenceChanged"
    """The spec of an autoscaled Inference changed, or one was created or deleted."""


class PredictedOutcome(StatusModel):
    """What is expected once all replicas of the decision are ready, at the demand that it plans for: measured, or of a recent peak, the forecast or an event."""

    value: Annotated[
        float, Field(ge=0, description="Value per second of the requests served, without the cost of moving.")
    ] = 0.0
    slo_misses: Annotated[
        float,
        Field(
            ge=0,
            description="Requests per second of real-time Inferences that exceed what they can serve within their SLO.",
        ),
    ] = 0.0
    lost: Annotated[float, Field(ge=0, description="Value per second of those requests.")] = 0.0


class MeasuredValue(StatusModel):
    """Value per second of the requests that clients sent before the decision."""

    offered: Annotated[float, Field(ge=0, description="Of all requests.")] = 0.0
    served: Annotated[float, Field(ge=0, description="Of those that a model answered.")] = 0.0
    refused: Annotated[
        float, Field(ge=0, description="Of those that a limit or admission control refused.")
    ] = 0.0
    lost: Annotated[float, Field(ge=0, description="Of those that failed or had no answer.")] = 0.0


class InferenceMeasuredValue(MeasuredValue):
    """The same for one Inference."""

    inference: Annotated[str, Field(max_length=127, description="Inference, as <namespace>/<name>.")]


class DecidedMove(StatusModel):
    """One Inference whose number of replicas changes."""

    inference: Annotated[str, Field(max_length=127, description="Inference, as <namespace>/<name>.")]
    tier: Annotated[Tier, Field(description="Tier of the Inference.")]
    before: Annotated[int, Field(alias="from", ge=0, description="Replicas before the move.")]
    after: Annotated[int, Field(alias="to", ge=0, description="Replicas after the move.")]
    slices: Annotated[int, Field(ge=1, description="Slices of each replica.")]
    promoted: Annotated[
        int,
        Field(ge=0, description="Warm spares that become replicas, so that no pod needs to start."),
    ] = 0
    why: Annotated[str, Field(max_length=2048, description="Reason, in one sentence.")] = ""


class DecidedSpare(StatusModel):
    """One Inference that has warm spares: loaded replicas that get no requests."""

    inference: Annotated[str, Field(max_length=127, description="Inference, as <namespace>/<name>.")]
    replicas: Annotated[int, Field(ge=1, description="Number of warm spares.")]
    slices: Annotated[int, Field(ge=1, description="Slices of each warm spare.")]


class DecidedBinding(StatusModel):
    """A rule that limits the value; without any, what limits the Inferences that move: demand or bounds."""

    constraint: Annotated[str, Field(max_length=512, description="The rule.")]
    price: Annotated[
        float, Field(description="Value per second gained if the rule were relaxed by one unit.")
    ] = 0.0


class UnmetRule(StatusModel):
    """A rule that could not be kept."""

    rule: Annotated[str, Field(max_length=64, description="The rule.")]
    subject: Annotated[str, Field(max_length=127, description="Inference or pool that the rule belongs to.")]
    message: Annotated[
        str, Field(max_length=1024, description="By how much the rule is missed, and what helps.")
    ] = ""


class AllocationDecisionSpec(StatusModel):
    """What the allocator decided, from which inputs, and why."""

    RULES: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule(
            cel="self == oldSelf",
            message="what was decided stays as it was: write nothing here",
            check=lambda _: True,  # only the API server knows the previous object
        ),
    )

    pool: Annotated[str, Field(max_length=63, description="The ComputePool.")]
    at: Annotated[datetime, Field(description="Time of the decision.")]
    trigger: Annotated[DecisionTrigger | None, Field(description=DecisionTrigger.__doc__)] = None
    mode: Annotated[PolicyMode, Field(description="Mode of the pool's policy at that time.")]
    moves: Annotated[
        tuple[DecidedMove, ...],
        Field(
            max_length=1000,
            description="Inferences whose replicas change: scale-downs first, then scale-ups.",
        ),
        ListAtomic(),
    ] = ()
    move_count: Annotated[int, Field(ge=0, description="Number of Inferences whose replicas change.")] = 0
    spares: Annotated[
        tuple[DecidedSpare, ...],
        Field(
            max_length=1000,
            description="Inferences with warm spares, the one that gains most from them first; others have none.",
        ),
        ListAtomic(),
    ] = ()
    shared_spares: Annotated[
        tuple[DecidedSharedSpare, ...],
        Field(
            max_length=MAX_SHARED_SPARES,
            description="Spares that Inferences with nodeLoss Shared share, at most 100, by namespace; others have none.",
        ),
        ListAtomic(),
    ] = ()
    binding: Annotated[
        tuple[DecidedBinding, ...],
        Field(
            max_length=20,
            description="Rules that limit the value, the most expensive first. Without any, what limits the moves, at price 0.",
        ),
        ListAtomic(),
    ] = ()
    not_kept: Annotated[
        tuple[UnmetRule, ...],
        Field(max_length=100, description="Rules that could not be kept, the most important first."),
        ListAtomic(),
    ] = ()
    price: Annotated[
        float, Field(ge=0, description="Value per second that one more slice of the pool would add.")
    ] = 0.0
    objective: Annotated[
        float, Field(description="Value per second of the requests served, minus the cost of moving.")
    ] = 0.0
    predicted: Annotated[PredictedOutcome | None, Field(description=PredictedOutcome.__doc__)] = None
    value: Annotated[
        MeasuredValue | None,
        Field(description=f"{MeasuredValue.__doc__} Absent: no requests were measured."),
    ] = None
    values: Annotated[
        tuple[InferenceMeasuredValue, ...],
        Field(
            max_length=100,
            description="The same for each Inference that got requests, at most 100, the highest offered value first.",
        ),
        ListAtomic(),
    ] = ()
    gap: Annotated[
        float | None,
        Field(
            ge=0,
            description="Upper bound of the distance from the optimum, as a share of it. Absent: unknown.",
        ),
    ] = None
    solver: Annotated[SolverMethod, Field(description="Method of the solver: MILP, LP or Greedy.")]
    note: Annotated[
        str,
        Field(
            max_length=1024,
            description="Remarks on the solve: a simpler method, pools left out, postponed rules. Absent: none.",
        ),
    ] = ""
    seconds: Annotated[float, Field(ge=0, description="Seconds that the solver took.")] = 0.0
    inputs_hash: Annotated[str, Field(max_length=64, description="SHA-256 of the solver's inputs.")] = ""


class DecisionOutcome(StatusModel):
    """How the decision was executed."""

    applied_at: Annotated[
        datetime | None, Field(description="When all moves were complete: new replicas ready, old ones gone.")
    ] = None
    reclaim_seconds: Annotated[
        float | None,
        Field(ge=0, description="Seconds until the last replica that was scaled down was gone."),
    ] = None
    moved_slices: Annotated[
        int | None,
        Field(ge=0, description="Slices that the decision has moved: released and assigned ones together."),
    ] = None
    error: Annotated[
        str, Field(max_length=1024, description="Why the decision was not executed, or only in part.")
    ] = ""


class AllocationDecisionStatus(StatusModel):
    """Progress and result of the decision."""

    outcome: Annotated[DecisionOutcome | None, Field(description=DecisionOutcome.__doc__)] = None


class AllocationDecision(CustomResource):
    """One decision of a ComputePool's allocator. Tidegate writes it and keeps the last 200 of each pool."""

    KIND: ClassVar[str] = "AllocationDecision"
    PLURAL: ClassVar[str] = "allocationdecisions"
    NAMESPACED: ClassVar[bool] = False
    RULES: ClassVar[tuple[ValidationRule, ...]] = ()

    spec: Annotated[AllocationDecisionSpec, Field(description=AllocationDecisionSpec.__doc__)]
    status: Annotated[AllocationDecisionStatus, Field(description=AllocationDecisionStatus.__doc__)] = (
        AllocationDecisionStatus()
    )

    @property
    def should_execute(self) -> bool:
        """Return whether the mode at that time executes decisions."""
        return self.spec.mode.executes_decisions

    @property
    def is_finished(self) -> bool:
        """Return whether the decision was executed completely, or was given up."""
        outcome = self.status.outcome
        return outcome is not None and (outcome.applied_at is not None or bool(outcome.error))

    @property
    def moved_slices(self) -> int:
        """Return the number of slices moved so far; all slices of the decision while no count is known."""
        outcome = self.status.outcome
        if outcome is not None and outcome.moved_slices is not None:
            return outcome.moved_slices
        return sum(abs(move.after - move.before) * move.slices for move in self.spec.moves)
