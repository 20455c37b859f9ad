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

from tidegate.allocation.component import TIER_FLOOR_WEIGHT, Component
from tidegate.allocation.layout import Coupling, Layout, shape
from tidegate.allocation.segments import Segment, level_gains, segments
from tidegate.allocation.worth import FLOOR_LEVELS, Level, Spot, Worth

FREE: Final = float("inf")
_TIE_BREAK: Final = 1e-6
"""Share by which one of two equal gains is increased, by a hash of the names.

It makes the optimum one point, whether the solver starts warm or cold.
"""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Problem:
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
class LevelRow:
    """Violation of one priority as a row: coefficients · x[columns] + constant."""

    level: Level
    columns: NDArray[np.int32]
    coefficients: Floats
    constant: float

    def missed(self, solution: Floats) -> float:
        """Return the violation at `solution`."""
        return float(self.coefficients @ solution[self.columns]) + self.constant


class Program:
    """Numbers of one tick in the places of a layout.

    `problem` is the normal problem; `constant` is the value of moving nothing.
    """

    def __init__(self, component: Component, previous: Program | None = None) -> None:
        """Build the program; keep the layout of `previous`, the last tick's program, where the numbers fit in it."""
        self.component = component
        self.shape = shape(component)
        self._options = [(utility, option) for utility in component.worths for option in utility.spots]
        self.segments = [segments(utility, option) for utility, option in self._options]
        needed = [_above_below(option_segments) for option_segments in self.segments]
        self.layout = self._layout(needed, previous)
        self.constant = sum(
            utility.value((utility.spots[0].held,)) for utility in component.worths if len(utility.spots) == 1
        )
        self.problem = _Numbers(self).problem()

    def _layout(self, needed: list[tuple[int, int]], previous: Program | None) -> Layout:
        if previous is not None and previous.shape == self.shape and _fits(needed, previous.layout):
            return previous.layout
        return Layout(self.component, needed)

    def replicas(self, solution: Floats) -> list[float]:
        """Return the replicas of each option, as a fraction where the solution has one."""
        replicas: list[float] = []
        values = solution.tolist()
        for (_, option), first, (above, below) in zip(
            self._options, self.layout.first, self.layout.slots, strict=True
        ):
            middle = first + above
            replicas.append(option.held + sum(values[first:middle]) - sum(values[middle : middle + below]))
        return replicas

    def spots(self) -> Iterator[tuple[int, Worth, Spot]]:
        """Yield every option with its number and its model."""
        for number, (utility, option) in enumerate(self._options):
            yield number, utility, option

    def columns(self, number: int) -> Iterator[tuple[int, Segment]]:
        """Yield the columns of an option that are in use, with their segments."""
        above = self.layout.first[number]
        below = above + self.layout.slots[number][0]
        for segment in self.segments[number]:
            if segment.up:
                yield above, segment
                above += 1
            else:
                yield below, segment
                below += 1

    def relaxed(self) -> Problem:
        """Return the problem in which every rule but capacity may be violated."""
        high = np.zeros(self.layout.columns)
        for number in range(len(self.segments)):
            for column, segment in self.columns(number):
                high[column] = segment.length
        for coupling in self.layout.couplings:
            served = slice(coupling.served.start, coupling.served.stop)
            high[served] = self.problem.high[served]
            utility = self.component.worths[coupling.worth]
            high[coupling.missed.start : coupling.missed.stop] = FREE
            high[coupling.missed.start + 1] = utility.highest - utility.most if utility.most < FREE else 0.0
        for first, pool in zip(self.layout.pool_columns, self.component.pools, strict=True):
            high[first] = pool.spares
            high[first + 1 : first + 2 + 2 * len(pool.tiers)] = FREE
        return replace(self.problem, low=np.zeros(self.layout.columns), high=high)

    def levels(self) -> list[LevelRow]:
        """Return the violation of each priority as a row; only the relaxed problem needs them."""
        entries: dict[Level, dict[int, float]] = {priority: {} for priority in Level}
        constants = dict.fromkeys(Level, 0.0)
        for number, utility, option in self.spots():
            if len(utility.spots) == 1:
                for priority in Level:
                    constants[priority] += utility.levels((option.held,))[priority]
            for column, segment in self.columns(number):
                for priority, change in level_gains(utility, option, segment):
                    entries[priority][column] = change
        for coupling in self.layout.couplings:
            self._coupled_levels(coupling, entries, constants)
        for first, pool in zip(self.layout.pool_columns, self.component.pools, strict=True):
            entries[Level.WARM_SPARES][first] = 1.0
            entries[Level.BUDGET][first + 1] = 1.0
            for position, rule in enumerate(pool.tiers):
                priority = FLOOR_LEVELS[rule.tier]
                entries[priority][first + 2 + 2 * position] = TIER_FLOOR_WEIGHT[priority]
                entries[Level.CEILING][first + 3 + 2 * position] = 1.0
        return [
            LevelRow(
                priority,
                np.array(list(coefficients), dtype=np.int32),
                np.array(list(coefficients.values())),
                constants[priority],
            )
            for priority, coefficients in entries.items()
        ]

    def _coupled_levels(
        self, coupling: Coupling, entries: dict[Level, dict[int, float]], constants: dict[Level, float]
    ) -> None:
        utility = self.component.worths[coupling.worth]
        floor, ceiling, node = coupling.missed
        slices = min(spot.slices for spot in utility.spots)
        entries[utility.floor_level][floor] = slices * utility.floor_weight
        entries[Level.CEILING][ceiling] = slices
        entries[Level.SPARE_NODE][node] = utility.inference.value
        if utility.promised <= 0:
            return
        for column, demand_step in zip(coupling.served, utility.asked, strict=True):
            weight = demand_step.weight * utility.inference.value
            entries[Level.SLO][column] = -weight
            constants[Level.SLO] += weight * min(demand_step.rate, utility.promised)


