"""Mixed-integer linear program of one component, as arrays.

Columns are replicas to start above, or to stop below, the current ones; requests served, where several pools serve one
Inference; and the violation of each rule. In the normal problem violations are zero; in the relaxed problem each
priority's is minimised, in order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from tidegate.allocation.component import TIER_FLOOR_WEIGHTS, Component
from tidegate.allocation.layout import PoolCoupling, ProgramLayout, describe_shape
from tidegate.allocation.segments import ReplicaSegment, split_segments, violation_changes
from tidegate.allocation.utility import FLOOR_PRIORITIES, ModelUtility, PoolOption, RulePriority

UNBOUNDED: Final = float("inf")
_TIE_BREAK: Final = 1e-6
"""Share by which one of two equal gains is increased, by a hash of the names.

It makes the optimum one point, whether the solver starts warm or cold.
"""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LinearProblem:
    """Problem: maximise gain · x over low ≤ x ≤ high and row_low ≤ A x ≤ row_high (float64).

    A is given by coordinates: `rows`, `columns` (int32), `values`. The first `integers` columns are whole numbers.
    """

    gain: Floats
    low: Floats
    high: Floats
    row_low: Floats
    row_high: Floats
    rows: NDArray[np.int32]
    columns: NDArray[np.int32]
    values: Floats
    integers: int


@dataclass(frozen=True, slots=True)
class PriorityRow:
    """Violation of one priority as a row: coefficients · x[columns] + constant."""

    priority: RulePriority
    columns: NDArray[np.int32]
    coefficients: Floats
    constant: float

    def violation_at(self, solution: Floats) -> float:
        """Return the violation at `solution`."""
        return float(self.coefficients @ solution[self.columns]) + self.constant


class LinearProgram:
    """Numbers of one tick in the places of a layout.

    `problem` is the normal problem; `constant` is the value of moving nothing.
    """

    def __init__(self, component: Component, previous: LinearProgram | None = None) -> None:
        """Build the program; keep the layout of `previous`, the last tick's program, where the numbers fit in it."""
        self.component = component
        self.shape = describe_shape(component)
        self._options = [(utility, option) for utility in component.utilities for option in utility.options]
        self.segments = [split_segments(utility, option) for utility, option in self._options]
        needed = [_count_directions(option_segments) for option_segments in self.segments]
        self.layout = self._choose_layout(needed, previous)
        self.constant = sum(
            utility.value_at((utility.options[0].current,))
            for utility in component.utilities
            if len(utility.options) == 1
        )
        self.problem = _ProblemWriter(self).write_problem()

    def _choose_layout(self, needed: list[tuple[int, int]], previous: LinearProgram | None) -> ProgramLayout:
        if previous is not None and previous.shape == self.shape and _fits_layout(needed, previous.layout):
            return previous.layout
        return ProgramLayout(self.component, needed)

    def extract_replicas(self, solution: Floats) -> list[float]:
        """Return the replicas of each option, as a fraction where the solution has one."""
        replicas: list[float] = []
        values = solution.tolist()
        for (_, option), first, (above, below) in zip(
            self._options, self.layout.first_columns, self.layout.segment_slots, strict=True
        ):
            middle = first + above
            replicas.append(option.current + sum(values[first:middle]) - sum(values[middle : middle + below]))
        return replicas

    def iter_options(self) -> Iterator[tuple[int, ModelUtility, PoolOption]]:
        """Yield every option with its number and its model."""
        for number, (utility, option) in enumerate(self._options):
            yield number, utility, option

    def iter_columns(self, number: int) -> Iterator[tuple[int, ReplicaSegment]]:
        """Yield the columns of an option that are in use, with their segments."""
        above = self.layout.first_columns[number]
        below = above + self.layout.segment_slots[number][0]
        for segment in self.segments[number]:
            if segment.up:
                yield above, segment
                above += 1
            else:
                yield below, segment
                below += 1

    def make_relaxed_problem(self) -> LinearProblem:
        """Return the problem in which every rule but capacity may be violated."""
        high = np.zeros(self.layout.columns)
        for number in range(len(self.segments)):
            for column, segment in self.iter_columns(number):
                high[column] = segment.length
        for coupling in self.layout.couplings:
            served = slice(coupling.served.start, coupling.served.stop)
            high[served] = self.problem.high[served]
            utility = self.component.utilities[coupling.utility]
            high[coupling.violation_columns.start : coupling.violation_columns.stop] = UNBOUNDED
            high[coupling.violation_columns.start + 1] = (
                utility.max_replicas - utility.ceiling if utility.ceiling < UNBOUNDED else 0.0
            )
        for first, pool in zip(self.layout.pool_columns, self.component.pools, strict=True):
            high[first] = pool.spares
            high[first + 1 : first + 2 + 2 * len(pool.tiers)] = UNBOUNDED
        return replace(self.problem, low=np.zeros(self.layout.columns), high=high)

    def make_priority_rows(self) -> list[PriorityRow]:
        """Return the violation of each priority as a row; only the relaxed problem needs them."""
        entries: dict[RulePriority, dict[int, float]] = {priority: {} for priority in RulePriority}
        constants = dict.fromkeys(RulePriority, 0.0)
        for number, utility, option in self.iter_options():
            if len(utility.options) == 1:
                for priority in RulePriority:
                    constants[priority] += utility.violations_at((option.current,))[priority]
            for column, segment in self.iter_columns(number):
                for priority, change in violation_changes(utility, option, segment):
                    entries[priority][column] = change
        for coupling in self.layout.couplings:
            self._fill_coupled_entries(coupling, entries, constants)
        for first, pool in zip(self.layout.pool_columns, self.component.pools, strict=True):
            entries[RulePriority.WARM_SPARES][first] = 1.0
            entries[RulePriority.BUDGET][first + 1] = 1.0
            for position, rule in enumerate(pool.tiers):
                priority = FLOOR_PRIORITIES[rule.tier]
                entries[priority][first + 2 + 2 * position] = TIER_FLOOR_WEIGHTS[priority]
                entries[RulePriority.CEILING][first + 3 + 2 * position] = 1.0
        return [
            PriorityRow(
                priority,
                np.array(list(coefficients), dtype=np.int32),
                np.array(list(coefficients.values())),
                constants[priority],
            )
            for priority, coefficients in entries.items()
        ]

    def _fill_coupled_entries(
        self,
        coupling: PoolCoupling,
        entries: dict[RulePriority, dict[int, float]],
        constants: dict[RulePriority, float],
    ) -> None:
        utility = self.component.utilities[coupling.utility]
        floor, ceiling, node = coupling.violation_columns
        slices = min(spot.slices for spot in utility.options)
        entries[utility.floor_priority][floor] = slices * utility.floor_weight
        entries[RulePriority.CEILING][ceiling] = slices
        entries[RulePriority.SPARE_NODE][node] = utility.model.value
        if utility.promised_rate <= 0:
            return
        for column, demand_step in zip(coupling.served, utility.demand, strict=True):
            entries[utility.promise][column] = -demand_step.slo_value
            constants[utility.promise] += demand_step.slo_value * min(demand_step.rate, utility.promised_rate)


