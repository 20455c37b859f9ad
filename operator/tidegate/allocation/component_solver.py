"""Solver of one component: the rounded linear program, whole replicas by HiGHS, or the greedy answer.

The first of them that is good enough is used.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tidegate.allocation.assignment import SolveMethod
from tidegate.allocation.component import Component, Counts, Score
from tidegate.allocation.component_decision import ComponentDecision, decide_greedily
from tidegate.allocation.duals import prices_from_duals
from tidegate.allocation.greedy import improve_counts
from tidegate.allocation.highs import Solution, SolveOutcome, WarmLinearProgram, solve_integer
from tidegate.allocation.prices import prices_from_margins
from tidegate.allocation.program import LinearProblem, LinearProgram
from tidegate.allocation.relaxation import RelaxedSolution, solve_relaxed
from tidegate.allocation.rounding import round_and_repair, round_down
from tidegate.allocation.utility import NO_VIOLATIONS

_MIN_GAP = 3e-6
"""Gap that the tie-break alone explains."""
_TOLERANCE = 1e-6

RemainingTime = Callable[[], float]
"""Clock that returns the remaining seconds of the time box."""


class ComponentSolver:
    """Solver of one component, tick after tick; its linear program stays warm."""

    def __init__(self) -> None:
        self._program: LinearProgram | None = None
        self._warm = WarmLinearProgram()

    def solve_component(
        self, component: Component, remaining_s: RemainingTime, gap: float
    ) -> ComponentDecision:
        """Return an answer proven to be within `gap`, or the best one when the time box ends."""
        if remaining_s() <= 0:
            return decide_greedily(component, "out of time")
        if any(len(utility.options) > 1 for utility in component.utilities):
            # With models in several pools the optimum may not be unique: start cold, so that history cannot choose among them.
            self._program, self._warm = None, WarmLinearProgram()
        program = self._program = LinearProgram(component, self._program)
        relaxed: RelaxedSolution | SolveOutcome | None = self._solve_normal(program, remaining_s)
        if relaxed is None:
            # Not all rules can be kept: solve the relaxed problem.
            program = LinearProgram(component)
            relaxed = self._solve_relaxed(program, remaining_s)
        if isinstance(relaxed, SolveOutcome):
            return decide_greedily(component, _explain_failure(relaxed))
        return _IntegerSearch(program, relaxed, gap, remaining_s).run()

    def _solve_normal(self, program: LinearProgram, remaining_s: RemainingTime) -> RelaxedSolution | None:
        """Solve the linear program of the normal problem; return None when it is infeasible or the time is over."""
        problem = program.problem
        if np.any(problem.low > problem.high):
            return None
        solution = self._warm.solve(problem, remaining_s())
        return RelaxedSolution(solution, NO_VIOLATIONS) if solution.outcome is SolveOutcome.OPTIMAL else None

    def _solve_relaxed(
        self, program: LinearProgram, remaining_s: RemainingTime
    ) -> RelaxedSolution | SolveOutcome:
        """Solve the linear program of the relaxed problem, or return how HiGHS ended without an answer."""
        warm = WarmLinearProgram()
        return solve_relaxed(program, lambda problem: warm.solve(problem, remaining_s()))


def _explain_failure(outcome: SolveOutcome) -> str:
    if outcome is SolveOutcome.UNFINISHED:
        return "out of time"
    return f"HiGHS found no answer ({outcome}), which only its tolerances explain"


class _IntegerSearch:
    """Search for whole replicas from the linear program's answer."""

    def __init__(
        self, program: LinearProgram, relaxed: RelaxedSolution, gap: float, remaining_s: RemainingTime
    ) -> None:
        self._program = program
        self._component = program.component
        self._relaxed = relaxed
        self._bound = relaxed.solution.objective + program.constant
        self._gap = max(gap, _MIN_GAP)
        self._remaining_s = remaining_s
        self._scores: dict[Counts, Score] = {}

    def run(self) -> ComponentDecision:
        """Return the rounded answer when it is good enough, else the best of it and the integer program's."""
        replicas = self._program.extract_replicas(self._relaxed.solution.x)
        counts = round_and_repair(self._component, replicas)
        if not self._is_good_enough(counts):
            counts = self._choose_better(counts, improve_counts(self._component, counts))
        if self._is_good_enough(counts):
            return self._make_decision(counts, SolveMethod.LINEAR)
        result = self._solve_integer()
        if result is None:
            return self._make_decision(counts, SolveMethod.LINEAR, "out of time for whole replicas")
        integer, solution = result
        if solution.bound + self._program.constant < self._bound:
            self._bound = solution.bound + self._program.constant
        return self._make_decision(self._choose_better(counts, integer), SolveMethod.MILP)

    def _score_counts(self, counts: Counts) -> Score:
        score = self._scores.get(counts)
        if score is None:
            score = self._scores[counts] = self._component.score_counts(counts)
        return score

    def _is_good_enough(self, counts: Counts) -> bool:
        """Return whether `counts` fit, keep every rule as well as the relaxation, and are within the gap."""
        if not self._component.fits_capacity(counts):
            return False
        score = self._score_counts(counts)
        keeps_rules = all(
            violation <= minimum + _TOLERANCE * max(1.0, minimum)
            for violation, minimum in zip(score.violations, self._relaxed.violations, strict=True)
        )
        return keeps_rules and self._bound - score.value <= self._gap * max(abs(self._bound), _TOLERANCE)

    def _choose_better(self, counts: Counts, other: Counts) -> Counts:
        if not self._component.fits_capacity(counts):
            return other
        return other if self._score_counts(other).is_better_than(self._score_counts(counts)) else counts

    def _solve_integer(self) -> tuple[Counts, Solution] | None:
        """Solve the integer program; return None when HiGHS did not finish.

        An unfinished search is not used, because another machine would get to another point.
        """

        def solve(problem: LinearProblem) -> Solution:
            return solve_integer(problem, self._remaining_s(), self._gap)

        if self._relaxed.violations == NO_VIOLATIONS:
            solution = solve(self._program.problem)
            if solution.outcome is SolveOutcome.OPTIMAL:
                return self._to_counts(solution), solution
            if solution.outcome is SolveOutcome.UNFINISHED:
                return None
        # In fractions every rule can be kept, in whole replicas perhaps not.
        relaxed = solve_relaxed(self._program, solve)
        return (
            None
            if isinstance(relaxed, SolveOutcome)
            else (self._to_counts(relaxed.solution), relaxed.solution)
        )

    def _to_counts(self, solution: Solution) -> Counts:
        return round_down(
            self._component, [round(count) for count in self._program.extract_replicas(solution.x)]
        )

    def _make_decision(self, counts: Counts, method: SolveMethod, note: str = "") -> ComponentDecision:
        score = self._score_counts(counts)
        # Where rules are relaxed, the duals say what relaxing one of them further would earn, which is anything.
        prices = (
            prices_from_duals(self._program, self._relaxed.solution)
            if self._relaxed.violations == NO_VIOLATIONS
            else prices_from_margins(self._component, counts)
        )
        return ComponentDecision(counts, score, max(self._bound, score.value), method, prices, note)
