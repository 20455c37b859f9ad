"""Read a plan's columns of a table from Parquet, one block of rows after the other."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]  # publishes no types
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.dataset as ds  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from tidegate_dataplane.contract import Entity, Lookup, LookupType
from tidegate_dataplane.features import hashing, transforms
from tidegate_dataplane.features.columns import decode_column, is_text
from tidegate_dataplane.features.errors import FeatureError
from tidegate_dataplane.features.table_layout import NUMPY_TYPES, StoredFeature, parse_default

BLOCK_ROWS = 8_192
"""Rows that are decoded at once, at most."""
BLOCK_BYTES = 8 << 20
"""Bytes of the rows that are decoded at once; with BLOCK_ROWS, it bounds the memory for that."""
_READ_BYTES = 1 << 20
"""Bytes of a column that are read at once."""


class ParquetRows:
    """The rows of a Parquet file, or of all in a folder."""

    def __init__(self, path: Path, name: str) -> None:
        self._path = path
        self._name = name

    def count_rows(self, columns: Sequence[str]) -> int:
        """Return the number of rows, reading no more than metadata.

        Raises:
            FeatureError: a file is not Parquet, or one of the columns is missing.
        """
        try:
            dataset = self._open_dataset()
            available = dataset.schema.names
            missing = [column for column in sorted(columns) if column not in available]
            if missing:
                raise FeatureError(
                    f"table {self._name!r} has no column {missing[0]!r}; it has {', '.join(sorted(available)[:50])}"
                )
            return sum(fragment.count_rows() for fragment in dataset.fragments)
        except (pa.ArrowException, OSError) as error:
            raise self._unreadable(error) from error

    def read_blocks(self, columns: Sequence[str], block_rows: int) -> Iterator[Any]:
        """Yield the rows in order, as record batches of at most `block_rows`, the first of which is empty.

        All have the types of the first file, and nulls for columns that a later file does not have.

        Raises:
            FeatureError: a file is damaged, or has values that do not fit the types.
        """
        try:
            dataset = self._open_dataset()
            schema = pa.schema([dataset.schema.field(column) for column in columns])
            yield pa.RecordBatch.from_pylist([], schema=schema)
            for fragment in dataset.fragments:
                yield from _read_fragment(fragment, schema, block_rows)
        except pa.ArrowMemoryError:
            raise
        except (pa.ArrowException, OSError) as error:
            raise self._unreadable(error) from error

    def _open_dataset(self) -> Any:
        return pq.ParquetDataset(self._path)

    def _unreadable(self, error: Exception) -> FeatureError:
        return FeatureError(f"table {self._name!r} cannot be read as Parquet: {error}")


def count_block_rows(row_bytes: int) -> int:
    """Return how many rows of a width in bytes are decoded at once."""
    return max(min(BLOCK_ROWS, BLOCK_BYTES // max(row_bytes, 1)), 1)


def _read_fragment(fragment: Any, schema: Any, block_rows: int) -> Iterator[Any]:
    """Yield the rows of one file; columns that are in the names of its folders have one value."""
    named = ds.get_partition_keys(fragment.partition_expression)
    # Fragments, and files with pre_buffer, read the columns of a row group at once.
    with pq.ParquetFile(fragment.path, pre_buffer=False, buffer_size=_READ_BYTES) as file:
        available = set(file.schema_arrow.names)
        stored = [name for name in schema.names if name in available and name not in named]
        rows = min(block_rows, count_block_rows(_measure_row(file.metadata, stored)))
        for batch in file.iter_batches(batch_size=rows, columns=stored, use_threads=False):
            columns = [_take_column(batch, field, named) for field in schema]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _take_column(batch: Any, field: Any, named: Mapping[str, Any]) -> Any:
    """Return a column of a batch with the type of the table's."""
    if field.name in named:
        return pa.array([named[field.name]] * batch.num_rows, field.type)
    if field.name not in batch.schema.names:
        return pa.nulls(batch.num_rows, field.type)
    column = batch.column(field.name)
    return column if column.type == field.type else pc.cast(column, field.type)


