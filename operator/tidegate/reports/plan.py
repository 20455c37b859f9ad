"""Report what the allocator would decide with other inputs, in the shape of its decisions."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Self

from pydantic import Field

from tidegate.api.allocation_decision import AllocationDecisionSpec, DecidedMove, Predicted
from tidegate.api.conditions import timestamp
from tidegate.api.inference import Inference, Tier
from tidegate.api.meta import ApiModel
from tidegate.api.what_if import WhatIf
from tidegate.planning.what_if import Answer, Asked
from tidegate.reports.report import Report, named


class AskedReport(ApiModel):
    """One Inference of the solver's input."""

    inference: str
    tier: Tier
    demand: float | None
    """Requests per second, in tier offline slices; absent if unknown."""
    wanted: int | None
    """Slices that would serve the demand."""
    serves: float
    """Requests per second that the present replicas serve within the SLO."""
    would_serve: float
    before: int = Field(alias="from")
    """Replicas."""
    after: int = Field(alias="to")
    slices: int
    """Of each replica."""
    least: int
    most: int | None
    value: float

    @classmethod
    def of(cls, asked: Asked) -> Self:
        """Return the report of one Inference of the solver's input."""
        inference = asked.inference
        return cls.model_validate(
            {
                "inference": inference.key,
                "tier": inference.tier,
                "demand": asked.demand,
                "wanted": asked.wanted,
                "serves": asked.serves(asked.before),
                "wouldServe": asked.serves(asked.after),
                "from": asked.before,
                "to": asked.after,
                "slices": inference.placements[0].slices,
                "least": inference.bounds.floor,
                "most": inference.bounds.ceiling,
                "value": inference.value,
            }
        )


class PlanReport(Report):
    """One what-if question and its answer."""

    pool: str
    seen: datetime
    """The time of the allocator's input that the question changes."""
    question: WhatIf
    now: Predicted
    """The prediction for the present replicas at the demand of the question."""
    decision: AllocationDecisionSpec
    """The decision that the allocator would make."""
    slices: int
    """The allocatable slices."""
    budget: int | None
    """Slices that may still move within the budget's period; absent if there is no limit."""
    held: bool
    """Whether the pool is held, so that only moves that safety forces are allowed."""
    asked: tuple[AskedReport, ...]
    """The Inferences that the allocator decides about."""

    @classmethod
    def of(cls, answer: Answer, seen: datetime, question: WhatIf) -> Self:
        """Return the report of an answer."""
        return cls(
            pool=answer.decision.pool,
            seen=seen,
            question=question,
            now=answer.now,
            decision=answer.decision,
            slices=answer.pool.slices,
            budget=answer.pool.movable_slices,
            held=answer.pool.hold,
            asked=tuple(AskedReport.of(inference) for inference in answer.asked),
        )

    def lines(self, *, wide: bool) -> Iterator[str]:
        """Yield the decision; `wide` adds how the solver found it."""
        decision = self.decision
        yield f"ComputePool {self.pool}, as the allocator saw it at {timestamp(self.seen)}"
        if not decision.moves:
            yield _line("moves", "nothing: everybody has what they would be given")
        for move in decision.moves:
            yield _line("moves", _move(move))
        for spare in decision.spares:
            yield _line("spares", f"{spare.inference} {spare.replicas}")
        for binding in decision.binding:
            price = f", worth {binding.price:g} per second and unit" if binding.price else ""
            yield _line("binds", f"{binding.constraint}{price}")
        for rule in decision.not_kept:
            yield _line("not kept", f"{rule.rule} of {rule.subject}: {rule.message}")
        after = decision.predicted or Predicted()
        yield _line("value", f"{self.now.value:g} -> {after.value:g} per second")
        yield _line(
            "missed",
            f"{self.now.slo_misses:g} -> {after.slo_misses:g} real-time requests per second beyond the SLO",
        )
        yield _line("price", f"one more slice would earn {decision.price:g} per second")
        if wide:
            gap = "" if decision.gap is None else f", at most {decision.gap:.2%} from the best"
            note = f"; {decision.note}" if decision.note else ""
            yield _line("found", f"by {decision.solver} in {decision.seconds:g} s{gap}{note}")

    def names(self) -> Iterator[str]:
        """Yield the Inferences that would move."""
        return (named(Inference.KIND, move.inference.rpartition("/")[2]) for move in self.decision.moves)


def _move(move: DecidedMove) -> str:
    return f"{move.inference} ({move.tier}) {move.before} -> {move.after}: {move.why}"


def _line(what: str, said: str) -> str:
    return f"  {what:12}{said}"
