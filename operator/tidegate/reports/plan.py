"""What the allocator would do if something were otherwise, in the shape of its decisions."""

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
    """One Inference in the question."""

    inference: str
    tier: Tier
    demand: float | None
    """Requests per second, offline: slices; absent where nobody knows."""
    wanted: int | None
    """Slices that would serve it."""
    serves: float
    """Requests per second that the replicas which are there serve within the SLO."""
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
        """What is asked of an Inference."""
        one = asked.inference
        return cls.model_validate(
            {
                "inference": one.key,
                "tier": one.tier,
                "demand": asked.demand,
                "wanted": asked.wanted,
                "serves": asked.serves(asked.before),
                "wouldServe": asked.serves(asked.after),
                "from": asked.before,
                "to": asked.after,
                "slices": one.placements[0].slices,
                "least": one.bounds.floor,
                "most": one.bounds.ceiling,
                "value": one.value,
            }
        )


class PlanReport(Report):
    """One question and its answer."""

    pool: str
    seen: datetime
    """When the allocator saw what the question begins with."""
    question: WhatIf
    now: Predicted
    """What those replicas serve that are there, by the demand of the question."""
    decision: AllocationDecisionSpec
    """What would be decided."""
    slices: int
    """Slices that were to be shared out."""
    budget: int | None
    """Slices that may still change hands in this while; absent: no limit."""
    held: bool
    """Whether only what safety forces may move."""
    asked: tuple[AskedReport, ...]
    """Everybody who is decided about."""

    @classmethod
    def of(cls, answer: Answer, seen: datetime, question: WhatIf) -> Self:
        """What was found."""
        return cls(
            pool=answer.decision.pool,
            seen=seen,
            question=question,
            now=answer.now,
            decision=answer.decision,
            slices=answer.pool.slices,
            budget=answer.pool.movable_slices,
            held=answer.pool.hold,
            asked=tuple(AskedReport.of(each) for each in answer.asked),
        )

    def lines(self, *, wide: bool) -> Iterator[str]:
        """`wide` has how it was found as well."""
        decision = self.decision
        yield f"ComputePool {self.pool}, as the allocator saw it at {timestamp(self.seen)}"
        if not decision.moves:
            yield _line("moves", "nothing: everybody has what they would be given")
        for move in decision.moves:
            yield _line("moves", _move(move))
        for spare in decision.spares:
            yield _line("spares", f"{spare.inference} {spare.replicas}")
        for each in decision.binding:
            price = f", worth {each.price:g} per second and unit" if each.price else ""
            yield _line("binds", f"{each.constraint}{price}")
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
        """The Inferences that would move."""
        return (named(Inference.KIND, move.inference.rpartition("/")[2]) for move in self.decision.moves)


def _move(move: DecidedMove) -> str:
    return f"{move.inference} ({move.tier}) {move.before} -> {move.after}: {move.why}"


def _line(what: str, said: str) -> str:
    return f"  {what:12}{said}"
