"""Relaxed problem for rules that cannot all be kept: minimise each priority's violation, then maximise value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from tidegate.allocation.highs import Solution, SolveOutcome
from tidegate.allocation.program import UNBOUNDED, LinearProblem, LinearProgram, PriorityRow

_SLACKS = (1e-8, 1e-6)
"""Amounts by which a violation may exceed its minimum: solvers answer to a tolerance."""

SolveProblem = Callable[[LinearProblem], Solution]


@dataclass(frozen=True, slots=True)
class RelaxedSolution:
    """Solution of a relaxed problem, and the least violation of each priority."""

    solution: Solution
    violations: tuple[float, ...]


def solve_relaxed(program: LinearProgram, solve: SolveProblem) -> RelaxedSolution | SolveOutcome:
    """Minimise each priority's violation, the highest first, then maximise the value; else return how `solve` ended.

    Every rule but capacity may be violated, so there is an answer. Where the solver finds none, its tolerance is the cause,
    and a wider slack is tried.
    """
    result: RelaxedSolution | SolveOutcome = SolveOutcome.INFEASIBLE
    for slack in _SLACKS:
        result = _solve_with_slack(program, solve, slack)
        if result is not SolveOutcome.INFEASIBLE:
            return result
    return result


def _solve_with_slack(
    program: LinearProgram, solve: SolveProblem, slack: float
) -> RelaxedSolution | SolveOutcome:
    rows = program.make_priority_rows()
    problem = _add_priority_rows(program.make_relaxed_problem(), rows)
    value = problem.gain
    first = len(program.problem.row_low)
    violations: list[float] = []
    solution: Solution | None = None
    for number, row in enumerate(rows):
        if not len(row.columns):
            violations.append(row.constant)
            continue
        if solution is None or row.violation_at(solution.x) > slack:
            solution = solve(replace(problem, gain=_objective_for(row, len(value))))
            if solution.outcome is not SolveOutcome.OPTIMAL:
                return solution.outcome
        minimum = max(row.violation_at(solution.x), 0.0)
        violations.append(minimum)
        high = problem.row_high.copy()
        high[first + number] = minimum + slack * max(1.0, minimum) - row.constant
        problem = replace(problem, row_high=high)
    solution = solve(replace(problem, gain=value))
    return (
        RelaxedSolution(solution, tuple(violations))
        if solution.outcome is SolveOutcome.OPTIMAL
        else solution.outcome
    )


def _add_priority_rows(problem: LinearProblem, priority_rows: list[PriorityRow]) -> LinearProblem:
    first = len(problem.row_low)
    return replace(
        problem,
        row_low=np.concatenate([problem.row_low, np.full(len(priority_rows), -UNBOUNDED)]),
        row_high=np.concatenate([problem.row_high, np.full(len(priority_rows), UNBOUNDED)]),
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


def _objective_for(row: PriorityRow, columns: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    gain = np.zeros(columns)
    gain[row.columns] = -row.coefficients
    return gain
