"""The form of stored events: for each key the rows of its newest events, in the order of their times.

A row is 8 bytes for the time in milliseconds since 1970 and 8 bytes for each field, little-endian: an int64, a float64, or
the hash of a string. Rows of the same time are in the order of their fields, so that the order in which events arrive
leaves no trace.
"""

from collections.abc import Sequence
from hashlib import blake2b
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from tidegate_dataplane.contract import EntityKeyType, EventField, EventFieldType

CELL: Final = 8
"""Bytes of the time and of each field."""
CELL_TYPES: Final = {
    EventFieldType.INT64: np.dtype("<i8"),
    EventFieldType.FLOAT64: np.dtype("<f8"),
    EventFieldType.STRING: np.dtype("<u8"),
}
TIME: Final = np.dtype("<i8")
KEY_DIGEST_BYTES: Final = 16

Cells = npt.NDArray[np.int64]


def count_row_bytes(fields: Sequence[EventField]) -> int:
    """Return the size of a row."""
    return CELL * (1 + len(fields))


def encode_integer(key: int) -> bytes:
    """Return the form of an int64 key in the store."""
    return key.to_bytes(CELL, "big", signed=True)


def encode_text(key: bytes) -> bytes:
    """Return the form of a string's key in the store, whatever its length."""
    return blake2b(key, digest_size=KEY_DIGEST_BYTES).digest()


def encode_keys(keys: npt.NDArray[np.generic], key_type: EntityKeyType) -> list[bytes]:
    """Return the form of each key in the store; int64 or bytes objects [n] in."""
    if key_type is EntityKeyType.STRING:
        return [encode_text(key) for key in keys.tolist()]
    raw = keys.astype(">i8").tobytes()
    return [raw[start : start + CELL] for start in range(0, len(raw), CELL)]


def read_time(rows: bytes, start: int) -> int:
    """Return the time of the row that begins at `start`."""
    return int.from_bytes(rows[start : start + CELL], "little", signed=True)


def merge_rows(
    stored: bytes, added: Sequence[bytes], *, row_bytes: int, limit: int, after_ms: int, now_ms: int
) -> bytes:
    """Return the newest `limit` rows of both that are later than `after_ms` and not later than `now_ms`, and rows of the future.

    No feature sees a row of the future yet, so that it must not displace one that features see; there are at most `limit`.
    What features see is the same in whatever order and portions rows are added.
    """
    merged = b"".join((stored, *sorted(added, key=_read_first_time)))
    if not _is_sorted(stored, merged, row_bytes):
        merged = sort_rows(merged, row_bytes)
    future, end = 0, len(merged)
    while end and read_time(merged, end - row_bytes) > now_ms:
        end -= row_bytes
        future += 1
    merged = merged[: end + min(future, limit) * row_bytes]
    start = max(end - limit * row_bytes, 0)
    while start < len(merged) and read_time(merged, start) <= after_ms:
        start += row_bytes
    return merged[start:]


def sort_rows(rows: bytes, row_bytes: int) -> bytes:
    """Return rows in the order of their times and fields."""
    cells = np.frombuffer(rows, dtype=TIME).reshape(-1, row_bytes // CELL)
    return cells[order_cells(cells)].tobytes()


def order_cells(cells: Cells) -> npt.NDArray[np.intp]:
    """Return the positions that sort rows [n, 1 + fields] by time and fields."""
    return np.lexsort(cells.T[::-1])


def _read_first_time(row: bytes) -> int:
    return read_time(row, 0)


def _is_sorted(stored: bytes, merged: bytes, row_bytes: int) -> bool:
    """Return whether times increase from the last stored row on; equal ones are left to the sort."""
    first = max(len(stored) - row_bytes, 0)
    times = [read_time(merged, start) for start in range(first, len(merged), row_bytes)]
    return all(earlier < later for earlier, later in pairwise(times))
