"""Fuse embedding columns: one lookup in one table instead of one for each feature.

Models for recommendation look up hundreds to thousands of features, each by a few small operations of its own, and most of
their time goes into starting these operations. RECom (Pan et al., ASPLOS 2023) compiles the columns into one kernel; this
pass has the same effect in plain ONNX. Columns of the same structure are computed side by side: their ids form one matrix,
their tables one table, and each constant of their arithmetic one vector.

The pass keeps the meaning of Gather for every id: a negative one counts from the end of its own table, and one outside of
its own table fails the request, although the fused table would have a row for it.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import onnx_ir as ir

from tidegate_dataplane.graph_passes.constants import (
    Array,
    normalize_axes,
    read_attribute,
    read_constant,
    read_static_dims,
)
from tidegate_dataplane.graph_passes.elementwise import (
    Expression,
    bound_values,
    find_source,
    rebuild_expressions,
)
from tidegate_dataplane.graph_passes.embedding_columns import (
    Block,
    EmbeddingColumn,
    Flattening,
    Joining,
    Reduction,
    Weighting,
    find_block,
    find_columns,
)
from tidegate_dataplane.graph_passes.rewriting import Rewriting, finish_rewrite

MIN_CHUNK_BYTES: Final = 16
"""Tables of different widths share a lookup if their rows consist of pieces of at least this size."""


@dataclass(frozen=True, slots=True)
class FusedColumns:
    """What the pass did."""

    columns: int
    lookups: int
    """Lookups that the columns have become."""


def fuse_embeddings(model: ir.Model, *, columns_first: bool = True) -> FusedColumns:
    """Fuse the embedding columns of a model in place; shapes of its values must have been inferred.

    With `columns_first`, the lookup reads one table after the other, each of which fits into a cache; without, it does not
    need to transpose ids and rows. Which is faster depends on the tables, the columns and the rows: measure both.
    """
    graph = model.graph
    groups = defaultdict[Hashable, list[EmbeddingColumn]](list)
    for column in find_columns(graph):
        groups[column.describe_group()].append(column)
    batches = [batch for group in groups.values() for batch in _split_by_width(group) if len(batch) > 1]
    for number, batch in enumerate(batches):
        _Fusion(graph, batch, f"fused_embeddings_{number}", axis=0 if columns_first else 1).replace_columns()
    finish_rewrite(model)
    return FusedColumns(sum(map(len, batches)), len(batches))


def _split_by_width(group: Sequence[EmbeddingColumn]) -> Iterator[list[EmbeddingColumn]]:
    """Yield columns that one table can serve: all, if their widths have a large common divisor, else those of equal width."""
    item_bytes = group[0].table.dtype.itemsize if group[0].table.dtype is not None else 0
    if math.gcd(*(column.width for column in group)) * item_bytes >= MIN_CHUNK_BYTES:
        yield list(group)
        return
    by_width = defaultdict[int, list[EmbeddingColumn]](list)
    for column in group:
        by_width[column.width].append(column)
    yield from by_width.values()


class _Fusion:
    """Builds the nodes that replace some columns, in the order in which their outputs are concatenated.

    The columns are a dimension of its values: the one before the rows with axis 0, the one after the rows with axis 1.
    """

    def __init__(
        self, graph: ir.Graph, columns: Sequence[EmbeddingColumn], prefix: str, *, axis: int
    ) -> None:
        self._graph = graph
        self._columns = _sort_by_concat(columns)
        self._new = Rewriting(graph, prefix)
        self._axis = axis
        self._piece = math.gcd(*(column.width for column in columns))
        """Width of the fused table: a row of a wider table consists of several of its rows."""
        self._pieces = np.array([column.width // self._piece for column in self._columns])
        self._owners = np.repeat(np.arange(len(columns)), self._pieces)
        """Position of the column that each piece belongs to."""

    def replace_columns(self) -> None:
        """Insert the fused lookup, and let the consumers of the columns' outputs read from it."""
        rows = self._apply_steps(self._look_up())
        self._replace_outputs(self._flatten_rows(rows))
        self._new.insert_nodes()

    def _look_up(self) -> ir.Value:
        """Return the looked-up rows, [pieces, rows, *trailing, piece width] for axis 0."""
        sources = [(column.source, column.block) for column in self._columns]
        expressions = [column.ids for column in self._columns]
        ids = self._rebuild_columns(
            expressions,
            self._stack_sources(sources, self._columns[0].trailing),
            len(self._columns[0].trailing),
        )
        ids = self._new.add_node("Cast", [ids], {"to": ir.DataType.INT64})
        table, bases = self._concatenate_tables()
        index = self._index_pieces(self._new, self._check_range(ids, len(table)), bases)
        return self._new.add_node("Gather", [self._new.add_constant(table), index], {"axis": 0})

    def _rebuild_columns(self, expressions: list[Expression], stacked: ir.Value, dims: int) -> ir.Value:
        """Return one value that computes all expressions, whose sources have `dims` dimensions after the rows."""
        return rebuild_expressions(
            self._new,
            expressions,
            stacked,
            lambda scalars: self._add_vector(self._new, np.stack(scalars), dims),
        )

    def _check_range(self, ids: ir.Value, outside: int) -> ir.Value:
        """Return ids counted from the start of their table, `outside` for each that is not in it.

        Nearly all requests have ids from 0 to the end of the table alone, so that they pay for one comparison with each
        bound, and none of what the others need. Where the graph itself bounds the ids, there is no comparison.
        """
        bounds = [bound_values(column.ids) for column in self._columns]
        entries = np.array([column.entries for column in self._columns])
        if all(low >= 0 and high < size for (low, high), size in zip(bounds, entries, strict=True)):
            return ids
        zero = self._new.add_constant(np.array(0, dtype=np.int64))
        sizes = self._add_vector(self._new, entries)
        is_other = self._new.add_node("GreaterOrEqual", [ids, sizes])
        if any(low < 0 for low, _ in bounds):
            # One zero for each column: ONNX Runtime takes five times as long to compare with a single one.
            zeros = self._add_vector(self._new, np.zeros_like(entries))
            is_other = self._new.add_node("Or", [is_other, self._new.add_node("Less", [ids, zeros])])
        outside_count = self._new.add_node("Cast", [is_other], {"to": ir.DataType.INT32})
        outside_count = self._new.add_node("ReduceSum", [outside_count], {"keepdims": 0})
        is_plain = self._new.add_node(
            "Equal", [outside_count, self._new.add_constant(np.array(0, dtype=np.int32))]
        )
        return self._new.add_choice(
            is_plain,
            lambda plain: plain.add_node("Identity", [ids]),
            lambda other: _wrap_ids(other, ids, sizes, zero, self._new.add_constant(np.array(outside))),
        )

    def _index_pieces(self, new: Rewriting, ids: ir.Value, bases: Array) -> ir.Value:
        """Return the rows of the fused table that each id stands for."""
        offsets = bases
        if self._pieces.max() > 1:
            ids = new.add_node(
                "Mul", [self._repeat_for_pieces(ids), self._add_vector(new, self._pieces[self._owners])]
            )
            offsets = bases[self._owners] + np.concatenate([np.arange(count) for count in self._pieces])
        return new.add_node("Add", [ids, self._add_vector(new, offsets)])

    def _repeat_for_pieces(self, value: ir.Value) -> ir.Value:
        """Repeat what belongs to a column for each of its pieces."""
        return self._new.add_node(
            "Gather", [value, self._new.add_constant(self._owners)], {"axis": self._axis}
        )

    def _add_vector(self, new: Rewriting, vector: Array, dims: int | None = None) -> ir.Value:
        """Add a constant with one number per column; it fits the ids, or values with `dims` dimensions after the rows."""
        trailing = (1,) * (len(self._columns[0].trailing) if dims is None else dims)
        return new.add_constant(
            vector.reshape(-1, 1, *trailing) if self._axis == 0 else vector.reshape(1, -1, *trailing)
        )

    def _concatenate_tables(self) -> tuple[Array, Array]:
        """Return one table of the columns' tables, and the row at which each column's own begins."""
        bases: dict[ir.Value, int] = {}
        parts: list[Array] = []
        end = 0
        for column in self._columns:
            if column.table not in bases:
                part = read_constant(column.table)
                assert part is not None  # noqa: S101  find_columns read it
                bases[column.table] = end
                parts.append(part.reshape(-1, self._piece))
                end += len(parts[-1])
        return np.concatenate(parts), np.array([bases[column.table] for column in self._columns])

    def _stack_sources(
        self, sources: Sequence[tuple[ir.Value, Block | None]], trailing: tuple[int, ...]
    ) -> ir.Value:
        """Return the sources side by side, [sources, rows, *trailing] for axis 0 and [rows, sources, *trailing] for axis 1."""
        blocks = [block for _, block in sources if block is not None]
        if len(blocks) == len(sources) and len({block.matrix for block in blocks}) == 1:
            matrix = self._select_blocks(blocks)
            shape = self._new.add_constant(np.array([0, len(sources), *trailing]))
            stacked, axis = (self._new.add_node("Reshape", [matrix, shape]) if trailing else matrix), 1
        elif trailing == (1,):
            # One id in a matrix of its own each: side by side they are one matrix.
            matrix = self._new.add_node("Concat", [value for value, _ in sources], {"axis": 1})
            shape = self._new.add_constant(np.array([0, len(sources), 1]))
            stacked, axis = self._new.add_node("Reshape", [matrix, shape]), 1
        else:
            stacked, axis = self._join_values([value for value, _ in sources]), 0
        if axis == self._axis:
            return stacked
        return self._new.add_node("Transpose", [stacked], {"perm": [1, 0, *range(2, 2 + len(trailing))]})

    def _join_values(self, values: Sequence[ir.Value]) -> ir.Value:
        """Return values of the same shape one after the other, with a dimension before theirs."""
        # Not Concat and Reshape: values with different numbers of rows would change places.
        sequence = self._new.add_node("SequenceConstruct", values)
        # Shape inference takes it for a tensor.
        sequence.type = ir.SequenceType(ir.TensorType(values[0].dtype or ir.DataType.UNDEFINED))
        return self._new.add_node("ConcatFromSequence", [sequence], {"axis": 0, "new_axis": 1})

    def _select_blocks(self, blocks: Sequence[Block]) -> ir.Value:
        matrix = blocks[0].matrix
        positions = np.concatenate([np.arange(block.start, block.stop) for block in blocks])
        dims = read_static_dims(matrix)
        if dims is not None and np.array_equal(positions, np.arange(dims[1] or 0)):
            return matrix
        return self._new.add_node("Gather", [matrix, self._new.add_constant(positions)], {"axis": 1})

    def _apply_steps(self, rows: ir.Value) -> ir.Value:
        """Return the rows after pooling and weighting."""
        for position, step in enumerate(self._columns[0].steps):
            match step:
                case Reduction(operator, axes, keepdims):
                    rows = self._add_reduction(operator, rows, [axis + 1 for axis in axes], keepdims=keepdims)
                case Flattening(axes):
                    inner = self._new.add_constant(np.array([axis + 1 for axis in axes]))
                    rows = self._new.add_node("Squeeze", [rows, inner])
                case Joining():
                    width = self._columns[0].output_width
                    shape = self._new.add_constant(np.array([0, 0, width]))
                    rows = self._new.add_node("Reshape", [rows, shape])
                case Weighting(unsqueezed=unsqueezed):
                    weights = self._stack_weights([column.steps[position] for column in self._columns])
                    if unsqueezed:
                        weights = self._new.add_node(
                            "Unsqueeze", [weights, self._new.add_constant(np.array([-1]))]
                        )
                    rows = self._new.add_node("Mul", [rows, weights])
        return rows

    def _stack_weights(self, steps: Sequence[object]) -> ir.Value:
        expressions = [step.expression for step in steps if isinstance(step, Weighting)]
        sources = [find_source(expression) for expression in expressions]
        trailing = tuple(dim or 0 for dim in (read_static_dims(sources[0]) or ())[1:])
        stacked = self._stack_sources([(source, find_block(source)) for source in sources], trailing)
        weights = self._rebuild_columns(expressions, stacked, len(trailing))
        return self._repeat_for_pieces(weights) if self._pieces.max() > 1 else weights

    def _add_reduction(self, operator: str, rows: ir.Value, axes: list[int], *, keepdims: bool) -> ir.Value:
        node = next(node for node in _walk_steps(self._columns[0]) if node.op_type == operator)
        attributes = {"keepdims": int(keepdims)}
        if "axes" in node.attributes:
            return self._new.add_node(operator, [rows], {**attributes, "axes": axes})
        return self._new.add_node(operator, [rows, self._new.add_constant(np.array(axes))], attributes)

    def _flatten_rows(self, rows: ir.Value) -> ir.Value:
        """Return [rows, *output dims, all widths] of [pieces, rows, *output dims, piece width], or of it with rows first."""
        dims = self._columns[0].output_dims
        if self._axis == 0 or any(dim != 1 for dim in dims):
            inner = range(2, 2 + len(dims))
            rows = self._new.add_node(
                "Transpose", [rows], {"perm": [1 - self._axis, *inner, self._axis, 2 + len(dims)]}
            )
        width = sum(column.output_width for column in self._columns)
        return self._new.add_node("Reshape", [rows, self._new.add_constant(np.array([0, *dims, width]))])

    def _replace_outputs(self, flat: ir.Value) -> None:
        """Let consumers read slices of `flat`: a Concat of neighbours reads one slice of them, all others one each."""
        starts = dict(
            zip(
                [column.output for column in self._columns],
                itertools.accumulate([column.output_width for column in self._columns], initial=0),
                strict=False,
            )
        )
        widths = {column.output: column.output_width for column in self._columns}
        last = len(self._columns[0].output_dims) + 1
        for concat in _find_concats(self._columns):
            axis = normalize_axes([read_attribute(concat, "axis", 0)], last + 1)[0]
            if axis == last:
                self._merge_runs(concat, flat, starts, widths, last)
        unmerged = [column.output for column in self._columns if column.output.uses()]
        if not unmerged:
            return
        sizes = self._new.add_constant(np.array([widths[column.output] for column in self._columns]))
        pieces = self._new.add_split(flat, sizes, last, len(self._columns))
        for column, value in zip(self._columns, pieces, strict=True):
            ir.convenience.replace_all_uses_with(column.output, value)

    def _merge_runs(
        self,
        concat: ir.Node,
        flat: ir.Value,
        starts: dict[ir.Value, int],
        widths: dict[ir.Value, int],
        last: int,
    ) -> None:
        """Replace each run of neighbours among a Concat's inputs by one slice of `flat`."""
        inputs: list[ir.Value] = []
        run: tuple[int, int] | None = None
        total = sum(widths.values())

        def close_run() -> None:
            if run is None:
                return
            start, stop = run
            inputs.append(flat if (start, stop) == (0, total) else self._add_slice(flat, start, stop, last))

        for value in concat.inputs:
            assert value is not None  # noqa: S101  a Concat has no optional inputs
            if value in starts and run is not None and run[1] == starts[value]:
                run = run[0], run[1] + widths[value]
                continue
            close_run()
            run = (starts[value], starts[value] + widths[value]) if value in starts else None
            if run is None:
                inputs.append(value)
        close_run()
        if len(inputs) == 1 and not concat.outputs[0].is_graph_output():
            ir.convenience.replace_all_uses_with(concat.outputs[0], inputs[0])
            return
        # In place, so that an output of the graph keeps its name.
        concat.resize_inputs(len(inputs))
        for position, value in enumerate(inputs):
            concat.replace_input_with(position, value)

    def _add_slice(self, flat: ir.Value, start: int, stop: int, axis: int) -> ir.Value:
        bounds = [self._new.add_constant(np.array([number])) for number in (start, stop, axis)]
        return self._new.add_node("Slice", [flat, *bounds])


