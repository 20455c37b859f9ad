"""Replicas for one component: the linear program rounded, whole numbers by HiGHS, or greedy; whichever is good enough first."""

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

_PROVEN = 3e-6
"""A gap that the tie-break alone explains."""
_SAME = 1e-6

Left = Callable[[], float]
"""Seconds of the time box that are left."""


class Decider:
    """Decides one component, tick after tick; the model stays warm."""

    def __init__(self) -> None:
        self._program: Program | None = None
        self._warm = WarmLinearProgram()

    def decide(self, component: Component, left: Left, gap: float) -> Decided:
        """The best answer that is proven to be within `gap`, or the best found when the time is over."""
        if left() <= 0:
            return decide_greedily(component, "out of time")
        if any(len(worth.spots) > 1 for worth in component.worths):
            # With models in several pools the optimum may be more than one point: start from nothing, so that it is the same one.
            self._program, self._warm = None, WarmLinearProgram()
        program = self._program = Program(component, self._program)
        relaxed: Relaxed | Outcome | None = self._linear(program, left)
        if relaxed is None:
            # What cannot all be had, as well.
            program = Program(component)
            relaxed = self._least_bad(program, left)
        if isinstance(relaxed, Outcome):
            return decide_greedily(component, _why_not(relaxed))
        return _Search(program, relaxed, gap, left).run()

    def _linear(self, program: Program, left: Left) -> Relaxed | None:
        """The linear program of the normal case. None: there is no answer, or not in time."""
        problem = program.problem
        if np.any(problem.low > problem.high):
            return None
        solved = self._warm.solve(problem, left())
        return Relaxed(solved, NOTHING) if solved.outcome is Outcome.OPTIMAL else None

    def _least_bad(self, program: Program, left: Left) -> Relaxed | Outcome:
        """The linear program of the relaxed case, or how HiGHS ended without one."""
        warm = WarmLinearProgram()
        return solve_relaxed(program, lambda problem: warm.solve(problem, left()))


def _why_not(outcome: Outcome) -> str:
    if outcome is Outcome.UNFINISHED:
        return "out of time"
    return f"HiGHS found no answer ({outcome}), which only its tolerances explain"


class _Search:
    """From the linear program's answer to whole replicas."""

    def __init__(self, program: Program, relaxed: Relaxed, gap: float, left: Left) -> None:
        self._program = program
        self._component = program.component
        self._relaxed = relaxed
        self._bound = relaxed.solved.objective + program.constant
        self._gap = max(gap, _PROVEN)
        self._left = left
        self._scores: dict[Counts, Score] = {}

    def run(self) -> Decided:
        replicas = self._program.replicas(self._relaxed.solved.x)
        counts = mended(self._component, replicas)
        if not self._good(counts):
            counts = self._better(counts, improve(self._component, counts))
        if self._good(counts):
            return self._decided(counts, Method.LINEAR)
        whole = self._integer()
        if whole is None:
            return self._decided(counts, Method.LINEAR, "out of time for whole replicas")
        found, solved = whole
        if solved.bound + self._program.constant < self._bound:
            self._bound = solved.bound + self._program.constant
        return self._decided(self._better(counts, found), Method.MILP)

    def _score(self, counts: Counts) -> Score:
        found = self._scores.get(counts)
        if found is None:
            found = self._scores[counts] = self._component.score(counts)
        return found

    def _good(self, counts: Counts) -> bool:
        if not self._component.fits(counts):
            return False
        score = self._score(counts)
        kept = all(
            missed <= least + _SAME * max(1.0, least)
            for missed, least in zip(score.missed, self._relaxed.missed, strict=True)
        )
        return kept and self._bound - score.value <= self._gap * max(abs(self._bound), _SAME)

    def _better(self, one: Counts, other: Counts) -> Counts:
        if not self._component.fits(one):
            return other
        return other if self._score(other).beats(self._score(one)) else one

    def _integer(self) -> tuple[Counts, Solved] | None:
        """None when HiGHS did not finish: half of its search would not be the same on another machine."""

        def solve(problem: Problem) -> Solved:
            return solve_integer(problem, self._left(), self._gap)

        if self._relaxed.missed == NOTHING:
            solved = solve(self._program.problem)
            if solved.outcome is Outcome.OPTIMAL:
                return self._whole(solved), solved
            if solved.outcome is Outcome.UNFINISHED:
                return None
        # In fractions every rule can be kept, in whole replicas perhaps not.
        relaxed = solve_relaxed(self._program, solve)
        return None if isinstance(relaxed, Outcome) else (self._whole(relaxed.solved), relaxed.solved)

    def _whole(self, solved: Solved) -> Counts:
        return cut(self._component, [round(count) for count in self._program.replicas(solved.x)])

    def _decided(self, counts: Counts, method: Method, note: str = "") -> Decided:
        score = self._score(counts)
        prices = from_duals(self._program, self._relaxed.solved)
        return Decided(counts, score, max(self._bound, score.value), method, prices, note)
