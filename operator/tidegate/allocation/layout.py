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
class PoolCoupling:
    """Columns and rows of an Inference in several pools.

    Columns: the served rate of each entry of `demand`, then the violations of its floor, its ceiling and its node reserve.
    Rows: its bounds, one for each entry of `demand`, one for each pool that may lose a node.
    """

    utility: int
    options: range
    served: range
    row: int

    @property
    def violation_columns(self) -> range:
        """Return the columns of the violations: floor, ceiling, node reserve."""
        return range(self.served.stop, self.served.stop + 3)


class ProgramLayout:
    """Places of columns and rows, and the coefficients that never change.

    Each option has columns from its entry in `first_columns` on, as many as `segment_slots` says: (above, below) the current
    replicas. Each pool has one column for missing spares, one for an exceeded budget and two for each tier's rule (floor,
    ceiling), and as rows its capacity, its budget and each tier's rule.
    """

    def __init__(self, component: Component, needed: Sequence[tuple[int, int]]) -> None:
        self.segment_slots = [(above + _SPARE_SLOTS, below + _SPARE_SLOTS) for above, below in needed]
        self.first_columns: list[int] = []
        self.columns = self.rows = 0
        for above, below in self.segment_slots:
            self.first_columns.append(self.columns)
            self.columns += above + below
        self.integers = self.columns
        self.couplings = self._make_couplings(component)
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
        self._build_matrix(component)

    def _make_couplings(self, component: Component) -> list[PoolCoupling]:
        couplings: list[PoolCoupling] = []
        first = 0
        for number, utility in enumerate(component.utilities):
            options = range(first, first + len(utility.options))
            first = options.stop
            if len(options) > 1:
                served = range(self.columns, self.columns + len(utility.demand))
                couplings.append(PoolCoupling(number, options, served, self.rows))
                self.columns += len(served) + 3
                self.rows += 1 + len(served) + len(options)
        return couplings

    def _build_matrix(self, component: Component) -> None:
        """Write the constant coefficients, then room for those that change."""
        entries = _MatrixEntries()
        number = 0
        for utility in component.utilities:
            for option in utility.options:
                index = component.pool_index[option.pool]
                row = self.pool_rows[index]
                entries.add_option(row, self, number, option.slices)
                entries.add_option(row + 1, self, number, option.slices, signed=False)
                tier_row = self.tier_rows.get((index, utility.model.tier))
                if tier_row is not None:
                    entries.add_option(tier_row, self, number, option.slices)
                number += 1
        for row, column, pool in zip(self.pool_rows, self.pool_columns, component.pools, strict=True):
            entries.add_entry(row, column, -1.0)
            entries.add_entry(row + 1, column + 1, -1.0)
            for position in range(len(pool.tiers)):
                entries.add_entry(row + 2 + position, column + 2 + 2 * position, 1.0)
                entries.add_entry(row + 2 + position, column + 3 + 2 * position, -1.0)
        for coupling in self.couplings:
            self._add_coupling(entries, coupling)
        constant = len(entries.rows)
        for coupling in self.couplings:
            # The coefficients that change: what each replica serves.
            for row in range(
                coupling.row + 1, coupling.row + 1 + len(coupling.served) + len(coupling.options)
            ):
                for option_number in coupling.options:
                    entries.add_option(row, self, option_number, 0.0)
        self.matrix_rows: NDArray[np.int32] = np.array(entries.rows, dtype=np.int32)
        self.matrix_columns: NDArray[np.int32] = np.array(entries.columns, dtype=np.int32)
        self.constant: NDArray[np.float64] = np.array(entries.values[:constant], dtype=np.float64)

    def _add_coupling(self, entries: _MatrixEntries, coupling: PoolCoupling) -> None:
        floor, ceiling, node = coupling.violation_columns
        for number in coupling.options:
            entries.add_option(coupling.row, self, number, 1.0)
        entries.add_entry(coupling.row, floor, 1.0)
        entries.add_entry(coupling.row, ceiling, -1.0)
        first_row = coupling.row + 1
        for position, column in enumerate(coupling.served):
            entries.add_entry(first_row + position, column, 1.0)
        for position in range(len(coupling.options)):
            entries.add_entry(first_row + len(coupling.served) + position, node, 1.0)


class _MatrixEntries:
    """Coordinates of a matrix while it is written."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.columns: list[int] = []
        self.values: list[float] = []

    def add_entry(self, row: int, column: int, value: float) -> None:
        self.rows.append(row)
        self.columns.append(column)
        self.values.append(value)

    def add_option(
        self, row: int, layout: ProgramLayout, number: int, value: float, *, signed: bool = True
    ) -> None:
        """Add `value` for each replica above the current ones, and its negative (if `signed`) for each below."""
        first, (above, below) = layout.first_columns[number], layout.segment_slots[number]
        self.rows += [row] * (above + below)
        self.columns += range(first, first + above + below)
        self.values += [value] * above + [-value if signed else value] * below


def describe_shape(component: Component) -> tuple[object, ...]:
    """Return the properties that two components must share to use the same layout."""
    return (
        tuple((pool.name, tuple(rule.tier for rule in pool.tiers)) for pool in component.pools),
        tuple(
            (
                utility.model.key,
                utility.model.tier,
                len(utility.demand) if len(utility.options) > 1 else 0,
                tuple((option.pool, option.slices) for option in utility.options),
            )
            for utility in component.utilities
        ),
    )
