"""Solver of one component: the rounded linear program, whole replicas by HiGHS, or the greedy answer.

The first of them that is good enough is used.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tidegate.allocation.assignment import Method
from tidegate.allocation.component import Component, Counts, Score
from tidegate.allocation.decided import Decided, decide_greedily
from tidegate.allocation.duals import from_duals
from tidegate.allocation.greedy import improve
from tidegate.allocation.highs import Outcome, Solved, WarmLinearProgram, solve_integer
from tidegate.allocation.program import Problem, Program
from tidegate.allocation.relax import Relaxed, solve_relaxed
from tidegate.allocation.rounding import cut, mended
from tidegate.allocation.worth import NOTHING

_MIN_GAP = 3e-6
"""Gap that the tie-break alone explains."""
_TOLERANCE = 1e-6

Left = Callable[[], float]
"""Clock that returns the remaining seconds of the time box."""


class Decider:
    """Solver of one component, tick after tick; its linear program stays warm."""

    def __init__(self) -> None:
        self._program: Program | None = None
        self._warm = WarmLinearProgram()

    def decide(self, component: Component, remaining_s: Left, gap: float) -> Decided:
        """Return an answer proven to be within `gap`, or the best one when the time box ends."""
        if remaining_s() <= 0:
            return decide_greedily(component, "out of time")
        if any(len(utility.spots) > 1 for utility in component.worths):
            # With models in several pools the optimum may not be unique: start cold, so that history cannot choose among them.
            self._program, self._warm = None, WarmLinearProgram()
        program = self._program = Program(component, self._program)
        relaxed: Relaxed | Outcome | None = self._linear(program, remaining_s)
        if relaxed is None:
            # Not all rules can be kept: solve the relaxed problem.
            program = Program(component)
            relaxed = self._least_bad(program, remaining_s)
        if isinstance(relaxed, Outcome):
            return decide_greedily(component, _why_not(relaxed))
        return _Search(program, relaxed, gap, remaining_s).run()

    def _linear(self, program: Program, remaining_s: Left) -> Relaxed | None:
        """Solve the linear program of the normal problem; return None when it is infeasible or the time is over."""
        problem = program.problem
        if np.any(problem.low > problem.high):
            return None
        solution = self._warm.solve(problem, remaining_s())
        return Relaxed(solution, NOTHING) if solution.outcome is Outcome.OPTIMAL else None

    def _least_bad(self, program: Program, remaining_s: Left) -> Relaxed | Outcome:
        """Solve the linear program of the relaxed problem, or return how HiGHS ended without an answer."""
        warm = WarmLinearProgram()
        return solve_relaxed(program, lambda problem: warm.solve(problem, remaining_s()))


def _why_not(outcome: Outcome) -> str:
    if outcome is Outcome.UNFINISHED:
        return "out of time"
    return f"HiGHS found no answer ({outcome}), which only its tolerances explain"


class _Search:
    """Search for whole replicas from the linear program's answer."""

    def __init__(self, program: Program, relaxed: Relaxed, gap: float, remaining_s: Left) -> None:
        self._program = program
        self._component = program.component
        self._relaxed = relaxed
        self._bound = relaxed.solved.objective + program.constant
        self._gap = max(gap, _MIN_GAP)
        self._remaining_s = remaining_s
        self._scores: dict[Counts, Score] = {}

    def run(self) -> Decided:
        """Return the rounded answer when it is good enough, else the best of it and the integer program's."""
        replicas = self._program.replicas(self._relaxed.solved.x)
        counts = mended(self._component, replicas)
        if not self._good(counts):
            counts = self._better(counts, improve(self._component, counts))
        if self._good(counts):
            return self._decided(counts, Method.LINEAR)
        result = self._integer()
        if result is None:
            return self._decided(counts, Method.LINEAR, "out of time for whole replicas")
        integer, solution = result
        if solution.bound + self._program.constant < self._bound:
            self._bound = solution.bound + self._program.constant
        return self._decided(self._better(counts, integer), Method.MILP)

    def _score(self, counts: Counts) -> Score:
        score = self._scores.get(counts)
        if score is None:
            score = self._scores[counts] = self._component.score(counts)
        return score

    def _good(self, counts: Counts) -> bool:
        """Return whether `counts` fit, keep every rule as well as the relaxation, and are within the gap."""
        if not self._component.fits(counts):
            return False
        score = self._score(counts)
        keeps_rules = all(
            violation <= minimum + _TOLERANCE * max(1.0, minimum)
            for violation, minimum in zip(score.missed, self._relaxed.missed, strict=True)
        )
        return keeps_rules and self._bound - score.value <= self._gap * max(abs(self._bound), _TOLERANCE)

    def _better(self, counts: Counts, other: Counts) -> Counts:
        if not self._component.fits(counts):
            return other
        return other if self._score(other).beats(self._score(counts)) else counts

    def _integer(self) -> tuple[Counts, Solved] | None:
        """Solve the integer program; return None when HiGHS did not finish.

        An unfinished search is not used, because another machine would get to another point.
        """

        def solve(problem: Problem) -> Solved:
            return solve_integer(problem, self._remaining_s(), self._gap)

        if self._relaxed.missed == NOTHING:
            solution = solve(self._program.problem)
            if solution.outcome is Outcome.OPTIMAL:
                return self._whole(solution), solution
            if solution.outcome is Outcome.UNFINISHED:
                return None
        # In fractions every rule can be kept, in whole replicas perhaps not.
        relaxed = solve_relaxed(self._program, solve)
        return None if isinstance(relaxed, Outcome) else (self._whole(relaxed.solved), relaxed.solved)

    def _whole(self, solution: Solved) -> Counts:
        return cut(self._component, [round(count) for count in self._program.replicas(solution.x)])

    def _decided(self, counts: Counts, method: Method, note: str = "") -> Decided:
        score = self._score(counts)
        prices = from_duals(self._program, self._relaxed.solved)
        return Decided(counts, score, max(self._bound, score.value), method, prices, note)
