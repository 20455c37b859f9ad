"""Map entity keys to row numbers of a table: vectorised and exact, with a row for unknown keys."""

from collections import Counter
from collections.abc import Sequence
from itertools import repeat
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tidegate_dataplane.features.errors import FeatureError

Rows = npt.NDArray[np.intp]

# A range of keys this many times wider than their number is still worth one array entry per possible key.
DENSE_FACTOR = 4


class KeyIndex(Protocol):
    """Row numbers by key; in a table of n rows, an unknown key has row n."""

    def find_rows(self, keys: npt.NDArray[np.generic]) -> Rows:
        """Return the row of each key; keys [n], result [n]."""
        ...


class IntegerIndex:
    """An index of int64 keys: a direct table if the keys are dense, else a sorted array with binary search."""

    def __init__(self, keys: npt.NDArray[np.int64], table: str) -> None:
        self._unknown = len(keys)
        self._order = np.argsort(keys, kind="stable")
        self._sorted = keys[self._order]
        duplicates = np.unique(self._sorted[1:][self._sorted[1:] == self._sorted[:-1]])
        _refuse_duplicates([str(key) for key in duplicates[:3]], len(duplicates), table)
        self._first = int(self._sorted[0]) if len(keys) else 0
        span = int(self._sorted[-1]) - self._first + 1 if len(keys) else 0
        self._dense: Rows | None = None
        if len(keys) and span <= DENSE_FACTOR * len(keys) + 1024:
            self._dense = np.full(span, self._unknown, dtype=np.intp)
            self._dense[self._sorted - self._first] = self._order

    def find_rows(self, keys: npt.NDArray[np.generic]) -> Rows:
        """Return the row of each key; int64 [n] in, [n] out."""
        if self._unknown == 0:
            return np.zeros(len(keys), dtype=np.intp)
        integers = keys.astype(np.int64, copy=False)
        if self._dense is not None:
            last = self._first + len(self._dense) - 1
            inside = (integers >= self._first) & (integers <= last)
            rows = self._dense[np.where(inside, integers, self._first) - self._first]
            return np.where(inside, rows, self._unknown)
        positions = np.minimum(np.searchsorted(self._sorted, integers), self._unknown - 1)
        return np.where(self._sorted[positions] == integers, self._order[positions], self._unknown)


class StringIndex:
    """An index of UTF-8 keys: a dictionary."""

    def __init__(self, keys: Sequence[bytes], table: str) -> None:
        self._rows = {key: row for row, key in enumerate(keys)}
        self._unknown = len(keys)
        if len(self._rows) != len(keys):
            names = [key.decode(errors="replace") for key, count in Counter(keys).items() if count > 1]
            _refuse_duplicates(names[:3], len(names), table)

    def find_rows(self, keys: npt.NDArray[np.generic]) -> Rows:
        """Return the row of each key; object array of bytes [n] in, [n] out."""
        rows = map(self._rows.get, keys.tolist(), repeat(self._unknown))
        return np.fromiter(rows, dtype=np.intp, count=len(keys))


def _refuse_duplicates(examples: Sequence[str], number: int, table: str) -> None:
    if number:
        raise FeatureError(
            f"table {table!r} has {number} keys in more than one row, such as {', '.join(examples)}: "
            "a lookup needs one row per key"
        )