def _wrap_ids(new: Rewriting, ids: ir.Value, sizes: ir.Value, zero: ir.Value, outside: ir.Value) -> ir.Value:
    """Count negative ids from the end of their table, and put those that are in no row of it outside of all tables."""
    wrapped = new.add_node(
        "Where", [new.add_node("Less", [ids, zero]), new.add_node("Add", [ids, sizes]), ids]
    )
    is_inside = new.add_node(
        "And", [new.add_node("GreaterOrEqual", [wrapped, zero]), new.add_node("Less", [wrapped, sizes])]
    )
    return new.add_node("Where", [is_inside, wrapped, outside])


def _sort_by_concat(columns: Sequence[EmbeddingColumn]) -> list[EmbeddingColumn]:
    """Return the columns in the order in which the first Concat that reads each of them has it."""
    positions: dict[ir.Value, tuple[int, int]] = {}
    for number, concat in enumerate(_find_concats(columns)):
        for position, value in enumerate(concat.inputs):
            if value is not None:
                positions.setdefault(value, (number, position))
    unread = (len(positions), 0)
    return sorted(columns, key=lambda column: positions.get(column.output, unread))


def _find_concats(columns: Sequence[EmbeddingColumn]) -> list[ir.Node]:
    """Return the Concats that read outputs of columns, each once."""
    return list(
        dict.fromkeys(
            use.node
            for column in columns
            for use in column.output.uses()
            if use.node.op_identifier()[:2] == ("", "Concat") and use.node.graph is column.gather.graph
        )
    )


def _walk_steps(column: EmbeddingColumn) -> Iterator[ir.Node]:
    """Yield the nodes of a column's steps."""
    value = column.gather.outputs[0]
    for _ in column.steps:
        [use] = value.uses()
        yield use.node
        value = use.node.outputs[0]
