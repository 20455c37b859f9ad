"""Inputs and answers of one request, and how several become one."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Inputs = Mapping[str, Array]
"""Arrays by the name of the input, all with the same number of rows."""
Answer = list[Array] | Exception
"""The outputs in the model's order, or the error that ONNX Runtime raised."""
Shape = tuple[tuple[int, ...], ...]
"""The shape of one row of each input."""

TOLERANCES = {"float16": 2e-2, "float32": 1e-4, "float64": 1e-6}


def count_rows(inputs: Inputs) -> int:
    """Return the number of rows of a request."""
    return len(next(iter(inputs.values())))


def read_shape(inputs: Inputs) -> Shape:
    """Return the shape of a row of each input."""
    return tuple(array.shape[1:] for array in inputs.values())


def find_common_shape(shapes: Sequence[Shape]) -> Shape | None:
    """Return the smallest shape that covers all of them; None if an input has different numbers of dimensions."""
    covering: list[tuple[int, ...]] = []
    for sizes in zip(*shapes, strict=True):
        if len({len(size) for size in sizes}) > 1:
            return None
        covering.append(tuple(max(dimension) for dimension in zip(*sizes, strict=True)))
    return tuple(covering)


def join_inputs(requests: Sequence[Inputs], shape: Shape) -> dict[str, Array]:
    """Return the rows of all requests as one, padded at the end to `shape` with zeros or empty strings."""
    return {
        name: np.concatenate([pad_rows(inputs[name], row) for inputs in requests])
        for name, row in zip(requests[0], shape, strict=True)
    }


def split_answer(answer: Answer, rows: Sequence[int]) -> list[Answer] | None:
    """Return the answer of each request, by its number of rows; None if an output does not have one row for each row of the inputs."""
    if isinstance(answer, Exception) or any(
        output.ndim == 0 or len(output) != sum(rows) for output in answer
    ):
        return None
    ends = np.cumsum(rows)[:-1]
    parts = [np.split(output, ends) for output in answer]
    return [[part[position] for part in parts] for position in range(len(rows))]


class OutputScales:
    """The largest numbers of each output that were seen, by the place in a row: a price beside a share has its own."""

    def __init__(self, tolerances: Mapping[str, float] = TOLERANCES) -> None:
        self._tolerances = tolerances
        self._largest: dict[int, Array] = {}

    def is_same_answer(self, expected: Answer, answer: Answer) -> bool:
        """Return whether the numbers are equal but for rounding: kernels differ with the number of rows.

        The bound is a share of the largest number, by default 1e-4 for float32, 2e-2 for float16, 1e-6 for float64.
        """
        if isinstance(expected, Exception) or isinstance(answer, Exception):
            return False
        return all(
            self._is_close(number, one_output, answer[number]) for number, one_output in enumerate(expected)
        )

    def _is_close(self, number: int, expected: Array, answer: Array) -> bool:
        if expected.shape != answer.shape or expected.dtype != answer.dtype:
            return False
        tolerance = self._tolerances.get(expected.dtype.name)
        if tolerance is None or expected.size == 0:
            return bool(np.array_equal(expected, answer))
        finite = np.isfinite(expected)
        if not np.array_equal(expected[~finite], answer[~finite], equal_nan=True):
            return False
        wide = np.where(finite, expected, 0).astype(np.float64)
        bound = tolerance * self._update_scale(number, np.abs(wide).max(axis=0))
        return bool((np.abs(wide - np.where(finite, answer, 0).astype(np.float64)) <= bound).all())

    def _update_scale(self, number: int, largest: Array) -> Array:
        """Return the largest numbers so far; one for the output if its rows have different shapes."""
        before = self._largest.get(number, largest)
        if before.shape != largest.shape:
            before, largest = before.max(initial=0.0), largest.max(initial=0.0)
        self._largest[number] = np.maximum(before, largest)
        return self._largest[number]


def are_all_equal(requests: Sequence[Inputs]) -> bool:
    """Return whether all requests have the same inputs, so that joining them shows nothing."""
    return all(
        np.array_equal(array, inputs[name]) for inputs in requests[1:] for name, array in requests[0].items()
    )


def pad_rows(array: Array, row: tuple[int, ...]) -> Array:
    """Return rows padded at the end of their dimensions to the shape `row`, with zeros or empty strings."""
    if array.shape[1:] == row:
        return array
    padded = np.full((len(array), *row), "" if array.dtype == object else 0, dtype=array.dtype)
    padded[tuple(slice(size) for size in array.shape)] = array
    return padded
