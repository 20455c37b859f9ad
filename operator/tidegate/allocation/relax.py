"""The least bad answer where not everything can be had: each level misses as little as it can, in order, then comes value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from tidegate.allocation.highs import Outcome, Solved
from tidegate.allocation.program import FREE, LevelRow, Problem, Program

_SLACKS = (1e-8, 1e-6)
"""What a level may miss more than the least possible: solvers answer to a tolerance."""

Solve = Callable[[Problem], Solved]


@dataclass(frozen=True, slots=True)
class Relaxed:
    """The answer, and what each level misses at least."""

    solved: Solved
    missed: tuple[float, ...]


def solve_relaxed(program: Program, solve: Solve) -> Relaxed | Outcome:
    """Minimises what each level misses, the worst first, and then maximises value; else how `solve` ended, other than well.

    Everything but capacity may be missed, so there is an answer. Where the solver finds none, its tolerance is to blame: once
    more with a wider slack.
    """
    found: Relaxed | Outcome = Outcome.INFEASIBLE
    for slack in _SLACKS:
        found = _solve_relaxed(program, solve, slack)
        if found is not Outcome.INFEASIBLE:
            return found
    return found


def _solve_relaxed(program: Program, solve: Solve, slack: float) -> Relaxed | Outcome:
    levels = program.levels()
    problem = _with_rows(program.relaxed(), levels)
    value = problem.gain
    first = len(program.problem.row_low)
    missed: list[float] = []
    solved: Solved | None = None
    for number, level in enumerate(levels):
        if not len(level.columns):
            missed.append(level.constant)
            continue
        if solved is None or level.missed(solved.x) > slack:
            solved = solve(replace(problem, gain=_towards(level, len(value))))
            if solved.outcome is not Outcome.OPTIMAL:
                return solved.outcome
        least = max(level.missed(solved.x), 0.0)
        missed.append(least)
        high = problem.row_high.copy()
        high[first + number] = least + slack * max(1.0, least) - level.constant
        problem = replace(problem, row_high=high)
    solved = solve(replace(problem, gain=value))
    return Relaxed(solved, tuple(missed)) if solved.outcome is Outcome.OPTIMAL else solved.outcome


def _with_rows(problem: Problem, levels: list[LevelRow]) -> Problem:
    first = len(problem.row_low)
    return replace(
        problem,
        row_low=np.concatenate([problem.row_low, np.full(len(levels), -FREE)]),
        row_high=np.concatenate([problem.row_high, np.full(len(levels), FREE)]),
        rows=np.concatenate(
            [
                problem.rows,
                *(np.full(len(each.columns), first + i, np.int32) for i, each in enumerate(levels)),
            ]
        ),
        columns=np.concatenate([problem.columns, *(each.columns for each in levels)]),
        values=np.concatenate([problem.values, *(each.coefficients for each in levels)]),
    )


def _towards(level: LevelRow, columns: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    gain = np.zeros(columns)
    gain[level.columns] = -level.coefficients
    return gain
