"""Requests that an engine would not answer like ONNX Runtime, and that therefore go to the original graph.

OpenVINO reads other memory for an id outside of its table, which ONNX Runtime refuses; it computes integers in 32 bits; and
NaN may become a number in it.
"""

from collections.abc import Mapping

import numpy as np

from tidegate_dataplane.engines.bucket_shapes import Array

ALL_COLUMNS = -1
INTEGER_LIMIT = 2**31


class RequestGuard:
    """Tells the requests that may go to an engine, by the sizes of the tables that columns of inputs index."""

    def __init__(self, bounds: Mapping[str, Mapping[str, int]]) -> None:
        self._whole: dict[str, int] = {}
        self._columns: dict[str, tuple[Array, Array]] = {}
        for name, columns in bounds.items():
            by_column = {int(column): size for column, size in columns.items()}
            if ALL_COLUMNS in by_column:
                self._whole[name] = by_column.pop(ALL_COLUMNS)
            if by_column:
                self._columns[name] = np.array(list(by_column)), np.array(list(by_column.values()))

    def accepts_request(self, inputs: Mapping[str, Array]) -> bool:
        """Return whether all ids are from 0 to below the size of their table, and all numbers finite and of 32 bits."""
        return all(self._accepts_input(name, array) for name, array in inputs.items())

    def _accepts_input(self, name: str, array: Array) -> bool:
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            return False
        if array.dtype.kind in "iuf" and array.size and (name in self._whole or array.dtype.kind in "iu"):
            low, high = (0, self._whole[name]) if name in self._whole else (-INTEGER_LIMIT, INTEGER_LIMIT)
            if array.min() < low or array.max() >= high:
                return False
        if name not in self._columns:
            return True
        columns, sizes = self._columns[name]
        return array.ndim == 2 and bool(((array[:, columns] >= 0) & (array[:, columns] < sizes)).all())
