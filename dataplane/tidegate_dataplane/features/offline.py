"""Compute the features of the entity keys in a Parquet file, one column per feature."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # publishes no types
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from tidegate_dataplane.contract import FeaturePlan
from tidegate_dataplane.features.engine import Array, FeatureEngine
from tidegate_dataplane.features.errors import FeatureError

MAX_BATCH_ROWS = 65_536


def compute_parquet(plan: FeaturePlan, tables: Mapping[str, Path], keys: Path, output: Path) -> int:
    """Read entity keys from one Parquet file, write them with their features to another; return the number of rows.

    Features of length 1 become scalar columns, longer ones fixed-size lists.

    Raises:
        FeatureError: the plan, the tables or the keys do not fit.
    """
    engine = FeatureEngine.from_files(plan, tables)
    names = [spec.name for spec in plan.inputs]
    rows = 0
    writer: Any = None
    try:
        with pq.ParquetFile(keys) as file:
            missing = [name for name in names if name not in file.schema_arrow.names]
            if missing:
                raise FeatureError(f"{keys.name} has no column {missing[0]!r}")
            for batch in file.iter_batches(batch_size=MAX_BATCH_ROWS, columns=names):
                computed = _add_features(engine, batch, names)
                writer = writer or pq.ParquetWriter(output, computed.schema)
                writer.write_batch(computed)
                rows += computed.num_rows
    finally:
        if writer is not None:
            writer.close()
    return rows


def _add_features(engine: FeatureEngine, batch: Any, names: list[str]) -> Any:
    inputs = {name: _read_keys(batch.column(name), name) for name in names}
    features = {name: _make_column(values) for name, values in engine.compute_features(inputs).items()}
    columns = {**{name: batch.column(name) for name in names}, **features}
    return pa.RecordBatch.from_pydict(columns)


def _read_keys(column: Any, name: str) -> Array:
    if column.null_count:
        raise FeatureError(f"key column {name!r} has {column.null_count} nulls")
    return np.asarray(column)


def _make_column(values: Array) -> Any:
    if values.shape[1] == 1:
        return pa.array(values[:, 0])
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])
