"""Which column and which row of the program is what; it stays the same from tick to tick, so that the model stays warm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tidegate.allocation.component import Component

_SPARE_SLOTS = 2
"""Segments that a spot may gain before the model has to be built anew."""


@dataclass(frozen=True, slots=True)
class Coupling:
    """Where an Inference in several pools has its own columns and rows.

    Columns: what is served of each entry of `asked`, then what its floor, its ceiling and the loss of a node miss.
    Rows: its bounds, one for each entry of `asked`, one for each pool that may lose a node.
    """

    worth: int
    spots: range
    served: range
    row: int

    @property
    def missed(self) -> range:
        """Floor, ceiling, node."""
        return range(self.served.stop, self.served.stop + 3)


class Layout:
    """Places of columns and rows, and the coefficients that never change.

    Each spot has columns from `first` on: `slots = (above, below)` segments. Each pool has a column for missing spares, for an
    exceeded budget, and two for each tier's rule (floor, ceiling); and rows: capacity, budget, one for each tier's rule.
    """

    def __init__(self, component: Component, needed: Sequence[tuple[int, int]]) -> None:
        self.slots = [(above + _SPARE_SLOTS, below + _SPARE_SLOTS) for above, below in needed]
        self.first: list[int] = []
        self.columns = self.rows = 0
        for above, below in self.slots:
            self.first.append(self.columns)
            self.columns += above + below
        self.integers = self.columns
        self.couplings = self._couplings(component)
        self.pool_columns: list[int] = []
        self.pool_rows: list[int] = []
        for pool in component.pools:
            self.pool_columns.append(self.columns)
            self.columns += 2 + 2 * len(pool.tiers)
            self.pool_rows.append(self.rows)
            self.rows += 2 + len(pool.tiers)
        self.tier_rows = {
            (number, rule.tier): self.pool_rows[number] + 2 + place
            for number, pool in enumerate(component.pools)
            for place, rule in enumerate(pool.tiers)
        }
        self._matrix(component)

    def _couplings(self, component: Component) -> list[Coupling]:
        found: list[Coupling] = []
        spot = 0
        for number, worth in enumerate(component.worths):
            spots = range(spot, spot + len(worth.spots))
            spot = spots.stop
            if len(spots) > 1:
                served = range(self.columns, self.columns + len(worth.asked))
                found.append(Coupling(number, spots, served, self.rows))
                self.columns += len(served) + 3
                self.rows += 1 + len(served) + len(spots)
        return found

    def _matrix(self, component: Component) -> None:
        made = _Entries()
        number = 0
        for worth in component.worths:
            for spot in worth.spots:
                index = component.pool_index[spot.pool]
                row = self.pool_rows[index]
                made.spot(row, self, number, spot.slices)
                made.spot(row + 1, self, number, spot.slices, signed=False)
                tier_row = self.tier_rows.get((index, worth.inference.tier))
                if tier_row is not None:
                    made.spot(tier_row, self, number, spot.slices)
                number += 1
        for row, column, pool in zip(self.pool_rows, self.pool_columns, component.pools, strict=True):
            made.one(row, column, -1.0)
            made.one(row + 1, column + 1, -1.0)
            for place in range(len(pool.tiers)):
                made.one(row + 2 + place, column + 2 + 2 * place, 1.0)
                made.one(row + 2 + place, column + 3 + 2 * place, -1.0)
        for coupling in self.couplings:
            self._coupling(made, coupling)
        constant = len(made.rows)
        for coupling in self.couplings:
            # The coefficients that change: what each replica serves.
            for row in range(coupling.row + 1, coupling.row + 1 + len(coupling.served) + len(coupling.spots)):
                for spot_number in coupling.spots:
                    made.spot(row, self, spot_number, 0.0)
        self.matrix_rows: NDArray[np.int32] = np.array(made.rows, dtype=np.int32)
        self.matrix_columns: NDArray[np.int32] = np.array(made.columns, dtype=np.int32)
        self.constant: NDArray[np.float64] = np.array(made.values[:constant], dtype=np.float64)

    def _coupling(self, made: _Entries, coupling: Coupling) -> None:
        short, over, node = coupling.missed
        for number in coupling.spots:
            made.spot(coupling.row, self, number, 1.0)
        made.one(coupling.row, short, 1.0)
        made.one(coupling.row, over, -1.0)
        after = coupling.row + 1
        for place, column in enumerate(coupling.served):
            made.one(after + place, column, 1.0)
        for place in range(len(coupling.spots)):
            made.one(after + len(coupling.served) + place, node, 1.0)


class _Entries:
    """Coordinates of a matrix while it is written."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.columns: list[int] = []
        self.values: list[float] = []

    def one(self, row: int, column: int, value: float) -> None:
        self.rows.append(row)
        self.columns.append(column)
        self.values.append(value)

    def spot(self, row: int, places: Layout, number: int, value: float, *, signed: bool = True) -> None:
        """`value` for each replica above what is held; below its negative, where signs count."""
        first, (above, below) = places.first[number], places.slots[number]
        self.rows += [row] * (above + below)
        self.columns += range(first, first + above + below)
        self.values += [value] * above + [-value if signed else value] * below


def shape(component: Component) -> tuple[object, ...]:
    """What has to be the same for a layout to be used again."""
    return (
        tuple((pool.name, tuple(rule.tier for rule in pool.tiers)) for pool in component.pools),
        tuple(
            (
                worth.inference.key,
                worth.inference.tier,
                len(worth.asked) if len(worth.spots) > 1 else 0,
                tuple((spot.pool, spot.slices) for spot in worth.spots),
            )
            for worth in component.worths
        ),
    )
