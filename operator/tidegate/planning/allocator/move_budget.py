"""Compute how many slices of a pool the next decision may move: the planner and the dashboard use the same number."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from math import ceil

from tidegate.api.allocation_decision import AllocationDecision
from tidegate.api.compute_pool import ComputePool
from tidegate.api.durations import parse_duration


@dataclass(frozen=True, slots=True)
class RemainingBudget:
    """Slices of a pool that may move, by its `spec.policy.moves`."""

    total: int
    """Slices that may move within `per`."""
    remaining: int
    """Slices that the next decision may move."""
    per: str


def find_current_decision(
    pool: ComputePool, decisions: Sequence[AllocationDecision]
) -> AllocationDecision | None:
    """Return the newest of a pool's decisions, `decisions[0]`, if it still waits to be executed or taken up."""
    newest = next(iter(decisions), None)
    if (
        newest is None
        or newest.is_finished
        or newest.should_execute != pool.spec.policy.mode.executes_decisions
    ):
        return None
    return newest


def compute_move_budget(
    pool: ComputePool, healthy: int, decisions: Sequence[AllocationDecision], now: datetime
) -> RemainingBudget | None:
    """Return the budget of a pool with `healthy` slices; None where its policy sets no limit.

    `decisions` are the pool's, the newest first.
    """
    moves = pool.spec.policy.moves
    if moves is None:
        return None
    since, current = now - parse_duration(moves.per), find_current_decision(pool, decisions)
    moved = sum(
        decision.moved_slices
        for decision in decisions
        # The allocator decides again about the moves of the current decision: they are not spent until it has finished.
        if decision.should_execute and decision.spec.at >= since and decision is not current
    )
    total = ceil(healthy * moves.max_percent / 100)
    return RemainingBudget(total, max(total - moved, 0), moves.per)
