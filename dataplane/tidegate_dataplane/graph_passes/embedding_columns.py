"""Find the embedding columns of a graph: a table, the ids that index it, and what pools the rows."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final, TypeAlias

import onnx_ir as ir

from tidegate_dataplane.graph_passes.constants import (
    normalize_axes,
    read_attribute,
    read_axes,
    read_constant,
    read_integers,
    read_row_symbol,
    read_static_dims,
)
from tidegate_dataplane.graph_passes.elementwise import (
    Expression,
    describe_structure,
    find_source,
    parse_expression,
)

_REDUCTIONS: Final = frozenset({"ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin"})


@dataclass(frozen=True, slots=True)
class Block:
    """Columns [start, stop) of a matrix [rows, columns] that holds the inputs of several embedding columns."""

    matrix: ir.Value
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Reduction:
    """Pooling over dimensions of the ids."""

    operator: str
    axes: tuple[int, ...]
    """Counted in the looked-up rows, [rows, *ids, width]; never the first or the last."""
    keepdims: bool


@dataclass(frozen=True, slots=True)
class Weighting:
    """Multiplication of the looked-up rows by one weight per id."""

    expression: Expression
    """Weights of shape [rows, *ids], or [rows, *ids, 1]."""
    unsqueezed: bool
    """Whether the graph adds the last dimension after the expression."""


@dataclass(frozen=True, slots=True)
class Flattening:
    """Removal of a dimension of size 1 between the rows and the width."""

    axes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Joining:
    """Reshape of [rows, *ids, width] to [rows, ids * width]: the rows of a list of ids, one after the other."""


Step: TypeAlias = Reduction | Weighting | Flattening | Joining


@dataclass(frozen=True, slots=True, eq=False)
class EmbeddingColumn:
    """One embedding column: Gather of a constant table, and the operations around it that every column may have."""

    gather: ir.Node
    table: ir.Value
    """Initializer of shape [entries, width]."""
    entries: int
    width: int
    """Numbers of one entry."""
    ids: Expression
    source: ir.Value
    """What the ids are computed from, of shape [rows, *trailing]."""
    block: Block | None
    """Where `source` lies in a matrix of sources; None if it is a value of its own."""
    trailing: tuple[int, ...]
    steps: tuple[Step, ...]
    output: ir.Value
    output_dims: tuple[int, ...]
    """Dimensions of `output` between the rows and the width."""

    @property
    def output_width(self) -> int:
        """Return the size of the output's last dimension."""
        return self.width * math.prod(self.trailing) if Joining() in self.steps else self.width

    def describe_group(self) -> Hashable:
        """Return a key that is equal for columns that one lookup can compute."""
        return (
            describe_structure(self.ids),
            # Inputs whose rows have no common name may differ in their number.
            read_row_symbol(self.source) or self.source,
            self.trailing,
            self.table.dtype,
            None if self.block is None else self.block.matrix,
            tuple(map(_describe_step, self.steps)),
            self.output_dims,
            # Pieces of a wider table would lie between the rows of a list.
            self.width if Joining() in self.steps else None,
        )


def find_columns(graph: ir.Graph) -> list[EmbeddingColumn]:
    """Return the embedding columns of the graph in the order of its nodes."""
    columns = (_read_column(node) for node in graph if node.op_identifier()[:2] == ("", "Gather"))
    return [column for column in columns if column is not None]


def find_block(value: ir.Value) -> Block | None:
    """Return which columns of a matrix `value` consists of, or None."""
    node = value.producer()
    if node is None or node.domain or not node.inputs or node.inputs[0] is None:
        return None
    matrix = node.inputs[0]
    dims = read_static_dims(matrix)
    if node.op_type == "Squeeze":
        axes = read_axes(node)
        block = find_block(matrix)
        is_column = (
            dims is not None and len(dims) == 2 and axes is not None and normalize_axes(axes, 2) == (1,)
        )
        return block if block is not None and is_column and block.stop - block.start == 1 else None
    if dims is None or len(dims) != 2 or dims[1] is None:
        return None
    bounds = _read_bounds(node, value, dims[1])
    return None if bounds is None else Block(matrix, *bounds)


