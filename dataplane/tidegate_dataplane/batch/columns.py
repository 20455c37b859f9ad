"""Convert columns of a table to tensors of a model and back."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]  # publishes no types
import pyarrow.compute  # type: ignore[import-untyped]

from tidegate_dataplane.agent.nearline.message import TEXT, TYPES, InferenceTensor
from tidegate_dataplane.batch.errors import TableError
from tidegate_dataplane.contract import TensorSpec

Array = npt.NDArray[Any]

pc: Final[Any] = pyarrow.compute
"""The module makes its functions when it is imported, so type checkers do not see them."""

_ARROW_TYPES: Final[Mapping[str, Any]] = {
    "BOOL": pa.bool_(),
    "INT8": pa.int8(),
    "INT16": pa.int16(),
    "INT32": pa.int32(),
    "INT64": pa.int64(),
    "UINT8": pa.uint8(),
    "UINT16": pa.uint16(),
    "UINT32": pa.uint32(),
    "UINT64": pa.uint64(),
    "FP16": pa.float16(),
    "FP32": pa.float32(),
    "FP64": pa.float64(),
    TEXT: pa.large_binary(),
}


@dataclass(frozen=True, slots=True)
class MappedInput:
    """One input of the model and the column that it is read from; `shape` is that of one row."""

    name: str
    column: str
    datatype: str
    shape: tuple[int, ...]

    @property
    def values_per_row(self) -> int | None:
        """Return the number of values in one row; None if it varies."""
        return None if -1 in self.shape else int(np.prod(self.shape, dtype=np.int64))


def map_inputs(specs: Sequence[TensorSpec], columns_by_input: Mapping[str, str]) -> tuple[MappedInput, ...]:
    """Return the column from which each input is read; `columns_by_input` maps inputs to columns of another name.

    Raises:
        TableError: an input cannot be read from a column, or `columns_by_input` names an input that the model does not have.
    """
    names = {spec.name for spec in specs}
    for name in columns_by_input:
        if name not in names:
            raise TableError(
                f"spec.batch.input.columns names input {name!r}, and the model takes {', '.join(sorted(names))}"
            )
    inputs = tuple(
        MappedInput(spec.name, columns_by_input.get(spec.name, spec.name), spec.dtype, spec.shape[1:])
        for spec in specs
    )
    for model_input in inputs:
        if model_input.datatype not in _ARROW_TYPES or model_input.shape.count(-1) > 1:
            raise TableError(
                f"input {model_input.name!r} of the model is {model_input.datatype} of shape {list(model_input.shape)} a row, which no column "
                "can be: at most one dimension may vary, and BF16 is not supported"
            )
    return inputs


def find_refused_rows(table: Any, inputs: Sequence[MappedInput]) -> dict[int, str]:
    """Return the rows that cannot be converted to tensors, with the reason: a null, or a list of the wrong length.

    Raises:
        TableError: a column holds lists of lists.
    """
    refused: dict[int, str] = {}
    for model_input in inputs:
        column = table.column(model_input.column)
        if _is_list(column.type) and _is_list(column.type.value_type):
            raise TableError(
                f"column {model_input.column!r} holds {column.type}, and lists of lists are not read for input {model_input.name!r}: "
                f"write the values of each row as one list, which takes the shape {list(model_input.shape)}"
            )
        for row in find_null_rows(column):
            refused.setdefault(row, f"column {model_input.column!r} has a null")
        if _is_list(column.type) and model_input.values_per_row is not None:
            lengths = pc.fill_null(pc.list_value_length(column), model_input.values_per_row)
            for row in np.flatnonzero(np.asarray(lengths) != model_input.values_per_row).tolist():
                reason = f"column {model_input.column!r} has {lengths[row].as_py()} values, and input {model_input.name!r} takes {model_input.values_per_row}"
                refused.setdefault(row, reason)
    return refused


def split_into_runs(table: Any, inputs: Sequence[MappedInput]) -> list[tuple[int, int]]:
    """Return the runs of consecutive rows whose lists are equally long, as (first, count): each fits into one tensor."""
    rows = table.num_rows
    edges = {0, rows}
    for model_input in inputs:
        if model_input.values_per_row is None and _is_list(table.column(model_input.column).type):
            lengths = np.asarray(pc.list_value_length(table.column(model_input.column)))
            edges |= {int(edge) + 1 for edge in np.flatnonzero(np.diff(lengths))}
    ordered = sorted(edges)
    return [(start, end - start) for start, end in itertools.pairwise(ordered)]


def make_tensors(table: Any, inputs: Sequence[MappedInput], location: str) -> tuple[InferenceTensor, ...]:
    """Return the tensors of rows that can all be converted; `location` names the rows in error messages.

    Raises:
        TableError: a column has a type that its input cannot take.
    """
    return tuple(
        _make_tensor(table.column(model_input.column), model_input, location) for model_input in inputs
    )


def _make_tensor(column: Any, model_input: MappedInput, location: str) -> InferenceTensor:
    rows, values = len(column), column.combine_chunks()
    if isinstance(values, pa.ChunkedArray):
        values = pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], values.type)
    column_type = values.type
    if _is_list(values.type):
        values = values.flatten()
    arrow_type = _ARROW_TYPES[model_input.datatype]
    try:
        flat = _to_numpy(values.cast(arrow_type), model_input.datatype)
        return InferenceTensor(
            model_input.name,
            model_input.datatype,
            flat.reshape((rows, *_tensor_shape(model_input, rows, len(flat)))),
        )
    except (pa.ArrowException, ValueError) as error:
        reason = str(error).strip().splitlines()[0][:200]
        raise TableError(
            f"{location}: column {model_input.column!r} holds {column_type}, and input {model_input.name!r} of the model takes {model_input.datatype} of "
            f"shape {list(model_input.shape)} a row: {reason}"
        ) from error


def _tensor_shape(model_input: MappedInput, rows: int, values: int) -> tuple[int, ...]:
    if -1 not in model_input.shape:
        return model_input.shape
    fixed = int(np.prod([size for size in model_input.shape if size != -1], dtype=np.int64))
    return tuple(values // max(rows * fixed, 1) if size == -1 else size for size in model_input.shape)


def _to_numpy(values: Any, datatype: str) -> Array:
    if datatype == TEXT:
        return np.array(values.to_pylist(), dtype=np.object_)
    return np.asarray(values.to_numpy(zero_copy_only=False)).astype(TYPES[datatype], copy=False)


def find_null_rows(column: Any) -> list[int]:
    """Return the rows that are null, or whose list contains a null."""
    missing = np.flatnonzero(np.asarray(pc.is_null(column))).tolist()
    if _is_list(column.type):
        values = pc.list_flatten(column)
        if values.null_count:
            parents = np.asarray(pc.list_parent_indices(column))
            missing += sorted(set(parents[np.asarray(pc.is_null(values))].tolist()))
    return missing


def make_output_column(spec: TensorSpec, arrays: Sequence[Array]) -> Any:
    """Return one output of several answers as a column: of numbers, of lists of one length, or of lists that vary.

    Raises:
        TableError: no column type can hold the output.
    """
    shape, kind = spec.shape[1:], _ARROW_TYPES.get(spec.dtype)
    if kind is None:
        raise TableError(f"output {spec.name!r} of the model is {spec.dtype}, which no column can hold")
    flat = [array.reshape(-1) for array in arrays]
    joined = np.concatenate(flat) if flat else np.empty(0, dtype=TYPES.get(spec.dtype, np.object_))
    values = pa.array(joined.tolist() if spec.dtype == TEXT else joined, type=kind)
    if -1 in shape:
        lengths = [array.size // max(len(array), 1) for array in arrays for _ in range(len(array))]
        return pa.ListArray.from_arrays(pa.array(np.cumsum([0, *lengths]), type=pa.int32()), values)
    width = int(np.prod(shape, dtype=np.int64))
    return values if width == 1 else pa.FixedSizeListArray.from_arrays(values, width)


def _is_list(kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))
