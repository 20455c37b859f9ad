"""Read a plan's columns from Parquet tables into arrays with one more row for unknown keys."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]  # publishes no types
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from tidegate_dataplane.contract import Entity, EntityKeyType, Lookup, LookupType
from tidegate_dataplane.features import hashing
from tidegate_dataplane.features.columns import decode_column, is_text
from tidegate_dataplane.features.errors import FeatureError
from tidegate_dataplane.features.index import IntegerIndex, KeyIndex, StringIndex

NUMPY_TYPES: dict[LookupType, type[np.generic]] = {LookupType.INT64: np.int64, LookupType.FLOAT32: np.float32}
BLOCK_ROWS = 16_384
"""Rows whose lists are decoded at once; it bounds the memory for that."""
INT64_MAX = np.iinfo(np.int64).max


class LoadedTable:
    """A table in memory: the row of each key, and the columns."""

    def __init__(self, name: str, content: Any, index: KeyIndex) -> None:
        self._name = name
        self._content = content
        self.index = index

    @property
    def row_count(self) -> int:
        """Return the number of rows, which is also the row of unknown keys."""
        return int(self._content.num_rows)

    def look_up_values(self, feature: Lookup) -> npt.NDArray[np.generic]:
        """Return the feature's value for each row, [rows + 1, k]; the last row has the default."""
        default = _parse_default(feature)
        dtype = NUMPY_TYPES[feature.type]
        column = self._read_column(feature.field.column)
        values = np.full((self.row_count + 1, feature.length or 1), default, dtype=dtype)
        if feature.length is None:
            flat, present = self._read_scalars(column, feature.field.column, feature.type)
            values[:-1, 0] = np.where(present, flat, default).astype(dtype)
            return values
        if not _is_list(column.type):
            raise self._wrong_type(feature.field.column, column.type, "a lookup with a length needs a list")
        for start in range(0, self.row_count, BLOCK_ROWS):
            block = column.slice(start, BLOCK_ROWS)
            self._fill_lists(values[start : start + len(block)], block, feature)
        return values

    def _fill_lists(self, values: npt.NDArray[np.generic], column: Any, feature: Lookup) -> None:
        """Write the first elements of each list into its row of `values`, [rows, k], which holds defaults."""
        offsets = column.offsets.to_numpy()
        elements = column.values.slice(offsets[0], offsets[-1] - offsets[0])
        flat, present = self._read_scalars(elements, feature.field.column, feature.type)
        starts, ends = offsets[:-1] - offsets[0], offsets[1:] - offsets[0]
        # A null list counts as an empty one.
        ends = np.where(np.asarray(column.is_valid()), ends, starts)
        positions = starts[:, None] + np.arange(values.shape[1])
        inside = positions < ends[:, None]
        inside[inside] = present[positions[inside]]
        values[inside] = flat[positions[inside]].astype(values.dtype)

    def read_numbers(self, column_name: str) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
        """Return (values [rows + 1], present [rows + 1]) of a numeric column, int64 or float64; the last is absent."""
        column = self._read_column(column_name)
        if pa.types.is_floating(column.type):
            values, present = self._read_scalars(column, column_name, LookupType.FLOAT32)
        else:
            values, present = self._read_scalars(column, column_name, LookupType.INT64)
        return np.append(values, values.dtype.type(0)), np.append(present, False)

    def hash_column(self, column_name: str) -> hashing.Hashes:
        """Return the hash of each row's value, [rows + 1]; nulls and the last row have that of a missing value."""
        column = self._read_column(column_name)
        if is_text(column.type):
            texts: Iterable[bytes | None] = pc.cast(column, pa.large_binary()).to_pylist()
            present = np.asarray(column.is_valid())
            values = hashing.hash_strings(text or b"" for text in texts)
            values, present = np.append(values, np.uint64(0)), np.append(present, False)
        else:
            numbers, present = self.read_numbers(column_name)
            floating = numbers.dtype == np.float64
            values = hashing.hash_floats(numbers) if floating else hashing.hash_integers(numbers)
        return np.where(present, values, np.uint64(hashing.MISSING))

    def _read_column(self, name: str) -> Any:
        return decode_column(self._content.column(name))

    def _read_scalars(
        self, column: Any, name: str, value_type: LookupType
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
        """Return (int64 or float64 values, present); absent values are 0."""
        column_type = column.type
        integral = pa.types.is_integer(column_type) or pa.types.is_boolean(column_type)
        if value_type is LookupType.INT64 and not integral:
            raise self._wrong_type(name, column_type, "integers are needed")
        if not integral and not pa.types.is_floating(column_type):
            raise self._wrong_type(name, column_type, "numbers are needed")
        present = np.asarray(column.is_valid())
        cast_type = pa.int64() if value_type is LookupType.INT64 or integral else pa.float64()
        try:
            filled = pc.fill_null(pc.cast(column, cast_type), 0)
        except pa.ArrowInvalid as error:
            raise FeatureError(f"table {self._name!r}, column {name!r}: {error}") from error
        return np.asarray(filled), present

    def _wrong_type(self, column: str, kind: Any, need: str) -> FeatureError:
        return FeatureError(f"table {self._name!r}, column {column!r} holds {kind}, and {need}")


def read_table(path: Path, name: str, entity: Entity, columns: Iterable[str]) -> LoadedTable:
    """Read the key and the named columns of a Parquet file, or of all in a folder.

    Raises:
        FeatureError: a file is not Parquet, a column is missing, or a key is null, duplicate or of another type.
    """
    names = sorted({entity.key, *columns})
    count_rows(path, name, names)
    try:
        content = pq.read_table(path, columns=names)
    except (pa.ArrowException, OSError) as error:
        raise _unreadable_table(name, error) from error
    return load_table(content, name, entity)


def load_table(content: Any, name: str, entity: Entity) -> LoadedTable:
    """Return the table of an Arrow table, which has the key's column.

    Raises:
        FeatureError: a key is null, duplicate or of another type.
    """
    return LoadedTable(name, content, _make_index(content.column(entity.key), name, entity))


def release_memory() -> None:
    """Return to the system what was used to read tables that are no longer referenced.

    Arrow's pool would keep it: several times what features gather from.
    """
    pa.default_memory_pool().release_unused()


def count_rows(path: Path, name: str, columns: Iterable[str]) -> int:
    """Return the number of rows of a Parquet file, or of all in a folder, reading no more than its metadata.

    Raises:
        FeatureError: a file is not Parquet, or one of the columns is missing.
    """
    try:
        dataset = pq.ParquetDataset(path)
        available = dataset.schema.names
        missing = [column for column in sorted(columns) if column not in available]
        if missing:
            raise FeatureError(
                f"table {name!r} has no column {missing[0]!r}; it has {', '.join(sorted(available)[:50])}"
            )
        return sum(fragment.count_rows() for fragment in dataset.fragments)
    except (pa.ArrowException, OSError) as error:
        raise _unreadable_table(name, error) from error


def _unreadable_table(name: str, error: Exception) -> FeatureError:
    return FeatureError(f"table {name!r} cannot be read as Parquet: {error}")


def _make_index(column: Any, table: str, entity: Entity) -> KeyIndex:
    keys = decode_column(column)
    if keys.null_count:
        raise FeatureError(
            f"table {table!r}, key column {entity.key!r} has {keys.null_count} nulls of {len(keys)} rows"
        )
    if entity.type is EntityKeyType.INT64:
        if not pa.types.is_integer(keys.type):
            raise FeatureError(
                f"table {table!r}, key column {entity.key!r} holds {keys.type}, and entity {entity.name!r} has int64 keys"
            )
        try:
            return IntegerIndex(np.asarray(pc.cast(keys, pa.int64())), table)
        except pa.ArrowInvalid as error:
            raise FeatureError(f"table {table!r}, key column {entity.key!r}: {error}") from error
    if not is_text(keys.type):
        raise FeatureError(
            f"table {table!r}, key column {entity.key!r} holds {keys.type}, and entity {entity.name!r} has string keys"
        )
    return StringIndex(pc.cast(keys, pa.large_binary()).to_pylist(), table)


def _parse_default(feature: Lookup) -> int | float:
    try:
        value = int(feature.default) if feature.type is LookupType.INT64 else float(feature.default)
    except ValueError as error:
        raise FeatureError(
            f"feature {feature.name!r} has the default {feature.default!r}, which is no {feature.type}"
        ) from error
    if feature.type is LookupType.INT64 and not -INT64_MAX - 1 <= value <= INT64_MAX:
        raise FeatureError(
            f"feature {feature.name!r} has the default {feature.default}, which does not fit int64"
        )
    return value


def _is_list(kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))