class _ProblemWriter:
    """Writer of the bounds, gains and variable coefficients of a program."""

    def __init__(self, program: LinearProgram) -> None:
        self._program = program
        self._layout = layout = program.layout
        self._gain = [0.0] * layout.columns
        self._low = [0.0] * layout.columns
        self._high = [0.0] * layout.columns
        self._row_low = [-UNBOUNDED] * layout.rows
        self._row_high = [UNBOUNDED] * layout.rows
        self._changing: list[float] = []

    def write_problem(self) -> LinearProblem:
        self._write_pools()
        for number, worth, spot in self._program.iter_options():
            self._write_option(number, worth, spot)
        for coupling in self._layout.couplings:
            self._write_coupling(coupling)
        return LinearProblem(
            gain=np.array(self._gain),
            low=np.array(self._low),
            high=np.array(self._high),
            row_low=np.array(self._row_low),
            row_high=np.array(self._row_high),
            rows=self._layout.matrix_rows,
            columns=self._layout.matrix_columns,
            values=np.concatenate([self._layout.constant, self._changing]),
            integers=self._layout.integers,
        )

    def _write_pools(self) -> None:
        for row, pool in zip(self._layout.pool_rows, self._program.component.pools, strict=True):
            self._row_high[row] = pool.slices - pool.spares
            self._row_high[row + 1] = UNBOUNDED if pool.movable_slices is None else pool.movable_slices
            for rule_row, rule in enumerate(pool.tiers, start=row + 2):
                self._row_low[rule_row] = rule.floor
                self._row_high[rule_row] = UNBOUNDED if rule.ceiling is None else rule.ceiling

    def _write_option(self, number: int, utility: ModelUtility, option: PoolOption) -> None:
        pool = self._program.component.pool_index[option.pool]
        current_slices = option.current * option.slices
        self._row_high[self._layout.pool_rows[pool]] -= current_slices
        tier_row = self._layout.tier_rows.get((pool, utility.model.tier))
        if tier_row is not None:
            self._row_low[tier_row] -= current_slices
            self._row_high[tier_row] -= current_slices
        tie_break = 1.0 + _TIE_BREAK * _hash_names(self._program.component.seed, utility, option)
        for column, segment in self._program.iter_columns(number):
            self._gain[column] = segment.gain * tie_break
            self._low[column] = segment.length if segment.forced else 0.0
            self._high[column] = 0.0 if segment.barred else segment.length

    def _write_coupling(self, coupling: PoolCoupling) -> None:
        utility = self._program.component.utilities[coupling.utility]
        current = [option.current for option in utility.options]
        rates = utility.rates_at(current)
        highest_rate = max((demand_step.rate for demand_step in utility.demand), default=0.0)
        row = coupling.row
        self._row_low[row], self._row_high[row] = utility.floor - sum(current), utility.ceiling - sum(current)
        for column, demand_step in zip(coupling.served, utility.demand, strict=True):
            row += 1
            self._gain[column] = demand_step.value
            promised_rate = min(demand_step.rate, utility.promised_rate)
            self._low[column] = promised_rate
            is_promised = utility.promised_rate > 0 and demand_step.slo_value > 0
            self._high[column] = promised_rate if is_promised else demand_step.rate
            self._row_high[row] = sum(min(rate, highest_rate) for rate in rates)
            for number in coupling.options:
                self._append_rates(number, -1.0, served=True)
        for lost, nodes, rate in zip(coupling.options, utility.nodes, rates, strict=True):
            row += 1
            lost_share = 1.0 / max(nodes, 1)
            if utility.promised_rate_without_node > 0 and nodes > 1:
                self._row_low[row] = utility.promised_rate_without_node - (sum(rates) - rate * lost_share)
            for number in coupling.options:
                self._append_rates(number, 1.0 - lost_share if number == lost else 1.0, served=False)

    def _append_rates(self, number: int, factor: float, *, served: bool) -> None:
        """Append the rate that a replica of each column of an option serves, times `factor`."""
        first, (above, below) = self._layout.first_columns[number], self._layout.segment_slots[number]
        values = [0.0] * (above + below)
        for column, segment in self._program.iter_columns(number):
            rate = segment.served if served else segment.rate
            values[column - first] = factor * (rate if segment.up else -rate)
        self._changing += values


def _count_directions(option_segments: list[ReplicaSegment]) -> tuple[int, int]:
    above = sum(segment.up for segment in option_segments)
    return above, len(option_segments) - above


def _fits_layout(needed: list[tuple[int, int]], layout: ProgramLayout) -> bool:
    return all(
        above <= slots[0] and below <= slots[1]
        for (above, below), slots in zip(needed, layout.segment_slots, strict=True)
    )


def _hash_names(seed: int, utility: ModelUtility, option: PoolOption) -> float:
    """Return a number from 0 to 1 that depends on the names alone."""
    return crc32(f"{seed}/{utility.model.key}/{option.pool}".encode()) / 0xFFFFFFFF
