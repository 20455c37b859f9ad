"""Relaxed problem for rules that cannot all be kept: minimise each priority's violation, then maximise value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from tidegate.allocation.highs import Outcome, Solved
from tidegate.allocation.program import FREE, LevelRow, Problem, Program

_SLACKS = (1e-8, 1e-6)
"""Amounts by which a violation may exceed its minimum: solvers answer to a tolerance."""

Solve = Callable[[Problem], Solved]


@dataclass(frozen=True, slots=True)
class Relaxed:
    """Solution of a relaxed problem, and the least violation of each priority."""

    solved: Solved
    missed: tuple[float, ...]


def solve_relaxed(program: Program, solve: Solve) -> Relaxed | Outcome:
    """Minimise each priority's violation, the highest first, then maximise the value; else return how `solve` ended.

    Every rule but capacity may be violated, so there is an answer. Where the solver finds none, its tolerance is the cause,
    and a wider slack is tried.
    """
    result: Relaxed | Outcome = Outcome.INFEASIBLE
    for slack in _SLACKS:
        result = _solve_relaxed(program, solve, slack)
        if result is not Outcome.INFEASIBLE:
            return result
    return result


def _solve_relaxed(program: Program, solve: Solve, slack: float) -> Relaxed | Outcome:
    rows = program.levels()
    problem = _with_rows(program.relaxed(), rows)
    value = problem.gain
    first = len(program.problem.row_low)
    violations: list[float] = []
    solution: Solved | None = None
    for number, row in enumerate(rows):
        if not len(row.columns):
            violations.append(row.constant)
            continue
        if solution is None or row.missed(solution.x) > slack:
            solution = solve(replace(problem, gain=_towards(row, len(value))))
            if solution.outcome is not Outcome.OPTIMAL:
                return solution.outcome
        minimum = max(row.missed(solution.x), 0.0)
        violations.append(minimum)
        high = problem.row_high.copy()
        high[first + number] = minimum + slack * max(1.0, minimum) - row.constant
        problem = replace(problem, row_high=high)
    solution = solve(replace(problem, gain=value))
    return Relaxed(solution, tuple(violations)) if solution.outcome is Outcome.OPTIMAL else solution.outcome


def _with_rows(problem: Problem, priority_rows: list[LevelRow]) -> Problem:
    first = len(problem.row_low)
    return replace(
        problem,
        row_low=np.concatenate([problem.row_low, np.full(len(priority_rows), -FREE)]),
        row_high=np.concatenate([problem.row_high, np.full(len(priority_rows), FREE)]),
        rows=np.concatenate(
            [
                problem.rows,
                *(
                    np.full(len(row.columns), first + number, np.int32)
                    for number, row in enumerate(priority_rows)
                ),
            ]
        ),
        columns=np.concatenate([problem.columns, *(row.columns for row in priority_rows)]),
        values=np.concatenate([problem.values, *(row.coefficients for row in priority_rows)]),
    )


def _towards(row: LevelRow, columns: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    gain = np.zeros(columns)
    gain[row.columns] = -row.coefficients
    return gain
