"""HiGHS with one thread and a fixed seed: a linear program that stays warm, and a mixed-integer one."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import highspy
import numpy as np

from tidegate.allocation.program import Floats, LinearProblem

_TOLERANCE: Final = 1e-9
_MAX_NODES: Final = 20_000
"""Limit of the search that is the same on every machine; in most cases it ends before the time box."""


class SolveOutcome(StrEnum):
    """Way in which a solve ended."""

    OPTIMAL = "Optimal"
    INFEASIBLE = "Infeasible"
    UNFINISHED = "Unfinished"


@dataclass(slots=True)
class Solution:
    """Result of one solve; the arrays are filled when the outcome is Optimal.

    `row_prices`, by row, is what one more unit of the row's bound earns. `reduced_gains`, by column, is the gain of one more
    unit of the column, less what the rows it takes from would have earned.
    """

    outcome: SolveOutcome
    x: Floats
    objective: float
    bound: float
    row_prices: Floats
    reduced_gains: Floats


class WarmLinearProgram:
    """Linear programs of one layout, each solved from the basis of the one before.

    Without presolve, which takes time by the square of the columns of a pool (7.6 s for 4,000 models, whose program is
    then solved in 0.02 s).
    """

    def __init__(self) -> None:
        self._highs = _make_highs()
        self._highs.setOptionValue("presolve", "off")
        self._previous: LinearProblem | None = None
        self._scale = 1.0

    def solve(self, problem: LinearProblem, seconds: float) -> Solution:
        """Solve the linear relaxation of `problem` in at most `seconds`."""
        scale = _choose_scale(problem.gain)
        if self._previous is None or not _has_same_structure(self._previous, problem):
            self._highs.passModel(_build_model(problem, scale, integer=False))
        else:
            self._update_model(self._previous, problem, scale)
        self._previous = problem
        return _run_highs(self._highs, seconds, scale)

    def _update_model(self, previous: LinearProblem, problem: LinearProblem, scale: float) -> None:
        """Pass only the values that differ from the previous problem's."""
        columns = np.arange(len(problem.gain), dtype=np.int32)
        self._highs.changeColsCost(len(columns), columns, -problem.gain / scale)
        self._highs.changeColsBounds(len(columns), columns, problem.low, problem.high)
        for row in np.flatnonzero(
            (previous.row_low != problem.row_low) | (previous.row_high != problem.row_high)
        ):
            self._highs.changeRowBounds(int(row), float(problem.row_low[row]), float(problem.row_high[row]))
        for entry in np.flatnonzero(previous.values != problem.values):
            self._highs.changeCoeff(
                int(problem.rows[entry]), int(problem.columns[entry]), float(problem.values[entry])
            )


def solve_integer(problem: LinearProblem, seconds: float, gap: float) -> Solution:
    """Solve for whole replicas, proven to be within the relative `gap` of the optimum.

    Each call starts cold, so that history does not change the answer.
    """
    highs = _make_highs()
    scale = _choose_scale(problem.gain)
    highs.setOptionValue("mip_rel_gap", gap)
    highs.setOptionValue("mip_abs_gap", _TOLERANCE)
    highs.setOptionValue("mip_feasibility_tolerance", _TOLERANCE)
    highs.setOptionValue("mip_max_nodes", _MAX_NODES)
    highs.passModel(_build_model(problem, scale, integer=True))
    return _run_highs(highs, seconds, scale)


def _make_highs() -> highspy.Highs:
    highs = highspy.Highs()  # type: ignore[no-untyped-call]  # its stub leaves out the return type
    for option, value in (
        ("output_flag", False),
        ("threads", 1),
        ("parallel", "off"),
        ("random_seed", 0),
        ("primal_feasibility_tolerance", _TOLERANCE),
        ("dual_feasibility_tolerance", _TOLERANCE),
    ):
        highs.setOptionValue(option, value)
    return highs


def _run_highs(highs: highspy.Highs, seconds: float, scale: float) -> Solution:
    # The limit counts from the first solve of the instance.
    highs.setOptionValue("time_limit", highs.getRunTime() + max(seconds, 0.0))
    highs.run()
    status = highs.getModelStatus()
    empty = np.zeros(0)
    if status == highspy.HighsModelStatus.kInfeasible:
        return Solution(SolveOutcome.INFEASIBLE, empty, 0.0, 0.0, empty, empty)
    if status != highspy.HighsModelStatus.kOptimal:
        return Solution(SolveOutcome.UNFINISHED, empty, 0.0, 0.0, empty, empty)
    solution = highs.getSolution()
    info = highs.getInfo()
    bound = info.mip_dual_bound if np.isfinite(info.mip_dual_bound) else info.objective_function_value
    return Solution(
        SolveOutcome.OPTIMAL,
        np.array(solution.col_value),
        -info.objective_function_value * scale,
        -bound * scale,
        -np.array(solution.row_dual) * scale,
        -np.array(solution.col_dual) * scale,
    )


def _build_model(problem: LinearProblem, scale: float, *, integer: bool) -> highspy.HighsLp:
    order = np.argsort(problem.rows, kind="stable")
    model = highspy.HighsLp()
    model.num_col_ = len(problem.gain)
    model.num_row_ = len(problem.row_low)
    model.col_cost_ = -problem.gain / scale
    model.col_lower_ = problem.low
    model.col_upper_ = problem.high
    model.row_lower_ = problem.row_low
    model.row_upper_ = problem.row_high
    model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    model.a_matrix_.start_ = np.searchsorted(problem.rows[order], np.arange(len(problem.row_low) + 1))
    model.a_matrix_.index_ = problem.columns[order]
    model.a_matrix_.value_ = problem.values[order]
    if integer:
        kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
        model.integrality_ = [kinds[column < problem.integers] for column in range(len(problem.gain))]
    return model


def _has_same_structure(previous: LinearProblem, problem: LinearProblem) -> bool:
    return (
        len(previous.gain) == len(problem.gain)
        and len(previous.row_low) == len(problem.row_low)
        and previous.rows is problem.rows
    )


def _choose_scale(gain: Floats) -> float:
    """Return a power of two that brings the largest gain near 1, because HiGHS's tolerances are absolute."""
    largest = float(np.abs(gain).max(initial=0.0))
    return float(2.0 ** np.ceil(np.log2(largest))) if largest > 0 else 1.0