def _read_bounds(node: ir.Node, value: ir.Value, columns: int) -> tuple[int, int] | None:
    match node.op_type:
        case "Gather" if read_attribute(node, "axis", 0) in (1, -1):
            index = read_integers(node.inputs[1])
            if index is None or len(index) != 1 or not -columns <= index[0] < columns:
                return None
            return index[0] % columns, index[0] % columns + 1
        case "Slice":
            starts, ends, *optional = (read_integers(operand) for operand in node.inputs[1:])
            axes = optional[0] if optional else (0,)
            steps = optional[1] if len(optional) > 1 else (1,)
            if starts is None or ends is None or axes not in ((1,), (-1,)) or steps != (1,):
                return None
            start, stop, _ = slice(starts[0], ends[0]).indices(columns)
            return (start, stop) if start < stop else None
        case "Split" if read_attribute(node, "axis", 0) in (1, -1):
            sizes = read_integers(node.inputs[1]) if len(node.inputs) > 1 else None
            if sizes is None and columns % len(node.outputs) == 0:
                sizes = (columns // len(node.outputs),) * len(node.outputs)
            if sizes is None:
                return None
            position = node.outputs.index(value)
            return sum(sizes[:position]), sum(sizes[: position + 1])
        case _:
            return None


def _read_column(node: ir.Node) -> EmbeddingColumn | None:
    table, index = node.inputs[0], node.inputs[1]
    if table is None or index is None or read_attribute(node, "axis", 0) != 0:
        return None
    rows = read_constant(table)
    if (
        rows is None
        or rows.ndim != 2
        or 0 in rows.shape
        or rows.dtype.kind == "O"
        or not table.is_initializer()
    ):
        return None
    ids = parse_expression(index)
    source = find_source(ids)
    trailing = _read_trailing(source)
    if trailing is None or index.shape is None or read_static_dims(index) != read_static_dims(source):
        return None
    steps, output = _follow_steps(node.outputs[0], len(trailing))
    if output.is_graph_output():
        return None
    return EmbeddingColumn(
        gather=node,
        table=table,
        entries=rows.shape[0],
        width=rows.shape[1],
        ids=ids,
        source=source,
        block=find_block(source),
        trailing=trailing,
        steps=steps,
        output=output,
        output_dims=_output_dims(trailing, steps),
    )


def _read_trailing(source: ir.Value) -> tuple[int, ...] | None:
    """Return the dimensions of the ids after the rows, or None if a request decides them.

    Ids whose number depends on the request could not lie side by side: two columns may have different numbers.
    """
    dims = read_static_dims(source)
    if not dims or source.dtype is None:
        return None
    trailing = tuple(dim for dim in dims[1:] if dim is not None)
    return trailing if len(trailing) == len(dims) - 1 and 0 not in trailing else None


def _follow_steps(value: ir.Value, id_dims: int) -> tuple[tuple[Step, ...], ir.Value]:
    """Return the operations after a lookup that all columns can share, and their result.

    `id_dims` counts the dimensions between the rows and the width.
    """
    steps: list[Step] = []
    while (step := _read_step(value, id_dims)) is not None:
        steps.append(step)
        [use] = value.uses()
        value = use.node.outputs[0]
        if (isinstance(step, Reduction) and not step.keepdims) or isinstance(step, Flattening):
            id_dims -= len(step.axes)
    return tuple(steps), value


def _read_step(value: ir.Value, id_dims: int) -> Step | None:
    uses = value.uses()
    if len(uses) != 1 or value.is_graph_output() or value.shape is None or not id_dims:
        return None
    [use] = uses
    node = use.node
    if node.domain or node.graph is not value.graph:
        return None
    inner = range(1, 1 + id_dims)
    if node.op_type in _REDUCTIONS and use.idx == 0:
        axes = read_axes(node)
        axes = None if axes is None else normalize_axes(axes, id_dims + 2)
        keepdims = read_attribute(node, "keepdims", 1) == 1
        return (
            Reduction(node.op_type, axes, keepdims) if axes and all(axis in inner for axis in axes) else None
        )
    if node.op_type == "Squeeze" and use.idx == 0:
        axes = read_axes(node)
        axes = None if axes is None else normalize_axes(axes, id_dims + 2)
        return Flattening(axes) if axes and all(axis in inner for axis in axes) else None
    if node.op_type in ("Flatten", "Reshape") and use.idx == 0:
        return _read_reshape(node, value, id_dims)
    if node.op_type == "Mul":
        return _read_weighting(node.inputs[1 - use.idx], value)
    return None


def _read_reshape(node: ir.Node, value: ir.Value, id_dims: int) -> Step | None:
    """Return what a Flatten or Reshape of [rows, *ids, width] to two dimensions does."""
    dims = read_static_dims(value)
    if dims is None or None in dims[1:]:
        return None
    inner, total = dims[1 : 1 + id_dims], math.prod(dim or 0 for dim in dims[1:])
    if node.op_type == "Flatten":
        is_flat = read_attribute(node, "axis", 1) == 1
    else:
        is_flat = read_integers(node.inputs[1]) in ((-1, total), (0, total), (0, -1))
    if not is_flat:
        return None
    return Flattening(tuple(range(1, 1 + id_dims))) if set(inner) == {1} else Joining()


def _read_weighting(weights: ir.Value | None, rows: ir.Value) -> Weighting | None:
    """Return the weighting of rows of shape [rows, *ids, width] by `weights` of shape [rows, *ids, 1]; None for anything else."""
    if (
        weights is None
        or weights.shape is None
        or rows.shape is None
        or len(weights.shape) != len(rows.shape)
    ):
        return None
    if (
        weights.shape[-1] != 1
        or list(weights.shape)[:-1] != list(rows.shape)[:-1]
        or read_constant(weights) is not None
    ):
        return None
    node = weights.producer()
    if node is not None and node.op_type == "Unsqueeze" and node.inputs[0] is not None:
        axes = read_axes(node)
        if axes is not None and normalize_axes(axes, len(weights.shape)) == (len(weights.shape) - 1,):
            return Weighting(parse_expression(node.inputs[0]), unsqueezed=True)
    return Weighting(parse_expression(weights), unsqueezed=False)


def _output_dims(trailing: tuple[int, ...], steps: tuple[Step, ...]) -> tuple[int, ...]:
    dims = list(trailing)
    for step in steps:
        match step:
            case Reduction(axes=axes, keepdims=True):
                dims = [1 if position + 1 in axes else dim for position, dim in enumerate(dims)]
            case Reduction(axes=axes) | Flattening(axes):
                dims = [dim for position, dim in enumerate(dims) if position + 1 not in axes]
            case Joining():
                dims = []
            case Weighting():
                pass
    return tuple(dims)


def _describe_step(step: Step) -> Hashable:
    if not isinstance(step, Weighting):
        return step
    source = find_source(step.expression)
    return (
        "Weighting",
        describe_structure(step.expression),
        read_static_dims(source),
        read_row_symbol(source) or source,
        None if (block := find_block(source)) is None else block.matrix,
        step.unsqueezed,
    )
