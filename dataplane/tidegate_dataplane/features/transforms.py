"""Operations on one number per row."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[Any]


def assign_buckets(
    values: Numbers, present: npt.NDArray[np.bool_], boundaries: Sequence[float]
) -> npt.NDArray[np.int64]:
    """Return the number of boundaries at or below each value, 0 for an absent value; [n] in, int64 [n] out."""
    if np.issubdtype(values.dtype, np.integer):
        # Compare integers, so that no id above 2**53 is rounded: value >= boundary is value >= ceil(boundary).
        limits = [math.ceil(boundary) for boundary in boundaries]
        low, high = int(np.iinfo(np.int64).min), int(np.iinfo(np.int64).max)
        edges = np.array([max(limit, low) for limit in limits if limit <= high], dtype=np.int64)
        buckets = np.searchsorted(edges, values.astype(np.int64, copy=False), side="right")
    else:
        numbers = values.astype(np.float64, copy=False)
        buckets = np.searchsorted(np.array(boundaries, dtype=np.float64), numbers, side="right")
        present = present & ~np.isnan(numbers)
    return np.where(present, buckets, 0).astype(np.int64)


def take_logarithm(values: Numbers) -> npt.NDArray[np.float64]:
    """Return the natural logarithm of 1 + each value, in which negative values and NaN count as 0."""
    numbers = values.astype(np.float64)
    return np.log1p(np.where(numbers > 0, numbers, 0.0))


def clip_values(values: Numbers, minimum: float, maximum: float) -> Numbers:
    """Return each value within the bounds, of the same kind; NaN becomes `minimum`."""
    if np.issubdtype(values.dtype, np.integer):
        low, high = _to_int64(math.ceil(minimum)), _to_int64(math.floor(maximum))
        return np.clip(values.astype(np.int64, copy=False), low, high)
    numbers = values.astype(np.float64)
    return np.clip(np.where(np.isnan(numbers), minimum, numbers), minimum, maximum)


def _to_int64(bound: int) -> int:
    limits = np.iinfo(np.int64)
    return min(max(bound, int(limits.min)), int(limits.max))
