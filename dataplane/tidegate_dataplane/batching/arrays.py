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

_TOLERANCES = {"float16": 2e-2, "float32": 1e-4, "float64": 1e-6}


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
        name: np.concatenate([_pad_rows(inputs[name], row) for inputs in requests])
        for name, row in zip(requests[0], shape, strict=True)
    }


def split_answer(answer: Answer, rows: Sequence[int]) -> list[Answer] | None:
    """Return the answer of each request of so many rows; None if an output does not have one row for each row of the inputs."""
    if isinstance(answer, Exception) or any(
        output.ndim == 0 or len(output) != sum(rows) for output in answer
    ):
        return None
    ends = np.cumsum(rows)[:-1]
    parts = [np.split(output, ends) for output in answer]
    return [[part[position] for part in parts] for position in range(len(rows))]


def is_same_answer(expected: Answer, answer: Answer) -> bool:
    """Return whether the numbers are equal but for rounding: kernels differ with the number of rows.

    The bound is a share of the largest number of the output: 1e-4 for float32, 2e-2 for float16, 1e-6 for float64.
    """
    if isinstance(expected, Exception) or isinstance(answer, Exception):
        return False
    return all(map(_is_close, expected, answer))


def _pad_rows(array: Array, row: tuple[int, ...]) -> Array:
    if array.shape[1:] == row:
        return array
    padded = np.full((len(array), *row), "" if array.dtype == object else 0, dtype=array.dtype)
    padded[tuple(slice(size) for size in array.shape)] = array
    return padded


def _is_close(expected: Array, answer: Array) -> bool:
    if expected.shape != answer.shape or expected.dtype != answer.dtype:
        return False
    tolerance = _TOLERANCES.get(expected.dtype.name)
    if tolerance is None or expected.size == 0:
        return bool(np.array_equal(expected, answer))
    finite = np.isfinite(expected)
    if not np.array_equal(expected[~finite], answer[~finite], equal_nan=True):
        return False
    wide = expected[finite].astype(np.float64)
    largest = np.abs(wide).max(initial=0.0)
    return bool((np.abs(wide - answer[finite].astype(np.float64)) <= tolerance * largest).all())
