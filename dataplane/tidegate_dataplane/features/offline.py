"""Compute the features of the rows in Parquet files, one column per feature, each row as of its own time."""

import os
import time
import uuid
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # publishes no types
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from tidegate_dataplane.contract import (
    AS_OF,
    FEATURE_COLUMNS,
    PLAN_HASH,
    FeaturePlan,
    TensorSpec,
    describe_columns,
)
from tidegate_dataplane.features.columns import decode_column, is_string, is_text
from tidegate_dataplane.features.convert import open_parquet_tables
from tidegate_dataplane.features.engine import FeatureEngine
from tidegate_dataplane.features.errors import FeatureError
from tidegate_dataplane.features.event_file import parse_times, read_events
from tidegate_dataplane.features.events import Array

MAX_BATCH_ROWS: Final = 4_096
"""Rows at once; features over events hold the events of all of them."""
ROW_GROUP_ROWS: Final = 16 * MAX_BATCH_ROWS
ABANDONED_S: Final = 3_600.0
"""A partial file without a write for this time is left from a process that was killed."""
_ARROW_TYPES: Final = {"INT64": pa.int64(), "FP32": pa.float32()}


def make_engine(plan: FeaturePlan, tables: Mapping[str, Path], events: Mapping[str, Path]) -> FeatureEngine:
    """Convert all tables, and read all events into memory, from a Parquet file or a folder of files each.

    Raises:
        FeatureError: they do not fit the plan, or one is missing.
    """
    entities = {entity.name: entity for entity in plan.entities}
    if missing := [stream.name for stream in plan.streams if stream.name not in events]:
        raise FeatureError(f"there is no file with the events of {missing[0]!r}")
    recorded = {
        stream.name: read_events(events[stream.name], stream, entities[stream.entity])
        for stream in plan.streams
    }
    return FeatureEngine(plan, open_parquet_tables(plan, tables), recorded)


def check_rows(path: Path, plan: FeaturePlan, time_column: str) -> int:
    """Return the number of rows of a Parquet file whose columns fit the plan: reads nothing but its footer.

    Raises:
        FeatureError: it is no Parquet file, or a column is missing, of another type or named as a feature.
    """
    if plan.streams and not time_column:
        raise FeatureError("features over events need the column with the time of each row")
    try:
        with pq.ParquetFile(path) as file:
            schema, count = file.schema_arrow, int(file.metadata.num_rows)
    except (pa.ArrowException, OSError) as error:
        raise FeatureError(f"{path} cannot be read as Parquet: {error}") from error
    needed = [*(spec.name for spec in plan.inputs), *([time_column] if plan.streams else [])]
    if absent := [name for name in needed if name not in schema.names]:
        raise FeatureError(
            f"{path} has no column {absent[0]!r}; it has {', '.join(sorted(schema.names)[:50]) or 'none'}"
        )
    if doubled := {spec.name for spec in plan.outputs} & set(schema.names):
        raise FeatureError(
            f"{path} has a column {min(doubled)!r} already, the name of a feature: rename or drop it"
        )
    for spec in plan.inputs:
        kind = schema.field(spec.name).type
        if not fits_type(kind, spec.dtype):
            raise FeatureError(f"{path}: column {spec.name!r} holds {kind}, and {spec.dtype} is needed")
    if plan.streams and not _is_time(kind := schema.field(time_column).type):
        raise FeatureError(f"{path}: column {time_column!r} holds {kind}, and times are needed")
    return count


