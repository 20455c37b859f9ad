"""Columns and rows of the linear program; they stay the same from tick to tick, so that the model stays warm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tidegate.allocation.component import Component

_SPARE_SLOTS = 2
"""Segments that an option may gain before the model has to be built again."""


@dataclass(frozen=True, slots=True)
class Coupling:
    """Columns and rows of an Inference in several pools.

    Columns: the served rate of each entry of `demand`, then the violations of its floor, its ceiling and its node reserve.
    Rows: its bounds, one for each entry of `demand`, one for each pool that may lose a node.
    """

    worth: int
    spots: range
    served: range
    row: int

    @property
    def missed(self) -> range:
        """Return the columns of the violations: floor, ceiling, node reserve."""
        return range(self.served.stop, self.served.stop + 3)


class Layout:
    """Places of columns and rows, and the coefficients that never change.

    Each option has columns from its entry in `first_columns` on, as many as `segment_slots` says: (above, below) the current
    replicas. Each pool has one column for missing spares, one for an exceeded budget and two for each tier's rule (floor,
    ceiling), and as rows its capacity, its budget and each tier's rule.
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
            (number, rule.tier): self.pool_rows[number] + 2 + position
            for number, pool in enumerate(component.pools)
            for position, rule in enumerate(pool.tiers)
        }
        self._matrix(component)

    def _couplings(self, component: Component) -> list[Coupling]:
        couplings: list[Coupling] = []
        first = 0
        for number, utility in enumerate(component.worths):
            options = range(first, first + len(utility.spots))
            first = options.stop
            if len(options) > 1:
                served = range(self.columns, self.columns + len(utility.asked))
                couplings.append(Coupling(number, options, served, self.rows))
                self.columns += len(served) + 3
                self.rows += 1 + len(served) + len(options)
        return couplings

    def _matrix(self, component: Component) -> None:
        """Write the constant coefficients, then room for those that change."""
        entries = _Entries()
        number = 0
        for utility in component.worths:
            for option in utility.spots:
                index = component.pool_index[option.pool]
                row = self.pool_rows[index]
                entries.spot(row, self, number, option.slices)
                entries.spot(row + 1, self, number, option.slices, signed=False)
                tier_row = self.tier_rows.get((index, utility.inference.tier))
                if tier_row is not None:
                    entries.spot(tier_row, self, number, option.slices)
                number += 1
        for row, column, pool in zip(self.pool_rows, self.pool_columns, component.pools, strict=True):
            entries.one(row, column, -1.0)
            entries.one(row + 1, column + 1, -1.0)
            for position in range(len(pool.tiers)):
                entries.one(row + 2 + position, column + 2 + 2 * position, 1.0)
                entries.one(row + 2 + position, column + 3 + 2 * position, -1.0)
        for coupling in self.couplings:
            self._coupling(entries, coupling)
        constant = len(entries.rows)
        for coupling in self.couplings:
            # The coefficients that change: what each replica serves.
            for row in range(coupling.row + 1, coupling.row + 1 + len(coupling.served) + len(coupling.spots)):
                for option_number in coupling.spots:
                    entries.spot(row, self, option_number, 0.0)
        self.matrix_rows: NDArray[np.int32] = np.array(entries.rows, dtype=np.int32)
        self.matrix_columns: NDArray[np.int32] = np.array(entries.columns, dtype=np.int32)
        self.constant: NDArray[np.float64] = np.array(entries.values[:constant], dtype=np.float64)

    def _coupling(self, entries: _Entries, coupling: Coupling) -> None:
        floor, ceiling, node = coupling.missed
        for number in coupling.spots:
            entries.spot(coupling.row, self, number, 1.0)
        entries.one(coupling.row, floor, 1.0)
        entries.one(coupling.row, ceiling, -1.0)
        first_row = coupling.row + 1
        for position, column in enumerate(coupling.served):
            entries.one(first_row + position, column, 1.0)
        for position in range(len(coupling.spots)):
            entries.one(first_row + len(coupling.served) + position, node, 1.0)


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

    def spot(self, row: int, layout: Layout, number: int, value: float, *, signed: bool = True) -> None:
        """Add `value` for each replica above the current ones, and its negative (if `signed`) for each below."""
        first, (above, below) = layout.first[number], layout.slots[number]
        self.rows += [row] * (above + below)
        self.columns += range(first, first + above + below)
        self.values += [value] * above + [-value if signed else value] * below


def shape(component: Component) -> tuple[object, ...]:
    """Return the properties that two components must share to use the same layout."""
    return (
        tuple((pool.name, tuple(rule.tier for rule in pool.tiers)) for pool in component.pools),
        tuple(
            (
                utility.inference.key,
                utility.inference.tier,
                len(utility.asked) if len(utility.spots) > 1 else 0,
                tuple((option.pool, option.slices) for option in utility.spots),
            )
            for utility in component.worths
        ),
    )
