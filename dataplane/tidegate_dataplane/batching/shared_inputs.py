"""Bring inputs that are equal for all rows of a request, such as the features of the user, into the form that the graph takes.

A client may send one row of them, or as many as of the other inputs. A compiled graph takes one row too, and then computes
what depends on them alone once; the published graph takes as many rows as the request has.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from tidegate_dataplane.batching.arrays import Array, Inputs
from tidegate_dataplane.runner_interface import EQUAL, SENT, SHARED


class RowsError(ValueError):
    """The numbers of rows of a request do not fit together."""


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """The inputs for the graph; `way` is how the one row of the shared inputs came about, empty if they have all rows."""

    inputs: Inputs
    way: str = ""


class SharedInputs:
    """Prepares the requests of one model version.

    `names` are the inputs that have equal rows in most requests, and `single` the inputs for which the graph also accepts one row: all
    of them at once, so that it gets all rows if `names` lacks one.
    """

    def __init__(self, names: Sequence[str], single: Collection[str], max_rows: int) -> None:
        self.names, self._max_rows = names, max_rows
        self._single = frozenset(single) if set(single) <= set(names) else frozenset[str]()
        self._counts = {SENT: 0, EQUAL: 0}

    def prepare_request(self, inputs: Inputs) -> PreparedRequest:
        """Return inputs for the graph: one row of the shared ones if it takes that and the request allows it, else all rows.

        A request of no rows has no row of them either, so that its answer cannot depend on one.

        Raises:
            RowsError: the numbers of rows do not fit together, or there are too many.
        """
        rows = self._count_rows(inputs)
        way = self._find_way(inputs) if self._single and rows > 1 else ""
        single = self._single if way else frozenset[str]()
        prepared = {
            name: array[:1] if name in single else _repeat_row(array, rows) if name in self.names else array
            for name, array in inputs.items()
        }
        return PreparedRequest(prepared, way)

    def count_answer(self, request: PreparedRequest) -> None:
        """Count a request that was answered."""
        if request.way:
            self._counts[request.way] += 1

    def read_counters(self) -> dict[tuple[str, str], int]:
        """Return how many requests of several rows were answered from one row of the shared inputs, by how it came about."""
        return {(SHARED, way): count for way, count in self._counts.items()}

    def _count_rows(self, inputs: Inputs) -> int:
        """Return the rows of the inputs that are not shared; raise RowsError if those of all do not fit together."""
        own = {name: len(array) for name, array in inputs.items() if name not in self.names}
        first = next(iter(own))
        for name, rows in own.items():
            if rows != own[first]:
                raise RowsError(
                    f"input {name!r} has {rows} rows, and {first!r} has {own[first]}: only shared inputs may have one row "
                    f"({', '.join(self.names)})"
                )
        for name in self.names:
            if len(inputs[name]) not in (1, own[first]):
                raise RowsError(
                    f"shared input {name!r} has {len(inputs[name])} rows: send one, or as many as {first!r} has, {own[first]}"
                )
        if own[first] > self._max_rows:
            raise RowsError(
                f"the request has {own[first]} rows, and spec.batching.maxBatchSize is {self._max_rows}: send fewer, or raise it"
            )
        return own[first]

    def _find_way(self, inputs: Inputs) -> str:
        """Return how each shared input has one row, sent or found; empty if the rows of one differ."""
        arrays = [inputs[name] for name in self.names]
        if all(len(array) == 1 for array in arrays):
            return SENT
        return EQUAL if all(map(_has_equal_rows, arrays)) else ""


def _has_equal_rows(array: Array) -> bool:
    """Return whether all rows are equal bit for bit: 0.0 and -0.0 have different answers in some graphs."""
    if array.dtype != object:
        array = np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")
    # Most requests with different rows are found out by two of them.
    return bool(np.array_equal(array[0], array[-1]) and (array[1:] == array[:1]).all())


def _repeat_row(array: Array, rows: int) -> Array:
    return array if len(array) == rows else np.repeat(array, rows, axis=0)
