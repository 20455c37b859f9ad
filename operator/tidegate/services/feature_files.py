"""Read the columns of Parquet files that `tidegate features compute` has written, batch by batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # publishes no types
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from pydantic import ValidationError

from tidegate.errors import PermanentError
from tidegate.planning.features.drift import Ids, Numbers
from tidegate_dataplane.contract import FEATURE_COLUMNS, PLAN_HASH, FeatureColumn, FeatureColumns

_BATCH_ROWS: Final = 4_096
"""Rows at once; a list has up to 4,096 elements."""
_LARGEST_ID: Final = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class ColumnBatch:
    """The values of a column in some rows, one for each element of lists, without those that are missing.

    They are int64 for ids and float64 for all other columns, shape [values].
    """

    name: str
    values: Numbers | Ids
    row_count: int
    missing_count: int


@dataclass(frozen=True, slots=True)
class FeatureFiles:
    """Files of one set of rows, and what their footers have."""

    path: Path
    files: Sequence[Path]
    types: Mapping[str, Mapping[Path, Any]]
    """Arrow types by file of each column that all files have, of the elements for lists."""
    columns: Mapping[str, FeatureColumn]
    """Features by name, as the metadata of the files has them."""
    plan_hashes: tuple[str, ...]

    def read_batches(self, names: Sequence[str], ids: Collection[str]) -> Iterator[ColumnBatch]:
        """Yield the columns in portions of all files; `ids` are those with whole numbers that identify something.

        Raises PermanentError if a file cannot be read, or has an id that exceeds int64.
        """
        for file in self.files:
            try:
                with pq.ParquetFile(file) as parquet:
                    for batch in parquet.iter_batches(batch_size=_BATCH_ROWS, columns=list(names)):
                        for name in names:
                            yield _read_column(file, name, batch.column(name), is_id=name in ids)
            except (pa.ArrowException, OSError) as error:
                raise PermanentError(f"{file}: {error}") from error


def open_files(path: Path) -> FeatureFiles:
    """Return the Parquet file at `path`, or those of the folder.

    Raises PermanentError if there is none that can be read, or if one has two columns of the same name.
    """
    files = _list_files(path)
    columns: dict[str, FeatureColumn] = {}
    types: dict[str, dict[Path, Any]] = {}
    plans: dict[str, None] = {}
    for file in files:
        schema = _read_schema(file)
        for name in schema.names:
            types.setdefault(name, {})[file] = _find_element_type(schema.field(name).type)
        metadata = schema.metadata or {}
        columns |= _parse_columns(file, metadata)
        if PLAN_HASH.encode() in metadata:
            plans[metadata[PLAN_HASH.encode()].decode(errors="replace")] = None
    shared = {name: kinds for name, kinds in types.items() if len(kinds) == len(files)}
    return FeatureFiles(path, files, shared, columns, tuple(plans))


def is_number_type(kind: Any) -> bool:
    """Return whether a column of this Arrow type can be compared."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def is_integer_type(kind: Any) -> bool:
    """Return whether an Arrow type is one of whole numbers."""
    return bool(pa.types.is_integer(kind))


def parse_default(text: str, kind: Any) -> float:
    """Return a default as a column of this Arrow type has it."""
    return float(np.float32(text)) if pa.types.is_float32(kind) else float(text)


def _list_files(path: Path) -> list[Path]:
    if not path.exists():
        raise PermanentError(f"there is nothing at {path}")
    if path.is_file():
        return [path]
    names = sorted(name.relative_to(path) for name in path.rglob("*.parquet") if name.is_file())
    files = [path / name for name in names if not any(part[0] in "._" for part in name.parts)]
    if not files:
        raise PermanentError(f"the folder {path} has no file *.parquet")
    return files


def _read_schema(file: Path) -> Any:
    try:
        schema = pq.read_schema(file)
    except (pa.ArrowException, OSError) as error:
        raise PermanentError(f"{file} cannot be read as Parquet: {error}") from error
    for name, count in Counter(schema.names).items():
        if count > 1:
            raise PermanentError(f"{file} has {count} columns '{name}': rename or remove them")
    return schema


def _parse_columns(file: Path, metadata: Mapping[bytes, bytes]) -> dict[str, FeatureColumn]:
    text = metadata.get(FEATURE_COLUMNS.encode())
    if text is None:
        return {}
    try:
        columns = FeatureColumns.model_validate_json(text).columns
    except ValidationError as error:
        raise PermanentError(f"{file}: the metadata {FEATURE_COLUMNS} cannot be read: {error}") from error
    return {column.name: column for column in columns}


def _find_element_type(kind: Any) -> Any:
    types = pa.types
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return kind.value_type if is_list else kind


def _read_column(file: Path, name: str, column: Any, *, is_id: bool) -> ColumnBatch:
    row_count, missing_count = len(column), 0
    if _find_element_type(column.type) != column.type:
        missing_count, column = column.null_count, column.flatten()
    missing_count += column.null_count
    values = column.drop_null().to_numpy(zero_copy_only=False)
    if is_id:
        if len(values) and values.max() > _LARGEST_ID:
            raise PermanentError(f"{file}: column '{name}' has the id {values.max()}, which exceeds int64")
        return ColumnBatch(name, values.astype(np.int64), row_count, missing_count)
    numbers = values.astype(np.float64)
    finite = numbers[np.isfinite(numbers)]
    return ColumnBatch(name, finite, row_count, missing_count + len(numbers) - len(finite))
