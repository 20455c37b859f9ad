"""Compute the features of a table's rows, each as of its own time, as columns beside the row's own."""

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # publishes no types

from tidegate_dataplane.batch.columns import Array, find_null_rows, pc
from tidegate_dataplane.batch.errors import TableError
from tidegate_dataplane.contract import (
    AS_OF,
    FEATURE_COLUMNS,
    PLAN_HASH,
    BatchFeatures,
    Entity,
    EntityKeyType,
    TensorSpec,
    describe_columns,
)
from tidegate_dataplane.features.engine import FeatureEngine
from tidegate_dataplane.features.errors import FeatureError
from tidegate_dataplane.features.event_file import parse_times
from tidegate_dataplane.features.offline import MAX_BATCH_ROWS, fits_type, make_feature_column, read_input


@dataclass(frozen=True, slots=True)
class RowsView:
    """What rows can see of events: those of the keys of each entity, Arrow arrays by its name, until the last row's time."""

    keys: Mapping[str, Any]
    first_ms: int = 0
    last_ms: int = 0


class FeatureInputs:
    """Reads the inputs of a plan from the columns of the rows."""

    def __init__(self, features: BatchFeatures, columns_by_input: Mapping[str, str]) -> None:
        """`columns_by_input` has the columns whose name differs from the input's."""
        self.features = features
        self._columns = {
            spec.name: columns_by_input.get(spec.name, spec.name) for spec in features.plan.inputs
        }

    @property
    def needed_columns(self) -> frozenset[str]:
        """Return the columns of the table that features are computed from."""
        return frozenset(self._columns.values()) | (
            {self.features.event_time} if self.features.plan.streams else set()
        )

    def find_refused_rows(self, table: Any) -> dict[int, str]:
        """Return the rows without features, with the reason: a null."""
        refused: dict[int, str] = {}
        for column in sorted(self.needed_columns):
            for row in find_null_rows(table.column(column)):
                refused.setdefault(row, f"column {column!r} has a null")
        return refused

    def read_inputs(self, table: Any) -> dict[str, Array]:
        """Return the inputs of the plan for rows without nulls, [n] each.

        Raises:
            FeatureError: a column has another type.
        """
        inputs: dict[str, Array] = {}
        for spec in self.features.plan.inputs:
            column = self._columns[spec.name]
            values = table.column(column)
            if not fits_type(values.type, spec.dtype):
                raise FeatureError(
                    f"column {column!r} holds {values.type}, and input {spec.name!r} is {spec.dtype}"
                )
            inputs[spec.name] = read_input(values, spec)
        if self.features.plan.streams:
            inputs[AS_OF] = parse_times(table.column(self.features.event_time), self.features.event_time)
        return inputs

    def view_rows(self, tables: Iterable[Any]) -> RowsView:
        """Return what the rows of all tables see of the events."""
        plan = self.features.plan
        names = {stream.entity for stream in plan.streams}
        entities = [entity for entity in plan.entities if entity.name in names]
        keys: dict[str, list[Any]] = {entity.name: [] for entity in entities}
        times: list[Array] = []
        for table in tables:
            rows = select_rows(table, self.find_refused_rows(table))
            inputs = self.read_inputs(rows)
            times.append(inputs[AS_OF])
            for entity in entities:
                keys[entity.name].append(pc.unique(make_keys(inputs[entity.key], entity)))
        joined = np.concatenate(times or [np.empty(0, dtype=np.int64)])
        return RowsView(
            {
                entity.name: pc.unique(pa.concat_arrays([make_keys([], entity), *keys[entity.name]]))
                for entity in entities
            },
            int(joined.min()) if len(joined) else 0,
            int(joined.max()) if len(joined) else 0,
        )


