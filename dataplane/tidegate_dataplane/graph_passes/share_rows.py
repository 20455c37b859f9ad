"""Share what all rows of a request have in common: compute the part of a graph that depends on the user once per request.

A request scores many items for one user, and most models repeat the user's features for every item. This pass lets the
named inputs have one row, follows it through every operation that treats rows independently, and repeats a value only where
an operation needs as many rows as the items have.
The rewritten graph takes either form: one row in all of the named inputs, or as many rows in all of them as the items have.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
import onnx
import onnx_ir as ir

from tidegate_dataplane.graph_passes.constants import read_attribute, read_constant, read_row_symbol
from tidegate_dataplane.graph_passes.late_broadcasts import BROADCASTING
from tidegate_dataplane.graph_passes.mixed_products import MixedParts, multiply_parts, split_concat
from tidegate_dataplane.graph_passes.rewriting import Rewriting, finish_rewrite, rename_output
from tidegate_dataplane.graph_passes.row_wise import ROW_WISE
from tidegate_dataplane.graph_passes.shape_inference import infer_shapes
from tidegate_dataplane.runner_interface import SHARED_ROWS

_UNARY: Final = frozenset(
    {
        "Abs", "Cast", "Ceil", "Celu", "Clip", "Dropout", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid",
        "HardSwish", "Identity", "IsInf", "IsNaN", "LeakyRelu", "Log", "Mish", "Neg", "Not", "PRelu", "Reciprocal",
        "Relu", "Round", "Selu", "Sigmoid", "Sign", "Sin", "Cos", "Softplus", "Softsign", "Sqrt", "Tanh",
        "ThresholdedRelu",
    }
)  # fmt: skip


MIN_OPSET: Final = 15
"""With Shape of some dimensions alone."""


class ShareRowsError(ValueError):
    """The graph or the choice of inputs cannot be shared."""


def share_rows(model: ir.Model, names: Iterable[str]) -> int:
    """Let the named inputs have one row, in place; return how many operations then run once per request.

    Shapes must have been inferred. Raise ShareRowsError if an input is unknown or no other input has rows.
    """
    opset = model.opset_imports.get("", 0)
    if opset < MIN_OPSET:
        raise ShareRowsError(f"the model has opset {opset}: export it with {MIN_OPSET} or later")
    _name_rows(model)
    return _Sharing(model.graph, frozenset(names)).rewrite_graph(model)


def find_shared_inputs(model: onnx.ModelProto) -> tuple[str, ...]:
    """Return the inputs of a rewritten graph that may have one row."""
    return tuple(
        value.name
        for value in model.graph.input
        if [dim.dim_param for dim in value.type.tensor_type.shape.dim][:1] == [SHARED_ROWS]
    )


def _name_rows(model: ir.Model) -> None:
    """Give the first dimension of inputs one name where it has none: a server gives all of them the same number of rows."""
    inputs = [value for value in model.graph.inputs if value.shape is not None and len(value.shape)]
    names = [read_row_symbol(value) for value in inputs]
    if None in names:
        name = next((symbol for symbol in names if isinstance(symbol, str)), "tidegate_rows")
        for value, symbol in zip(inputs, names, strict=True):
            if value.shape is not None and symbol is None:
                value.shape = ir.Shape([name, *value.shape.dims[1:]])
        infer_shapes(model)


class _Sharing:
    """One pass over a graph whose nodes are in topological order."""

    def __init__(self, graph: ir.Graph, names: frozenset[str]) -> None:
        inputs = {value.name: value for value in graph.inputs if not value.is_initializer()}
        if unknown := names - inputs.keys():
            raise ShareRowsError(
                f"no input {', '.join(sorted(map(repr, unknown)))}; the model has {sorted(map(str, inputs))}"
            )
        item_inputs = [
            value
            for name, value in inputs.items()
            if name not in names and value.shape is not None and len(value.shape)
        ]
        if not item_inputs:
            raise ShareRowsError(
                "every input with rows is to be shared: leave one that has the request's rows"
            )
        if any(_has_subgraph(node) for node in graph):
            raise ShareRowsError(
                "the graph has control flow (If, Loop or Scan), whose parts are not followed"
            )
        if any(value.is_graph_input() for value in graph.outputs):
            raise ShareRowsError("an input of the graph is an output as well")
        self._graph = graph
        self._shared = {inputs[name] for name in names}
        self._new = Rewriting(graph, "shared_rows")
        self._rows_of = item_inputs[0]
        self._row_symbol = read_row_symbol(item_inputs[0])
        if not isinstance(self._row_symbol, str):
            raise ShareRowsError(
                f"input {item_inputs[0].name!r} has {self._row_symbol} rows in every request"
            )
        for name in names:
            if read_row_symbol(inputs[name]) != self._row_symbol:
                raise ShareRowsError(
                    f"input {name!r} does not have the rows of input {item_inputs[0].name!r}"
                )
        self._rows: ir.Value | None = None
        self._repeated: dict[ir.Value, ir.Value] = {}
        self._mixed: dict[ir.Value, MixedParts] = {}
        """By the concatenation, which nothing reads in the end."""
        self._operations = 0

    def rewrite_graph(self, model: ir.Model) -> int:
        for value in self._shared:
            if value.shape is None or not len(value.shape):
                raise ShareRowsError(f"input {value.name!r} has no first dimension")
            value.shape = ir.Shape([SHARED_ROWS, *value.shape.dims[1:]])
        for node in list(self._graph):
            self._visit_node(node)
        for position, output in enumerate(list(self._graph.outputs)):
            if output in self._shared:
                self._repeat_output(position, output)
        self._new.insert_nodes()
        for node in self._graph:
            for value in node.outputs:
                value.shape = value.shape if value.is_graph_output() else None
        finish_rewrite(model)
        return self._operations

    def _visit_node(self, node: ir.Node) -> None:
        mixed = self._mixed.get(node.inputs[0]) if node.inputs and node.inputs[0] is not None else None
        if mixed is not None:
            multiply_parts(self._new, node, mixed)
            self._operations += 1
            return
        if not any(value in self._shared for value in node.inputs):
            return
        if not node.domain and node.op_type == "Shape":
            self._read_shape(node)
        elif self._is_row_wise(node) and not any(self._has_rows(value) for value in node.inputs):
            self._shared.update(node.outputs)
            self._operations += 1
        elif not self._repeats_itself(node) and not self._split_concat(node):
            self._repeat_inputs(node)

    def _has_rows(self, value: ir.Value | None) -> bool:
        """Return whether a value is neither shared nor a constant."""
        return value is not None and value not in self._shared and read_constant(value) is None

    def _is_row_wise(self, node: ir.Node) -> bool:
        """Return whether one row of the shared inputs leads to one row of the result, whatever the other rows are."""
        if node.domain:
            return False
        if node.op_type in _UNARY:
            return self._is_shared_first(node)
        if node.op_type in BROADCASTING:
            return self._keeps_rank(node)
        rule = ROW_WISE.get(node.op_type)
        return rule is not None and rule(node, self._shared)

    def _is_shared_first(self, node: ir.Node) -> bool:
        return node.inputs[0] in self._shared and all(value not in self._shared for value in node.inputs[1:])

    def _keeps_rank(self, node: ir.Node) -> bool:
        """Return whether constants among the operands have no dimension that meets the rows, unless it is of size 1."""
        ranks = [
            len(value.shape) for value in node.inputs if value in self._shared and value.shape is not None
        ]
        if not ranks or len(set(ranks)) != 1:
            return False
        for value in node.inputs:
            constant = read_constant(value)
            if constant is not None and (
                constant.ndim > ranks[0]
                or (constant.ndim == ranks[0] and constant.shape[:1] not in ((), (1,)))
            ):
                return False
        return True

    def _repeats_itself(self, node: ir.Node) -> bool:
        """Return whether an operation of shared values and values with rows repeats the shared ones by itself."""
        if node.domain:
            return False
        values = [value for value in node.inputs if value is not None and read_constant(value) is None]
        ranks = {len(value.shape) if value.shape is not None else -1 for value in values}
        if len(ranks) != 1 or -1 in ranks:
            return False
        if not any(
            read_row_symbol(value) == self._row_symbol for value in values if value not in self._shared
        ):
            return False
        if node.op_type in BROADCASTING:
            return self._keeps_rank(node)
        return node.op_type == "MatMul" and ranks.pop() >= 3 and len(values) == 2

    def _split_concat(self, node: ir.Node) -> bool:
        """Return whether a concatenation could be split, so that its shared part need not be repeated."""
        parts = split_concat(self._new, node, self._shared.__contains__)
        if parts is not None:
            self._mixed[node.outputs[0]] = parts
        return parts is not None

    def _repeat_inputs(self, node: ir.Node) -> None:
        for position, value in enumerate(node.inputs):
            if value is not None and value in self._shared:
                node.replace_input_with(position, self._repeat_value(value))

    def _repeat_value(self, value: ir.Value) -> ir.Value:
        if value not in self._repeated:
            if value.shape is None:
                raise ShareRowsError(f"the graph does not show how many dimensions {value.name!r} has")
            ones = np.ones(len(value.shape) - 1, dtype=np.int64)
            shape = self._count_rows()
            if len(ones):
                shape = self._new.add_node("Concat", [shape, self._new.add_constant(ones)], {"axis": 0})
            self._repeated[value] = self._new.add_node("Expand", [value, shape])
        return self._repeated[value]

    def _repeat_output(self, position: int, output: ir.Value) -> None:
        repeated = self._repeat_value(output)
        repeated.name, output.name = output.name, None
        repeated.type = output.type
        self._graph.outputs[position] = repeated

    def _read_shape(self, node: ir.Node) -> None:
        """Let a Shape of a shared value return the rows of the request."""
        start, end = read_attribute(node, "start", 0), read_attribute(node, "end", 2**31)
        if start > 0:
            return
        [value] = node.inputs
        rank = len(value.shape) if value is not None and value.shape is not None else 0
        if start == 0 and end >= rank > 1:
            tail = self._new.add_node("Shape", [value], {"start": 1})
            shape = self._new.add_node("Concat", [self._count_rows(), tail], {"axis": 0})
            rename_output(node.outputs[0], shape)
        else:
            self._repeat_inputs(node)

    def _count_rows(self) -> ir.Value:
        if self._rows is None:
            self._rows = self._new.add_node("Shape", [self._rows_of], {"start": 0, "end": 1})
        return self._rows


def _has_subgraph(node: ir.Node) -> bool:
    kinds = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
    return any(attribute.type in kinds for attribute in node.attributes.values())
