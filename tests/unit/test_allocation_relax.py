"""What the least bad answer says when HiGHS does not give it."""

from __future__ import annotations

import numpy as np
import pytest

from builders.allocation import a_model, a_pool, a_snapshot
from tidegate.allocation.component import components
from tidegate.allocation.decide import Decider
from tidegate.allocation.highs import Outcome, Solved, WarmLinearProgram
from tidegate.allocation.program import Problem, Program
from tidegate.allocation.relax import Relaxed, solve_relaxed
from tidegate.allocation.snapshot import Bounds

[SHORT] = components(a_snapshot(a_pool(slices=2), a_model(bounds=Bounds(3))))


def failed(outcome: Outcome) -> Solved:
    nothing = np.zeros(0)
    return Solved(outcome, nothing, 0.0, 0.0, nothing, nothing)


def test_one_that_is_infeasible_by_its_tolerance_is_tried_with_a_wider_slack() -> None:
    warm, answers = WarmLinearProgram(), [failed(Outcome.INFEASIBLE)]
    found = solve_relaxed(
        Program(SHORT), lambda problem: answers.pop() if answers else warm.solve(problem, 9.0)
    )
    assert isinstance(found, Relaxed)
    assert found.missed[0] > 0


@pytest.mark.parametrize(
    ("outcome", "note"),
    [
        (Outcome.INFEASIBLE, "HiGHS found no answer (Infeasible), which only its tolerances explain"),
        (Outcome.UNFINISHED, "out of time"),
    ],
)
def test_a_numerical_failure_is_not_called_out_of_time(
    outcome: Outcome, note: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def solve(self: WarmLinearProgram, problem: Problem, seconds: float) -> Solved:
        return failed(outcome)

    monkeypatch.setattr(WarmLinearProgram, "solve", solve)
    assert Decider().decide(SHORT, lambda: 9.0, 1e-3).note == note
