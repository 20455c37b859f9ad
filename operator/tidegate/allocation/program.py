"""The mixed-integer linear program of one component, as arrays.

Columns are replicas to start above, or to stop below, what is held; requests served, where several pools serve one Inference;
and what each rule is missed by. In the normal case the last are zero; in the relaxed case the levels make them small, in order.
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
"""Of two equal gains one is up to this share larger, by a hash of the names: the optimum is one point, warm or cold."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Problem:
    """Maximise gain · x over low ≤ x ≤ high and row_low ≤ A x ≤ row_high (float64).

    A as coordinates: `rows`, `columns` (int32), `values`. The first `integers` columns are whole numbers.
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
    """What one level misses: coefficients · x[columns] + constant."""

    level: Level
    columns: NDArray[np.int32]
    coefficients: Floats
    constant: float

    def missed(self, solution: Floats) -> float:
        """By how much, at `solution`."""
        return float(self.coefficients @ solution[self.columns]) + self.constant


class Program:
    """The numbers of one tick in the places of `layout`. `problem` is the normal case; `constant`: what it is worth to move nothing."""

    def __init__(self, component: Component, before: Program | None = None) -> None:
        """`before`: the last tick's program, whose places are kept where the numbers fit in."""
        self.component = component
        self.shape = shape(component)
        self._spots = [(worth, spot) for worth in component.worths for spot in worth.spots]
        self.segments = [segments(worth, spot) for worth, spot in self._spots]
        needed = [_above_below(each) for each in self.segments]
        self.layout = self._layout(needed, before)
        self.constant = sum(
            worth.value((worth.spots[0].held,)) for worth in component.worths if len(worth.spots) == 1
        )
        self.problem = _Numbers(self).problem()

    def _layout(self, needed: list[tuple[int, int]], before: Program | None) -> Layout:
        if before is not None and before.shape == self.shape and _fits(needed, before.layout):
            return before.layout
        return Layout(self.component, needed)

    def replicas(self, solution: Floats) -> list[float]:
        """Replicas of each spot, as a fraction where the solution has one."""
        found: list[float] = []
        values = solution.tolist()
        for (_, spot), first, (above, below) in zip(
            self._spots, self.layout.first, self.layout.slots, strict=True
        ):
            middle = first + above
            found.append(spot.held + sum(values[first:middle]) - sum(values[middle : middle + below]))
        return found

    def spots(self) -> Iterator[tuple[int, Worth, Spot]]:
        """Every spot with its number."""
        for number, (worth, spot) in enumerate(self._spots):
            yield number, worth, spot

    def columns(self, number: int) -> Iterator[tuple[int, Segment]]:
        """The columns of a spot that are in use."""
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
        """The case in which every rule but capacity may be missed."""
        high = np.zeros(self.layout.columns)
        for number in range(len(self.segments)):
            for column, segment in self.columns(number):
                high[column] = segment.length
        for coupling in self.layout.couplings:
            served = slice(coupling.served.start, coupling.served.stop)
            high[served] = self.problem.high[served]
            worth = self.component.worths[coupling.worth]
            high[coupling.missed.start : coupling.missed.stop] = FREE
            high[coupling.missed.start + 1] = worth.highest - worth.most if worth.most < FREE else 0.0
        for first, pool in zip(self.layout.pool_columns, self.component.pools, strict=True):
            high[first] = pool.spares
            high[first + 1 : first + 2 + 2 * len(pool.tiers)] = FREE
        return replace(self.problem, low=np.zeros(self.layout.columns), high=high)

    def levels(self) -> list[LevelRow]:
        """What each level misses, as rows; only the relaxed case needs them."""
        entries: dict[Level, dict[int, float]] = {level: {} for level in Level}
        constants = dict.fromkeys(Level, 0.0)
        for number, worth, spot in self.spots():
            if len(worth.spots) == 1:
                for level in Level:
                    constants[level] += worth.levels((spot.held,))[level]
            for column, segment in self.columns(number):
                for level, change in level_gains(worth, spot, segment):
                    entries[level][column] = change
        for coupling in self.layout.couplings:
            self._coupled_levels(coupling, entries, constants)
        for first, pool in zip(self.layout.pool_columns, self.component.pools, strict=True):
            entries[Level.WARM_SPARES][first] = 1.0
            entries[Level.BUDGET][first + 1] = 1.0
            for place, rule in enumerate(pool.tiers):
                level = FLOOR_LEVELS[rule.tier]
                entries[level][first + 2 + 2 * place] = TIER_FLOOR_WEIGHT[level]
                entries[Level.CEILING][first + 3 + 2 * place] = 1.0
        return [
            LevelRow(
                level, np.array(list(found), dtype=np.int32), np.array(list(found.values())), constants[level]
            )
            for level, found in entries.items()
        ]

    def _coupled_levels(
        self, coupling: Coupling, entries: dict[Level, dict[int, float]], constants: dict[Level, float]
    ) -> None:
        worth = self.component.worths[coupling.worth]
        short, over, node = coupling.missed
        slices = min(spot.slices for spot in worth.spots)
        entries[worth.floor_level][short] = slices * worth.floor_weight
        entries[Level.CEILING][over] = slices
        entries[Level.SPARE_NODE][node] = worth.inference.value
        if worth.promised <= 0:
            return
        for column, asked in zip(coupling.served, worth.asked, strict=True):
            weight = asked.weight * worth.inference.value
            entries[Level.SLO][column] = -weight
            constants[Level.SLO] += weight * min(asked.rate, worth.promised)