class RowFeatures:
    """Adds the features to rows, with the engine and the plan that answer online."""

    def __init__(self, inputs: FeatureInputs, engine: FeatureEngine) -> None:
        self._inputs = inputs
        self._engine = engine
        self._plan = inputs.features.plan

    def add_features(self, table: Any, location: str) -> tuple[Any, dict[int, str]]:
        """Return the rows with a column for each feature, and the rows that have none, with the reason.

        `location` names the rows in error messages.

        Raises:
            TableError: a column has another type, or the name of a feature.
        """
        refused = self._inputs.find_refused_rows(table)
        with translate_errors(location):
            inputs = self._inputs.read_inputs(select_rows(table, refused))
            features = self._compute_features(inputs)
        positions: Any = None
        if refused:
            present = _make_mask(table, refused)
            positions = pa.array(np.cumsum(present) - 1, mask=~present)
        for spec in self._plan.outputs:
            column = make_feature_column(features[spec.name], spec)
            table = table.append_column(spec.name, column if positions is None else column.take(positions))
        return table, refused

    def describe_features(self, names: Iterable[str]) -> dict[str, str]:
        """Return the metadata of a file of results that has the features `names`."""
        described = describe_columns(self._plan)
        columns = tuple(column for column in described.columns if column.name in set(names))
        metadata = {PLAN_HASH: self._plan.hash}
        if columns:
            metadata[FEATURE_COLUMNS] = described.model_copy(update={"columns": columns}).to_json()
        return metadata

    def _compute_features(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return every feature, [n, k]; features over events hold the events of all rows of a call."""
        rows = len(next(iter(inputs.values())))
        parts = [
            self._engine.compute_features(
                {name: values[start : start + MAX_BATCH_ROWS] for name, values in inputs.items()}
            )
            for start in range(0, max(rows, 1), MAX_BATCH_ROWS)
        ]
        return {spec.name: np.concatenate([part[spec.name] for part in parts]) for spec in self._plan.outputs}


def check_model_inputs(specs: Sequence[TensorSpec], keep: Iterable[str], features: BatchFeatures) -> None:
    """Check that the model or the results take some of the features, and the model as they are.

    Raises:
        TableError: naming the feature and the model's input.
    """
    outputs = {output.name: output for output in features.plan.outputs}
    used = [spec for spec in specs if spec.name in outputs]
    if not used and not set(keep) & outputs.keys():
        raise TableError(
            f"no input of the model is a feature of FeatureCompute {features.compute} ({', '.join(sorted(outputs))}); the model takes "
            f"{', '.join(spec.name for spec in specs)}: rename the features to match, or remove spec.batch.features"
        )
    for spec in used:
        output = outputs[spec.name]
        width = int(np.prod([size for size in spec.shape[1:] if size != -1], dtype=np.int64))
        fits = output.shape[1] % width == 0 if -1 in spec.shape[1:] else output.shape[1] == width
        if output.dtype != spec.dtype or not fits:
            raise TableError(
                f"feature {spec.name!r} of FeatureCompute {features.compute} is {output.dtype} of shape {list(output.shape[1:])} a row, and the "
                f"model takes {spec.dtype} of shape {list(spec.shape[1:])}: change one of them"
            )


def make_keys(values: Any, entity: Entity) -> Any:
    """Return keys as an Arrow array of int64 or bytes."""
    if entity.type is EntityKeyType.INT64:
        return pa.array(values, type=pa.int64())
    return pa.array(
        [value.encode() if isinstance(value, str) else value for value in values], pa.large_binary()
    )


def select_rows(table: Any, refused: Iterable[int]) -> Any:
    """Return the rows of a table without those in `refused`, without dictionaries."""
    rows = set(refused)
    return table.filter(pa.array(_make_mask(table, rows))) if rows else table


@contextmanager
def translate_errors(location: str) -> Generator[None]:
    """Raise the errors of the feature engine as errors of the table at `location`."""
    try:
        yield
    except FeatureError as error:
        raise TableError(f"{location}: {error}") from error


def _make_mask(table: Any, refused: Iterable[int]) -> Array:
    mask = np.ones(table.num_rows, dtype=np.bool_)
    mask[list(refused)] = False
    return mask
