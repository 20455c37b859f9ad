"""What the least bad answer says when HiGHS does not give it."""

from __future__ import annotations

import numpy as np
import pytest

from builders.allocation import a_model, a_pool, a_snapshot
from tidegate.allocation.component import split_components
from tidegate.allocation.component_solver import ComponentSolver
from tidegate.allocation.highs import Solution, SolveOutcome, WarmLinearProgram
from tidegate.allocation.program import LinearProblem, LinearProgram
from tidegate.allocation.relaxation import RelaxedSolution, solve_relaxed
from tidegate.allocation.snapshot import ReplicaBounds

[SHORT] = split_components(a_snapshot(a_pool(slices=2), a_model(bounds=ReplicaBounds(3))))


def failed(outcome: SolveOutcome) -> Solution:
    nothing = np.zeros(0)
    return Solution(outcome, nothing, 0.0, 0.0, nothing, nothing)


def test_one_that_is_infeasible_by_its_tolerance_is_tried_with_a_wider_slack() -> None:
    warm, answers = WarmLinearProgram(), [failed(SolveOutcome.INFEASIBLE)]
    found = solve_relaxed(
        LinearProgram(SHORT), lambda problem: answers.pop() if answers else warm.solve(problem, 9.0)
    )
    assert isinstance(found, RelaxedSolution)
    assert found.violations[0] > 0


@pytest.mark.parametrize(
    ("outcome", "note"),
    [
        (SolveOutcome.INFEASIBLE, "HiGHS found no answer (Infeasible), which only its tolerances explain"),
        (SolveOutcome.UNFINISHED, "out of time"),
    ],
)
def test_a_numerical_failure_is_not_called_out_of_time(
    outcome: SolveOutcome, note: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def solve(self: WarmLinearProgram, problem: LinearProblem, seconds: float) -> Solution:
        return failed(outcome)

    monkeypatch.setattr(WarmLinearProgram, "solve", solve)
    assert ComponentSolver().solve_component(SHORT, lambda: 9.0, 1e-3).note == note