class _Numbers:
    """Writes bounds, gains and the coefficients that change into the places of a program."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._places = places = program.layout
        self._gain = [0.0] * places.columns
        self._low = [0.0] * places.columns
        self._high = [0.0] * places.columns
        self._row_low = [-FREE] * places.rows
        self._row_high = [FREE] * places.rows
        self._changing: list[float] = []

    def problem(self) -> Problem:
        self._pools()
        for number, worth, spot in self._program.spots():
            self._spot(number, worth, spot)
        for coupling in self._places.couplings:
            self._coupling(coupling)
        return Problem(
            gain=np.array(self._gain),
            low=np.array(self._low),
            high=np.array(self._high),
            row_low=np.array(self._row_low),
            row_high=np.array(self._row_high),
            rows=self._places.matrix_rows,
            columns=self._places.matrix_columns,
            values=np.concatenate([self._places.constant, self._changing]),
            integers=self._places.integers,
        )

    def _pools(self) -> None:
        for row, pool in zip(self._places.pool_rows, self._program.component.pools, strict=True):
            self._row_high[row] = pool.slices - pool.spares
            self._row_high[row + 1] = FREE if pool.movable is None else pool.movable
            for place, rule in enumerate(pool.tiers, start=row + 2):
                self._row_low[place] = rule.floor
                self._row_high[place] = FREE if rule.ceiling is None else rule.ceiling

    def _spot(self, number: int, worth: Worth, spot: Spot) -> None:
        pool = self._program.component.pool_index[spot.pool]
        held = spot.held * spot.slices
        self._row_high[self._places.pool_rows[pool]] -= held
        tier_row = self._places.tier_rows.get((pool, worth.inference.tier))
        if tier_row is not None:
            self._row_low[tier_row] -= held
            self._row_high[tier_row] -= held
        tie_break = 1.0 + _TIE_BREAK * _hash(self._program.component.seed, worth, spot)
        for column, segment in self._program.columns(number):
            self._gain[column] = segment.gain * tie_break
            self._low[column] = segment.length if segment.forced else 0.0
            self._high[column] = 0.0 if segment.barred else segment.length

    def _coupling(self, coupling: Coupling) -> None:
        worth = self._program.component.worths[coupling.worth]
        held = [spot.held for spot in worth.spots]
        rates = worth.rates(held)
        most_asked = max((asked.rate for asked in worth.asked), default=0.0)
        row = coupling.row
        self._row_low[row], self._row_high[row] = worth.floor - sum(held), worth.most - sum(held)
        for column, asked in zip(coupling.served, worth.asked, strict=True):
            row += 1
            self._gain[column] = asked.value
            promised = min(asked.rate, worth.promised)
            self._low[column] = promised
            self._high[column] = promised if worth.promised > 0 else asked.rate
            self._row_high[row] = sum(min(rate, most_asked) for rate in rates)
            for number in coupling.spots:
                self._rates(number, -1.0, served=True)
        for lost, nodes, rate in zip(coupling.spots, worth.nodes, rates, strict=True):
            row += 1
            gone = 1.0 / max(nodes, 1)
            if worth.promised_without_node > 0 and nodes > 1:
                self._row_low[row] = worth.promised_without_node - (sum(rates) - rate * gone)
            for number in coupling.spots:
                self._rates(number, 1.0 - gone if number == lost else 1.0, served=False)

    def _rates(self, number: int, factor: float, *, served: bool) -> None:
        """What a replica of each column of a spot serves, times `factor`."""
        first, (above, below) = self._places.first[number], self._places.slots[number]
        values = [0.0] * (above + below)
        for column, segment in self._program.columns(number):
            rate = segment.served if served else segment.rate
            values[column - first] = factor * (rate if segment.up else -rate)
        self._changing += values


def _above_below(each: list[Segment]) -> tuple[int, int]:
    above = sum(segment.up for segment in each)
    return above, len(each) - above


def _fits(needed: list[tuple[int, int]], places: Layout) -> bool:
    return all(
        above <= room[0] and below <= room[1]
        for (above, below), room in zip(needed, places.slots, strict=True)
    )


def _hash(seed: int, worth: Worth, spot: Spot) -> float:
    """0 to 1, by the names alone."""
    return crc32(f"{seed}/{worth.inference.key}/{spot.pool}".encode()) / 0xFFFFFFFF
