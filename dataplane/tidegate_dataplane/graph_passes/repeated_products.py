"""Multiply a value before it is repeated: Expand(x) W = Expand(x W), which has as many products as x has rows.

The repetition is made for the same sizes as before, so that it refuses what it refused. ONNX Runtime may add the products of
one row in another order than those of many, so answers differ by rounding.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from tidegate_dataplane.graph_passes.constants import Array, read_attribute, read_integers
from tidegate_dataplane.graph_passes.products import FLOATS, read_matrix
from tidegate_dataplane.graph_passes.rewriting import Rewriting, rename_output
from tidegate_dataplane.graph_passes.shape_arithmetic import read_sizes


def multiply_inner(graph: ir.Graph, node: ir.Node) -> bool:
    """Let a product read what an Expand or Tile repeats, and repeat the product instead; return whether that is possible.

    `node` is a product as in `is_product`. Shapes of the graph's values must have been inferred.
    """
    matrix = read_matrix(node)
    repetition = None if node.inputs[0] is None else node.inputs[0].producer()
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if matrix is None or repetition is None or not _keeps_width(repetition, len(matrix)):
        return False
    inner, repeated = repetition.inputs[0], repetition.outputs[0]
    if inner is None or inner.shape is None or not _is_row(bias):
        return False
    new = Rewriting(graph, "repeated_product")
    product = new.add_node("MatMul", [inner, _read_factor(new, node, matrix)])
    product.type, product.shape = repeated.type, ir.Shape([*inner.shape.dims[:-1], matrix.shape[1]])
    total = new.add_node(repetition.op_type, [product, _keep_width(new, repetition)])
    if bias is not None:
        total = new.add_node("Add", [total, bias])
    # The next product may read it.
    total.type, total.shape = repeated.type, node.outputs[0].shape
    new.insert_nodes()
    rename_output(node.outputs[0], total)
    graph.remove(node, safe=True)
    return True


def _keeps_width(repetition: ir.Node, width: int) -> bool:
    """Return whether a node repeats another dimension than the last, which has `width` numbers before and after."""
    if repetition.domain or repetition.op_type not in ("Expand", "Tile") or not width:
        return False
    inner, repeated = repetition.inputs[0], repetition.outputs[0]
    if inner is None or inner.shape is None or repeated.shape is None or repeated.dtype not in FLOATS:
        return False
    if len(inner.shape) != len(repeated.shape) or len(inner.shape) < 2 or inner.shape[-1] != width:
        return False
    if repetition.op_type == "Tile":
        # Without constant counts, inference leaves all sizes open.
        counts = read_sizes(repetition.inputs[1])
        is_kept = counts is not None and counts[-1:] == (1,)
    else:
        is_kept = repeated.shape[-1] == width
    dims = zip(inner.shape.dims[:-1], repeated.shape.dims[:-1], strict=True)
    return is_kept and any(mine == 1 != size for mine, size in dims)


def _is_row(bias: ir.Value | None) -> bool:
    """Return whether a Gemm adds nothing, or the same to each row: an Add would repeat a row for a bias of many."""
    if bias is None:
        return True
    return bias.shape is not None and (len(bias.shape) < 2 or bias.shape[0] == 1)


def _read_factor(new: Rewriting, product: ir.Node, matrix: Array) -> ir.Value:
    factor = product.inputs[1]
    if factor is None or read_attribute(product, "transB", 0):
        return new.add_constant(np.ascontiguousarray(matrix))
    return factor


def _keep_width(new: Rewriting, repetition: ir.Node) -> ir.Value:
    """Return the second operand of a repetition, which leaves the last dimension as it is whatever its size."""
    sizes = repetition.inputs[1]
    assert sizes is not None  # noqa: S101  neither operator has a default for it
    if repetition.op_type == "Tile":
        return sizes
    numbers = read_integers(sizes)
    if numbers is not None:
        return new.add_constant(np.array([*numbers[:-1], 1], dtype=np.int64))
    start, stop, single = (new.add_constant(np.array([number])) for number in (0, -1, 1))
    return new.add_node("Concat", [new.add_node("Slice", [sizes, start, stop]), single], {"axis": 0})
