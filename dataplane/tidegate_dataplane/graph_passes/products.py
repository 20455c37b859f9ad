"""Read the products of values with constant matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import onnx_ir as ir

from tidegate_dataplane.graph_passes.constants import Array, read_attribute, read_constant

FLOATS: Final = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE})
"""Types whose products may be split: others would round too much, or overflow."""


def is_product(node: ir.Node) -> bool:
    """Return whether a node is a MatMul, or a Gemm that computes the same and may add a bias."""
    if node.domain or node.op_type not in ("MatMul", "Gemm"):
        return False
    if node.op_type == "MatMul":
        return True
    attributes = node.attributes
    scaled = any(name in attributes and attributes[name].as_float() != 1.0 for name in ("alpha", "beta"))
    return not scaled and not read_attribute(node, "transA", 0)


def read_matrix(node: ir.Node) -> Array | None:
    """Return the constant second factor of a product, None if it is no constant matrix."""
    matrix = read_constant(node.inputs[1])
    if matrix is None or matrix.ndim != 2:
        return None
    return matrix.T if read_attribute(node, "transB", 0) else matrix


def read_columns(concat: ir.Node) -> Sequence[tuple[ir.Value, range]] | None:
    """Return the parts of a concatenation of the last dimension, each with its columns; None if it is none, or a width is unknown."""
    joined = concat.outputs[0]
    if concat.op_identifier()[:2] != ("", "Concat") or joined.shape is None or joined.dtype not in FLOATS:
        return None
    rank = len(joined.shape)
    if rank < 2 or read_attribute(concat, "axis", 0) not in (rank - 1, -1):
        return None
    columns: list[tuple[ir.Value, range]] = []
    start = 0
    for part in concat.inputs:
        width = None if part is None or part.shape is None else part.shape[-1]
        if part is None or not isinstance(width, int):
            return None
        columns.append((part, range(start, start + width)))
        start += width
    return columns
