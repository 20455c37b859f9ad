"""Columns of a table ↔ tensors of a model: types, shapes, and which rows have no form as a tensor."""

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
"""Its functions are made when it is imported: type checkers do not see them."""

_ARROW: Final[Mapping[str, Any]] = {
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
class Input:
    """One input of the model and the column that it is read from; `shape` is that of one row."""

    name: str
    column: str
    datatype: str
    shape: tuple[int, ...]

    @property
    def width(self) -> int | None:
        """Values of one row; None where they vary."""
        return None if -1 in self.shape else int(np.prod(self.shape, dtype=np.int64))


def inputs_of(specs: Sequence[TensorSpec], renamed: Mapping[str, str]) -> tuple[Input, ...]:
    """Which column each input is read from; `renamed` says it where the names differ.

    Raises:
        TableError: an input cannot be read from a column, or `renamed` names none of the model's.
    """
    names = {spec.name for spec in specs}
    for name in renamed:
        if name not in names:
            raise TableError(
                f"spec.batch.input.columns names input {name!r}, and the model takes {', '.join(sorted(names))}"
            )
    found = tuple(
        Input(spec.name, renamed.get(spec.name, spec.name), spec.dtype, spec.shape[1:]) for spec in specs
    )
    for each in found:
        if each.datatype not in _ARROW or each.shape.count(-1) > 1:
            raise TableError(
                f"input {each.name!r} of the model is {each.datatype} of shape {list(each.shape)} a row, which no column "
                "can be: at most one dimension may vary, and BF16 is not supported"
            )
    return found


def refused_rows(table: Any, inputs: Sequence[Input]) -> dict[int, str]:
    """Rows that have no form as a tensor, with why: a null, or a list of another length than the input's.

    Raises:
        TableError: a column holds lists of lists, whatever their rows are.
    """
    refused: dict[int, str] = {}
    for each in inputs:
        column = table.column(each.column)
        if _is_list(column.type) and _is_list(column.type.value_type):
            raise TableError(
                f"column {each.column!r} holds {column.type}, and lists of lists are not read for input {each.name!r}: "
                f"write the values of each row as one list, which takes the shape {list(each.shape)}"
            )
        for row in _missing(column):
            refused.setdefault(row, f"column {each.column!r} has a null")
        if _is_list(column.type) and each.width is not None:
            lengths = pc.fill_null(pc.list_value_length(column), each.width)
            for row in np.flatnonzero(np.asarray(lengths) != each.width).tolist():
                said = f"column {each.column!r} has {lengths[row].as_py()} values, and input {each.name!r} takes {each.width}"
                refused.setdefault(row, said)
    return refused


def runs(table: Any, inputs: Sequence[Input]) -> list[tuple[int, int]]:
    """Consecutive rows that fit into one tensor, since their lists are equally long: (first, count) of each."""
    rows = table.num_rows
    edges = {0, rows}
    for each in inputs:
        if each.width is None and _is_list(table.column(each.column).type):
            lengths = np.asarray(pc.list_value_length(table.column(each.column)))
            edges |= {int(edge) + 1 for edge in np.flatnonzero(np.diff(lengths))}
    ordered = sorted(edges)
    return [(start, end - start) for start, end in itertools.pairwise(ordered)]


def tensors(table: Any, inputs: Sequence[Input], where: str) -> tuple[InferenceTensor, ...]:
    """The tensors of rows that all have one; `where` names the rows in what is said.

    Raises:
        TableError: a column has a type that its input cannot take.
    """
    return tuple(_tensor(table.column(each.column), each, where) for each in inputs)


def _tensor(column: Any, each: Input, where: str) -> InferenceTensor:
    rows, values = len(column), column.combine_chunks()
    if isinstance(values, pa.ChunkedArray):
        values = pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], values.type)
    kind = values.type
    if _is_list(values.type):
        values = values.flatten()
    wanted = _ARROW[each.datatype]
    try:
        flat = _numbers(values.cast(wanted), each.datatype)
        return InferenceTensor(each.name, each.datatype, flat.reshape((rows, *_shape(each, rows, len(flat)))))
    except (pa.ArrowException, ValueError) as error:
        said = str(error).strip().splitlines()[0][:200]
        raise TableError(
            f"{where}: column {each.column!r} holds {kind}, and input {each.name!r} of the model takes {each.datatype} of "
            f"shape {list(each.shape)} a row: {said}"
        ) from error


def _shape(each: Input, rows: int, values: int) -> tuple[int, ...]:
    if -1 not in each.shape:
        return each.shape
    fixed = int(np.prod([size for size in each.shape if size != -1], dtype=np.int64))
    return tuple(values // max(rows * fixed, 1) if size == -1 else size for size in each.shape)


def _numbers(values: Any, datatype: str) -> Array:
    if datatype == TEXT:
        return np.array(values.to_pylist(), dtype=np.object_)
    return np.asarray(values.to_numpy(zero_copy_only=False)).astype(TYPES[datatype], copy=False)


def _missing(column: Any) -> list[int]:
    """Rows that are null, or a list with a null in it."""
    missing = np.flatnonzero(np.asarray(pc.is_null(column))).tolist()
    if _is_list(column.type):
        values = pc.list_flatten(column)
        if values.null_count:
            parents = np.asarray(pc.list_parent_indices(column))
            missing += sorted(set(parents[np.asarray(pc.is_null(values))].tolist()))
    return missing


def output_column(spec: TensorSpec, arrays: Sequence[Array]) -> Any:
    """One output of several answers as a column: a number a row, a list of one length, or lists that vary.

    Raises:
        TableError: the model answered something else than a row for each row.
    """
    shape, kind = spec.shape[1:], _ARROW.get(spec.dtype)
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
