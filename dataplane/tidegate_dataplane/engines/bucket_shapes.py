"""Shapes of requests, the buckets that they are padded to, and how often each shape was missed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from tidegate_dataplane.batching.arrays import Array, pad_rows

BucketShape = tuple[tuple[str, tuple[int, ...]], ...]
"""Name and whole shape of each input, in the model's order."""

ROWS = "rows"
LENGTH = "length"
MAX_GROWTH = 2
"""How many times the elements of a request its bucket may have, unless the bucket was listed."""
MAX_MISSED = 256
"""Shapes that are counted at once; those that came once are dropped first."""
HALVE_EVERY = 16 * MAX_MISSED
"""Misses after which those that came seldom make room, so that as many shapes as are counted can come often before."""


@dataclass(frozen=True, slots=True)
class BucketSizes:
    """Sizes that dimensions are rounded up to; empty: buckets are the shapes that come often."""

    rows: tuple[int, ...] = ()
    lengths: tuple[int, ...] = ()


class ShapeRounding:
    """Rounds the free dimensions of a request up to the listed sizes.

    `free` tells for each input which dimensions the model leaves to the request. The first is that of the rows.
    """

    def __init__(self, sizes: BucketSizes, free: Mapping[str, Sequence[bool]]) -> None:
        self._sizes, self._free = sizes, free

    def round_shape(self, shape: BucketShape, unpadded: frozenset[str]) -> BucketShape | None:
        """Return the bucket that a request of this shape should have; None beyond the largest sizes."""
        rounded: list[tuple[str, tuple[int, ...]]] = []
        rows = count_rows(shape)
        for name, sizes in shape:
            free = self._free.get(name, ())
            row: list[int] = []
            for axis, size in enumerate(sizes):
                kind = LENGTH if axis else ROWS
                listed = self._sizes.lengths if axis else self._sizes.rows
                # One row beside more is one for all of them.
                is_shared = axis == 0 and size == 1 < rows
                is_fixed = axis >= len(free) or not free[axis] or kind in unpadded or is_shared
                target = size if is_fixed or not listed else _round_up(size, listed)
                if target is None:
                    return None
                row.append(target)
            rounded.append((name, tuple(row)))
        return tuple(rounded)


class MissedShapes:
    """How often buckets were missed, in bounded memory: when it is full, all counts are halved now and then, and ones go."""

    def __init__(self) -> None:
        self._counts: dict[BucketShape, int] = {}
        self._since_halved = 0

    @property
    def is_full(self) -> bool:
        """Return whether another shape is not counted before there is room."""
        return len(self._counts) >= MAX_MISSED

    def count_miss(self, bucket: BucketShape) -> None:
        """Count one request."""
        self._since_halved += 1
        if bucket not in self._counts and self.is_full and self._since_halved >= HALVE_EVERY:
            self._counts = {shape: count // 2 for shape, count in self._counts.items() if count > 1}
            self._since_halved = 0
        if bucket in self._counts or not self.is_full:
            self._counts[bucket] = self._counts.get(bucket, 0) + 1

    def list_frequent(self, min_count: int) -> list[tuple[BucketShape, int]]:
        """Return the buckets that were missed at least `min_count` times, the most frequent first."""
        frequent = [(shape, count) for shape, count in list(self._counts.items()) if count >= min_count]
        return sorted(frequent, key=lambda entry: -entry[1])


def read_shape(inputs: Mapping[str, Array]) -> BucketShape:
    """Return the shape of a request."""
    return tuple((name, array.shape) for name, array in inputs.items())


def count_rows(shape: BucketShape) -> int:
    """Return the number of rows of a request; some of its inputs may have only one row."""
    return max((sizes[0] for _, sizes in shape if sizes), default=0)


def count_elements(shape: BucketShape) -> int:
    """Return the number of elements of all inputs."""
    return sum(prod(sizes) for _, sizes in shape)


def find_padding(shape: BucketShape, bucket: BucketShape) -> frozenset[str] | None:
    """Return which kinds of dimensions are padded to get from a shape to a bucket; None if the bucket does not cover it."""
    kinds: set[str] = set()
    for (name, sizes), (other, targets) in zip(shape, bucket, strict=False):
        if name != other or len(sizes) != len(targets):
            return None
        for axis, (size, target) in enumerate(zip(sizes, targets, strict=True)):
            if size > target or size == 0:
                return None
            if size < target:
                kinds.add(LENGTH if axis else ROWS)
    return frozenset(kinds) if len(shape) == len(bucket) else None


def pad_inputs(inputs: Mapping[str, Array], bucket: BucketShape) -> dict[str, Array]:
    """Return the request with its last row repeated, and zeros or empty strings at the end of other dimensions."""
    return {name: _pad_array(inputs[name], targets) for name, targets in bucket}


def cut_rows(outputs: Sequence[Array], rows: int, padded_rows: int) -> list[Array]:
    """Return the outputs without the padded rows."""
    return [
        output[:rows] if output.ndim and len(output) == padded_rows and rows < padded_rows else output
        for output in outputs
    ]


def _pad_array(array: Array, targets: tuple[int, ...]) -> Array:
    if array.shape == targets:
        return array
    array = pad_rows(array, targets[1:])
    missing = targets[0] - len(array)
    return np.concatenate([array, np.repeat(array[-1:], missing, axis=0)]) if missing else array


def _round_up(size: int, listed: Sequence[int]) -> int | None:
    return next((target for target in listed if target >= size), None)
