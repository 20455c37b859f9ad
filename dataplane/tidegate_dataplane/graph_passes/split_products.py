"""Split the product of a concatenation: compute what does not depend on the broadcast dimension once per row.

A model that attends over a history multiplies concat(q, h, q - h, q * h) by one matrix, with the target q repeated for each
of the history's positions. The product is linear in each part, so it equals

    q (Wq + Ws) + h (Wh - Ws) + (q * h) Wp

for the slices Wq, Wh, Ws, Wp of the matrix. The first term has one row per request instead of one per position, and the
second and third have half of the original's multiplications. Sums are made in another order than in the original graph, so
answers differ by rounding.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from tidegate_dataplane.graph_passes.constants import Array
from tidegate_dataplane.graph_passes.late_broadcasts import BROADCASTING
from tidegate_dataplane.graph_passes.products import is_product, read_columns, read_matrix
from tidegate_dataplane.graph_passes.repeated_products import multiply_inner
from tidegate_dataplane.graph_passes.repetitions import Repetition, has_same_dims, read_repetition
from tidegate_dataplane.graph_passes.rewriting import Rewriting, finish_rewrite, rename_output


@dataclass(frozen=True, slots=True)
class _Term:
    """One summand of a product: a value times its rows of the matrix."""

    value: ir.Value
    matrix: Array


def split_products(model: ir.Model) -> int:
    """Split products of concatenations, and move those of repeated values before the repetition; return how many changed.

    A product is split only where that leaves fewer multiplications. Shapes of the model's values must have been inferred.
    """
    split = sum(
        _split_product(model.graph, node) or multiply_inner(model.graph, node)
        for node in list(model.graph)
        if is_product(node)
    )
    if split:
        finish_rewrite(model)
    return split


def _split_product(graph: ir.Graph, node: ir.Node) -> bool:
    joined, matrix = node.inputs[0], read_matrix(node)
    concat = None if joined is None else joined.producer()
    if joined is None or matrix is None or concat is None:
        return False
    columns = read_columns(concat)
    if columns is None or len(joined.uses()) > 1 or joined.is_graph_output():
        return False
    terms = _read_terms(columns, concat, matrix)
    full = [term for term in terms if term.value in concat.inputs]
    small = [term for term in terms if term.value not in concat.inputs]
    if not full or sum(len(term.matrix) for term in full) >= len(matrix):
        return False
    new = Rewriting(graph, "split_product")
    total = _sum_terms(new, full, small)
    if node.op_type == "Gemm" and len(node.inputs) > 2 and node.inputs[2] is not None:
        total = new.add_node("Add", [total, node.inputs[2]])
    new.insert_nodes()
    rename_output(node.outputs[0], total)
    graph.remove(node, safe=True)
    return True


def _read_terms(columns: Sequence[tuple[ir.Value, range]], concat: ir.Node, matrix: Array) -> list[_Term]:
    """Return one term per value that the parts of a concatenation consist of, with its rows of the matrix.

    Every term is a part itself, or has one row where the concatenation has many.
    """
    sums: dict[ir.Value, Array] = {}
    for part, positions in columns:
        # In double precision, so that the sum of the slices is rounded once.
        rows = matrix[positions.start : positions.stop].astype(np.float64)
        for sign, value in _expand_part(part, concat):
            sums[value] = sums[value] + sign * rows if value in sums else sign * rows
    return [_Term(value, total.astype(matrix.dtype)) for value, total in sums.items()]


def _expand_part(part: ir.Value, concat: ir.Node) -> list[tuple[int, ir.Value]]:
    """Return values of the same width whose signed sum a part is; the part alone if that would not save anything."""
    repetition = read_repetition(part)
    if repetition is not None and _is_small(repetition, concat):
        return [(1, repetition.inner)]
    node = part.producer()
    if node is None or node.domain or node.op_type not in ("Add", "Sub"):
        return [(1, part)]
    operands = [_strip_repetition(operand, part, concat) for operand in node.inputs]
    if any(operand is None for operand in operands):
        return [(1, part)]
    signs = (1, -1 if node.op_type == "Sub" else 1)
    return [(sign, operand) for sign, operand in zip(signs, operands, strict=True) if operand is not None]


def _strip_repetition(operand: ir.Value | None, part: ir.Value, concat: ir.Node) -> ir.Value | None:
    """Return an operand without its repetition if it is a part itself, or has one row where the parts have many; else None.

    The difference of two large values that are almost equal must not become the difference of two large products. If the
    concatenation has one of the values as well, the result is as large as they are.
    """
    if operand is None or operand.shape is None or part.shape is None or operand.shape[-1] != part.shape[-1]:
        return None
    repetition = read_repetition(operand)
    if repetition is not None and _is_small(repetition, concat):
        return repetition.inner
    if operand in concat.inputs and has_same_dims(operand, part):
        return operand
    is_small = len(operand.shape) == len(part.shape) and all(
        mine in (1, dim) for mine, dim in zip(operand.shape.dims, part.shape.dims, strict=True)
    )
    return operand if is_small and 1 in operand.shape.dims[:-1] else None


def _is_small(repetition: Repetition, concat: ir.Node) -> bool:
    """Return whether a repetition leaves the width alone and was made for a part of the concatenation."""
    inner, output = repetition.inner, concat.outputs[0]
    if inner.shape is None or output.shape is None or not isinstance(inner.shape[-1], int):
        return False
    has_rows = repetition.reference is None or repetition.reference in concat.inputs
    return has_rows and 1 in inner.shape.dims[:-1]


def _sum_terms(new: Rewriting, full: list[_Term], small: list[_Term]) -> ir.Value:
    """Return the sum of all products.

    Parts stay concatenated where a request could give them different sizes: the original refuses that, and a sum would not.
    """
    first = full[0].value
    if not all(term.value is first or _follows_dims(term.value, first) for term in full):
        joined = new.add_node("Concat", [term.value for term in full], {"axis": -1})
        full = [_Term(joined, np.concatenate([term.matrix for term in full]))]
    products = [
        new.add_node("MatMul", [term.value, new.add_constant(np.ascontiguousarray(term.matrix))])
        for term in (*full, *small)
    ]
    return functools.reduce(lambda total, product: new.add_node("Add", [total, product]), products)


def _follows_dims(value: ir.Value, base: ir.Value) -> bool:
    """Return whether `value` has the dimensions of `base` for every request: an operation of it and of what has single rows."""
    node = value.producer()
    if node is None or node.domain or node.op_type not in BROADCASTING or base not in node.inputs:
        return False
    return all(
        operand is base or (operand is not None and _has_single_dims(operand, base))
        for operand in node.inputs
    )


def _has_single_dims(operand: ir.Value, base: ir.Value) -> bool:
    repetition = read_repetition(operand)
    if repetition is not None and repetition.reference is base:
        return True
    if operand.shape is None or base.shape is None or len(operand.shape) != len(base.shape):
        return False
    dims = list(zip(operand.shape.dims, base.shape.dims, strict=True))
    # A server gives all inputs the same number of rows; sizes that the graph states are checked.
    return dims[0][0] in (1, dims[0][1]) and all(
        mine == 1 or (isinstance(mine, int) and mine == theirs) for mine, theirs in dims[1:]
    )
