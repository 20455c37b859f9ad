"""Report AllocationDecisions: one of them, or many as a history."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Self

from tidegate.api.allocation_decision import (
    AllocationDecision,
    DecidedBinding,
    DecidedMove,
    DecisionTrigger,
    MeasuredValue,
    SolverMethod,
    UnmetRule,
)
from tidegate.api.compute_pool import PolicyMode
from tidegate.api.conditions import format_timestamp
from tidegate.api.meta import ApiModel
from tidegate.planning.allocator.decision import sort_newest_first
from tidegate.reports.report import Report, align_columns, format_name

_MAX_NAMED = 3


class OutcomeState(StrEnum):
    """The outcome of a decision."""

    CARRIED_OUT = "CarriedOut"
    ON_ITS_WAY = "OnItsWay"
    GIVEN_UP = "GivenUp"
    """`error` gives the reason, and `movedSlices` what was moved until then."""
    RECOMMENDED = "Recommended"
    """The pool's mode only recommends."""


class OutcomeReport(ApiModel):
    """The outcome of a decision, and its time."""

    state: OutcomeState
    applied_at: datetime | None
    reclaim_seconds: float | None
    moved_slices: int | None
    error: str


class DecisionReport(ApiModel):
    """One decision."""

    name: str
    pool: str
    at: datetime
    mode: PolicyMode
    trigger: DecisionTrigger | None
    moves: tuple[DecidedMove, ...]
    """At most a thousand; `move_count` counts all."""
    move_count: int
    binding: tuple[DecidedBinding, ...]
    not_kept: tuple[UnmetRule, ...]
    solver: SolverMethod
    gap: float | None
    value: MeasuredValue | None
    outcome: OutcomeReport

    @classmethod
    def from_decision(cls, decision: AllocationDecision) -> Self:
        """Return the report of a decision."""
        spec = decision.spec
        return cls(
            name=decision.metadata.name,
            pool=spec.pool,
            at=spec.at,
            mode=spec.mode,
            trigger=spec.trigger,
            moves=spec.moves,
            move_count=max(spec.move_count, len(spec.moves)),
            binding=spec.binding,
            not_kept=spec.not_kept,
            solver=spec.solver,
            gap=spec.gap,
            value=spec.value,
            outcome=_report_outcome(decision),
        )

    def find_move(self, inference: str) -> DecidedMove | None:
        """Return the decision's move of one Inference, by namespace/name; None if it has none."""
        return next((move for move in self.moves if move.inference == inference), None)

    def describe_outcome(self) -> str:
        """Return the outcome in a few words."""
        outcome = self.outcome
        if outcome.applied_at is not None:
            freed = (
                ""
                if outcome.reclaim_seconds is None
                else f", slices free after {outcome.reclaim_seconds:g} s"
            )
            return f"executed at {format_timestamp(outcome.applied_at)}{freed}"
        if outcome.state is OutcomeState.GIVEN_UP:
            moved = "" if outcome.moved_slices is None else f" after {outcome.moved_slices} slices"
            return f"given up{moved}: {outcome.error}"
        return "recommended" if outcome.state is OutcomeState.RECOMMENDED else "on its way"


class HistoryReport(Report):
    """Decisions, the newest first."""

    about: str
    """The subject: a ComputePool, an Inference, a namespace, or all."""
    inference: str | None
    """If present, the list has only decisions that move this Inference."""
    decisions: tuple[DecisionReport, ...]

    def render_lines(self, *, wide: bool) -> Iterator[str]:
        """Yield one row per decision; `wide` adds its name and how the solver found it."""
        if not self.decisions:
            yield f"no decision about {self.about}"
            return
        head = ["AT", "POOL", "MODE", "TRIGGER", "MOVES", "BINDING", "OUTCOME"]
        rows = [[*head, "SOLVER", "GAP", "VALUE/S", "DECISION"] if wide else head]
        rows += [_render_row(decision, self.inference, wide=wide) for decision in self.decisions]
        yield from align_columns(rows)

    def object_names(self) -> Iterator[str]:
        """Yield the decisions' names."""
        return (format_name(AllocationDecision.KIND, decision.name) for decision in self.decisions)


def select_decisions(
    decisions: Iterable[AllocationDecision],
    *,
    pool: str | None = None,
    inference: str | None = None,
    namespace: str | None = None,
    moving: Collection[str] | None = None,
) -> Sequence[AllocationDecision]:
    """Return the decisions about a pool, an Inference or a namespace, or all; the newest first.

    With `moving`, only those that move one of these Inferences, as namespace/name.
    """

    def matches(decision: AllocationDecision) -> bool:
        movers = [move.inference for move in decision.spec.moves]
        return (
            (pool is None or decision.spec.pool == pool)
            and (inference is None or inference in movers)
            and (namespace is None or any(mover.startswith(f"{namespace}/") for mover in movers))
            and (moving is None or any(mover in moving for mover in movers))
        )

    return [decision for decision in sort_newest_first(decisions) if matches(decision)]


def report_history(
    decisions: Iterable[AllocationDecision],
    about: str,
    *,
    pool: str | None = None,
    inference: str | None = None,
    namespace: str | None = None,
    moving: Collection[str] | None = None,
) -> HistoryReport:
    """Report the decisions about a pool, an Inference, a namespace or several Inferences, or all."""
    matching = select_decisions(decisions, pool=pool, inference=inference, namespace=namespace, moving=moving)
    return HistoryReport(
        about=about, inference=inference, decisions=tuple(map(DecisionReport.from_decision, matching))
    )


def _render_row(decision: DecisionReport, inference: str | None, *, wide: bool) -> list[str]:
    moves = [move for move in decision.moves if inference is None or move.inference == inference]
    count = decision.move_count if inference is None else len(moves)
    row = [
        format_timestamp(decision.at),
        decision.pool,
        decision.mode.value,
        decision.trigger.value if decision.trigger is not None else "-",
        _render_moves(moves, count),
        decision.binding[0].constraint if decision.binding else "-",
        decision.describe_outcome(),
    ]
    if wide:
        gap = "-" if decision.gap is None else f"{decision.gap:.2%}"
        row += [decision.solver.value, gap, _render_value(decision.value), decision.name]
    return row


def _render_value(value: MeasuredValue | None) -> str:
    """Return the value per second that was served, of what was offered."""
    return "-" if value is None else f"{value.served:.4g} of {value.offered:.4g}"


def _render_moves(moves: Sequence[DecidedMove], count: int) -> str:
    shown = moves[:_MAX_NAMED]
    text = ", ".join(f"{move.inference} {move.before}->{move.after}" for move in shown)
    return f"{text} and {count - len(shown)} more" if count > len(shown) else text or "-"


def _report_outcome(decision: AllocationDecision) -> OutcomeReport:
    outcome = decision.status.outcome
    applied_at = outcome.applied_at if outcome is not None else None
    error = outcome.error if outcome is not None else ""
    state = OutcomeState.ON_ITS_WAY if decision.should_execute else OutcomeState.RECOMMENDED
    if applied_at is not None:
        state = OutcomeState.CARRIED_OUT
    elif error:
        state = OutcomeState.GIVEN_UP
    return OutcomeReport(
        state=state,
        applied_at=applied_at,
        reclaim_seconds=outcome.reclaim_seconds if outcome is not None else None,
        moved_slices=outcome.moved_slices if outcome is not None else None,
        error=error,
    )