class _Numbers:
    """Writer of the bounds, gains and variable coefficients of a program."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._layout = layout = program.layout
        self._gain = [0.0] * layout.columns
        self._low = [0.0] * layout.columns
        self._high = [0.0] * layout.columns
        self._row_low = [-FREE] * layout.rows
        self._row_high = [FREE] * layout.rows
        self._changing: list[float] = []

    def problem(self) -> Problem:
        self._pools()
        for number, worth, spot in self._program.spots():
            self._spot(number, worth, spot)
        for coupling in self._layout.couplings:
            self._coupling(coupling)
        return Problem(
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

    def _pools(self) -> None:
        for row, pool in zip(self._layout.pool_rows, self._program.component.pools, strict=True):
            self._row_high[row] = pool.slices - pool.spares
            self._row_high[row + 1] = FREE if pool.movable is None else pool.movable
            for rule_row, rule in enumerate(pool.tiers, start=row + 2):
                self._row_low[rule_row] = rule.floor
                self._row_high[rule_row] = FREE if rule.ceiling is None else rule.ceiling

    def _spot(self, number: int, utility: Worth, option: Spot) -> None:
        pool = self._program.component.pool_index[option.pool]
        current_slices = option.held * option.slices
        self._row_high[self._layout.pool_rows[pool]] -= current_slices
        tier_row = self._layout.tier_rows.get((pool, utility.inference.tier))
        if tier_row is not None:
            self._row_low[tier_row] -= current_slices
            self._row_high[tier_row] -= current_slices
        tie_break = 1.0 + _TIE_BREAK * _hash(self._program.component.seed, utility, option)
        for column, segment in self._program.columns(number):
            self._gain[column] = segment.gain * tie_break
            self._low[column] = segment.length if segment.forced else 0.0
            self._high[column] = 0.0 if segment.barred else segment.length

    def _coupling(self, coupling: Coupling) -> None:
        utility = self._program.component.worths[coupling.worth]
        current = [option.held for option in utility.spots]
        rates = utility.rates(current)
        highest_rate = max((demand_step.rate for demand_step in utility.asked), default=0.0)
        row = coupling.row
        self._row_low[row], self._row_high[row] = utility.floor - sum(current), utility.most - sum(current)
        for column, demand_step in zip(coupling.served, utility.asked, strict=True):
            row += 1
            self._gain[column] = demand_step.value
            promised_rate = min(demand_step.rate, utility.promised)
            self._low[column] = promised_rate
            self._high[column] = promised_rate if utility.promised > 0 else demand_step.rate
            self._row_high[row] = sum(min(rate, highest_rate) for rate in rates)
            for number in coupling.spots:
                self._rates(number, -1.0, served=True)
        for lost, nodes, rate in zip(coupling.spots, utility.nodes, rates, strict=True):
            row += 1
            lost_share = 1.0 / max(nodes, 1)
            if utility.promised_without_node > 0 and nodes > 1:
                self._row_low[row] = utility.promised_without_node - (sum(rates) - rate * lost_share)
            for number in coupling.spots:
                self._rates(number, 1.0 - lost_share if number == lost else 1.0, served=False)

    def _rates(self, number: int, factor: float, *, served: bool) -> None:
        """Append the rate that a replica of each column of an option serves, times `factor`."""
        first, (above, below) = self._layout.first[number], self._layout.slots[number]
        values = [0.0] * (above + below)
        for column, segment in self._program.columns(number):
            rate = segment.served if served else segment.rate
            values[column - first] = factor * (rate if segment.up else -rate)
        self._changing += values


def _above_below(option_segments: list[Segment]) -> tuple[int, int]:
    above = sum(segment.up for segment in option_segments)
    return above, len(option_segments) - above


def _fits(needed: list[tuple[int, int]], layout: Layout) -> bool:
    return all(
        above <= slots[0] and below <= slots[1]
        for (above, below), slots in zip(needed, layout.slots, strict=True)
    )


def _hash(seed: int, utility: Worth, option: Spot) -> float:
    """Return a number from 0 to 1 that depends on the names alone."""
    return crc32(f"{seed}/{utility.inference.key}/{option.pool}".encode()) / 0xFFFFFFFF