class RowsComputer:
    """Adds features to files of rows, with one engine for all files."""

    def __init__(
        self,
        plan: FeaturePlan,
        engine: FeatureEngine,
        time_column: str = "",
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        """`metadata` goes into each file, beside the hash of the plan and its columns."""
        self._plan = plan
        self._engine = engine
        self._time_column = time_column
        columns = describe_columns(plan).to_json()
        self._metadata = {PLAN_HASH: plan.hash, FEATURE_COLUMNS: columns, **(metadata or {})}

    def compute_file(
        self, rows: Path, output: Path, report_rows: Callable[[int], None] = lambda count: None
    ) -> int:
        """Read rows from one Parquet file, write them with their features to another; return the number of rows.

        Rows have a column for each input of the plan, and with streams a time column: the features of a row are those that
        it would have had at that time, from the events until then. All columns of the rows are written again. Features of
        length 1 become scalar columns, longer ones fixed-size lists. `output` appears at once when it is complete;
        `report_rows` gets the number of rows computed so far.

        Raises:
            FeatureError: the rows do not fit, naming the file, the rows and the column.
        """
        count = 0
        try:
            with pq.ParquetFile(rows) as file, _open_writer(output, self._make_schema(file)) as writer:
                for batch in file.iter_batches(batch_size=MAX_BATCH_ROWS):
                    try:
                        writer.add_batch(self._compute_batch(batch, writer.schema))
                    except FeatureError as error:
                        place = f"{rows}, rows {count} to {count + batch.num_rows - 1}"
                        raise FeatureError(f"{place}: {error}") from error
                    count += batch.num_rows
                    report_rows(count)
        except pa.ArrowException as error:
            raise FeatureError(f"{rows}: {error}") from error
        return count

    def _make_schema(self, file: Any) -> Any:
        fields = [*file.schema_arrow, *(_make_field(spec) for spec in self._plan.outputs)]
        return pa.schema(fields, metadata=self._metadata)

    def _compute_batch(self, batch: Any, schema: Any) -> Any:
        inputs = {spec.name: read_input(batch.column(spec.name), spec) for spec in self._plan.inputs}
        if self._plan.streams:
            inputs[AS_OF] = parse_times(batch.column(self._time_column), self._time_column)
        features = self._engine.compute_features(inputs)
        columns = [make_feature_column(features[spec.name], spec) for spec in self._plan.outputs]
        return pa.RecordBatch.from_arrays([*batch.columns, *columns], schema=schema)


class _FeatureWriter:
    """Writes batches of rows in larger groups."""

    def __init__(self, writer: Any, schema: Any) -> None:
        self._writer = writer
        self.schema = schema
        self._batches: list[Any] = []
        self._rows = 0

    def add_batch(self, batch: Any) -> None:
        """Write a batch, at once or with later ones."""
        self._batches.append(batch)
        self._rows += batch.num_rows
        if self._rows >= ROW_GROUP_ROWS:
            self.write_group()

    def write_group(self) -> None:
        """Write the batches that are not written yet."""
        if self._batches:
            self._writer.write_table(pa.Table.from_batches(self._batches, self.schema))
        self._batches, self._rows = [], 0


@contextmanager
def _open_writer(output: Path, schema: Any) -> Generator[_FeatureWriter]:
    """Write to a file of another name, which replaces `output` at the end and is removed after an error."""
    _remove_abandoned(output)
    partial = output.with_name(f".{output.name}.{uuid.uuid4().hex[:12]}.partial")
    try:
        with partial.open("xb") as file:
            with pq.ParquetWriter(file, schema) as writer:
                feature_writer = _FeatureWriter(writer, schema)
                yield feature_writer
                feature_writer.write_group()
            file.flush()
            os.fsync(file.fileno())
        partial.replace(output)
    finally:
        partial.unlink(missing_ok=True)


def _remove_abandoned(output: Path) -> None:
    for path in output.parent.glob(f".{output.name}.*.partial"):
        if time.time() - path.stat().st_mtime > ABANDONED_S:
            path.unlink(missing_ok=True)


def _make_field(spec: TensorSpec) -> Any:
    kind, length = _ARROW_TYPES[spec.dtype], spec.shape[1]
    return pa.field(spec.name, kind if length == 1 else pa.list_(kind, length))


def make_feature_column(values: Array, spec: TensorSpec) -> Any:
    """Return a feature, [n, k], as an Arrow column: of numbers if k is 1, else of lists of k."""
    kind = _ARROW_TYPES[spec.dtype]
    flat = pa.array(np.ascontiguousarray(values).reshape(-1), type=kind)
    return flat if spec.shape[1] == 1 else pa.FixedSizeListArray.from_arrays(flat, spec.shape[1])


def read_input(column: Any, spec: TensorSpec) -> Array:
    """Return a column of rows as the input of a plan, [n].

    Raises:
        FeatureError: it has nulls, or integers that exceed int64.
    """
    if column.null_count:
        message = f"column {spec.name!r} has {column.null_count} nulls, and every row needs a value"
        raise FeatureError(message)
    values = decode_column(column)
    if spec.dtype != "INT64":
        return np.asarray(values)
    try:
        return np.asarray(pc.cast(values, pa.int64()))
    except pa.ArrowInvalid as error:
        raise FeatureError(f"column {spec.name!r}: {error}") from error


def fits_type(kind: Any, dtype: str) -> bool:
    """Return whether columns of an Arrow type can be an input of `dtype`."""
    types = pa.types
    if types.is_dictionary(kind):
        kind = kind.value_type
    if dtype == "INT64":
        return bool(types.is_integer(kind))
    if dtype == "FP32":
        return bool(types.is_integer(kind) or types.is_floating(kind))
    return is_text(kind)


def _is_time(kind: Any) -> bool:
    return any(check(kind) for check in (pa.types.is_timestamp, pa.types.is_integer, is_string))
