"""Compute the features of the rows in a Parquet file, one column per feature, each as of its own time."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # publishes no types
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from tidegate_dataplane.contract import AS_OF, FeaturePlan
from tidegate_dataplane.features.engine import FeatureEngine
from tidegate_dataplane.features.errors import FeatureError
from tidegate_dataplane.features.event_file import parse_times, read_events
from tidegate_dataplane.features.events import Array

MAX_BATCH_ROWS = 4_096
"""Rows at once; features over events hold the events of all of them."""


def compute_parquet(
    plan: FeaturePlan,
    tables: Mapping[str, Path],
    rows: Path,
    output: Path,
    *,
    events: Mapping[str, Path] | None = None,
    time_column: str = "",
) -> int:
    """Read rows from one Parquet file, write them with their features to another; return the number of rows.

    Rows have a column for each input of the plan, and with streams a `time_column`: the features of a row are those that it
    would have had at that time, from the `events` of each stream until then. All columns of the rows are written again.
    Features of length 1 become scalar columns, longer ones fixed-size lists.

    Raises:
        FeatureError: the plan, the tables, the events or the rows do not fit.
    """
    entities = {entity.name: entity for entity in plan.entities}
    if missing := [stream.name for stream in plan.streams if stream.name not in (events or {})]:
        raise FeatureError(f"there is no file with the events of {missing[0]!r}")
    if plan.streams and not time_column:
        raise FeatureError("features over events need the column with the time of each row")
    recorded = {
        stream.name: read_events((events or {})[stream.name], stream, entities[stream.entity])
        for stream in plan.streams
    }
    engine = FeatureEngine.from_files(plan, tables, recorded)
    names = [spec.name for spec in plan.inputs]
    count = 0
    writer: Any = None
    try:
        with pq.ParquetFile(rows) as file:
            needed = [*names, *([time_column] if plan.streams else [])]
            if absent := [name for name in needed if name not in file.schema_arrow.names]:
                raise FeatureError(f"{rows.name} has no column {absent[0]!r}")
            if doubled := {spec.name for spec in plan.outputs} & set(file.schema_arrow.names):
                raise FeatureError(
                    f"{rows.name} has a column {min(doubled)!r} already, the name of a feature"
                )
            for batch in file.iter_batches(batch_size=MAX_BATCH_ROWS):
                inputs = {name: _read_keys(batch.column(name), name) for name in names}
                if plan.streams:
                    inputs[AS_OF] = parse_times(batch.column(time_column), time_column)
                computed = _add_features(batch, engine.compute_features(inputs))
                writer = writer or pq.ParquetWriter(output, computed.schema)
                writer.write_batch(computed)
                count += computed.num_rows
    finally:
        if writer is not None:
            writer.close()
    return count


def _add_features(batch: Any, features: Mapping[str, Array]) -> Any:
    columns = {name: batch.column(name) for name in batch.schema.names}
    return pa.RecordBatch.from_pydict(
        {**columns, **{name: _make_column(values) for name, values in features.items()}}
    )


def _read_keys(column: Any, name: str) -> Array:
    if column.null_count:
        raise FeatureError(f"key column {name!r} has {column.null_count} nulls")
    return np.asarray(column)


def _make_column(values: Array) -> Any:
    if values.shape[1] == 1:
        return pa.array(values[:, 0])
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])