def _measure_row(metadata: Any, columns: Sequence[str]) -> int:
    """Return the bytes of a row with these columns, of 8 bytes per value or element of a list, on average."""
    paths = [metadata.schema.column(index).path for index in range(metadata.num_columns)]
    chosen = [
        index
        for index, path in enumerate(paths)
        if any(f"{path}.".startswith(f"{name}.") for name in columns)
    ]
    values = sum(
        metadata.row_group(group).column(index).num_values
        for group in range(metadata.num_row_groups)
        for index in chosen
    )
    return int(8 * values // max(metadata.num_rows, 1))


class TableBlock:
    """Some rows of a table, as a record batch of Arrow."""

    def __init__(self, content: Any, table: str) -> None:
        self._content = content
        self._name = table

    @property
    def row_count(self) -> int:
        """Return the number of rows."""
        return int(self._content.num_rows)

    def count_nulls(self, column_name: str) -> int:
        """Return the number of nulls in a column."""
        return int(self._read_column(column_name).null_count)

    def measure_text(self, column_name: str) -> int:
        """Return the bytes of the longest text of a column; 0 if it holds none."""
        column = self._read_column(column_name)
        if not is_text(column.type):
            return 0
        lengths = pc.call_function("binary_length", [pc.cast(column, pa.large_binary())])
        return int(np.asarray(pc.fill_null(lengths, 0)).max(initial=0))

    def read_integer_keys(self, entity: Entity) -> npt.NDArray[np.int64]:
        """Return the int64 key of each row, 0 for nulls.

        Raises:
            FeatureError: the column has another type, or integers beyond int64.
        """
        keys = self._read_column(entity.key)
        if not pa.types.is_integer(keys.type):
            raise FeatureError(
                f"table {self._name!r}, key column {entity.key!r} holds {keys.type}, and entity {entity.name!r} has int64 keys"
            )
        try:
            return np.ascontiguousarray(pc.fill_null(pc.cast(keys, pa.int64()), 0))
        except pa.ArrowInvalid as error:
            raise FeatureError(f"table {self._name!r}, key column {entity.key!r}: {error}") from error

    def read_text_keys(self, entity: Entity) -> Sequence[bytes]:
        """Return the UTF-8 key of each row, empty for nulls; FeatureError if the column has another type."""
        keys = self._read_column(entity.key)
        if not is_text(keys.type):
            raise FeatureError(
                f"table {self._name!r}, key column {entity.key!r} holds {keys.type}, and entity {entity.name!r} has string keys"
            )
        return list(pc.fill_null(pc.cast(keys, pa.large_binary()), b"").to_pylist())

    def compute_values(self, feature: StoredFeature) -> npt.NDArray[np.generic]:
        """Return the feature's value for each row, [rows, k]."""
        if isinstance(feature, Lookup):
            return self._look_up_values(feature)
        values, present = self.read_numbers(feature.field.column)
        return transforms.assign_buckets(values, present, feature.boundaries)[:, None]

    def _look_up_values(self, feature: Lookup) -> npt.NDArray[np.generic]:
        default = parse_default(feature)
        dtype = NUMPY_TYPES[feature.type]
        column = self._read_column(feature.field.column)
        values = np.full((self.row_count, feature.length or 1), default, dtype=dtype)
        if feature.length is None:
            flat, present = self._read_scalars(column, feature.field.column, feature.type)
            values[:, 0] = np.where(present, flat, default).astype(dtype)
            return values
        if not _is_list(column.type):
            raise self._wrong_type(feature.field.column, column.type, "a lookup with a length needs a list")
        self._fill_lists(values, column, feature)
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
        """Return (values [rows], present [rows]) of a numeric column, int64 or float64."""
        column = self._read_column(column_name)
        is_floating = pa.types.is_floating(column.type)
        return self._read_scalars(
            column, column_name, LookupType.FLOAT32 if is_floating else LookupType.INT64
        )

    def hash_column(self, column_name: str) -> hashing.Hashes:
        """Return the hash of each row's value, [rows]; nulls have that of a missing value."""
        column = self._read_column(column_name)
        if is_text(column.type):
            texts: Iterable[bytes | None] = pc.cast(column, pa.large_binary()).to_pylist()
            present = np.asarray(column.is_valid())
            values = hashing.hash_strings(text or b"" for text in texts)
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


def _is_list(kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))
