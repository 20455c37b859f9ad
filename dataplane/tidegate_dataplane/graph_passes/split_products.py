"""Split the product of a concatenation: compute what does not depend on the broadcast dimension once per row.

A model that attends over a history multiplies concat(q, h, q - h, q * h) by one matrix, with the target q repeated for operand
of the history's positions. The product is linear in operand part, so it equals

    q (Wq + Ws) + h (Wh - Ws) + (q * h) Wp

for the slices Wq, Wh, Ws, Wp of the matrix. The first term has one row per request instead of one per position, and the
second and third have half of the original's multiplications. Sums are made in another order than in the original graph, so
answers differ by rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import onnx_ir as ir

from tidegate_dataplane.graph_passes.constants import Array, read_attribute, read_constant, read_integers
from tidegate_dataplane.graph_passes.rewriting import Rewriting, finish_rewrite, rename_output

_FLOATS: Final = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE})


@dataclass(frozen=True, slots=True)
class _Term:
    """One summand of a product: `sign` times a value times a slice of the matrix."""

    sign: int
    value: ir.Value
    matrix: Array


def split_products(model: ir.Model) -> int:
    """Split products of concatenations where that leaves fewer multiplications; return how many were split.

    Shapes of the model's values must have been inferred.
    """
    split = sum(_split_product(model.graph, node) for node in list(model.graph) if _is_product(node))
    if split:
        finish_rewrite(model)
    return split


def _is_product(node: ir.Node) -> bool:
    if node.domain or node.op_type not in ("MatMul", "Gemm"):
        return False
    if node.op_type == "MatMul":
        return True
    attributes = node.attributes
    scaled = any(name in attributes and attributes[name].as_float() != 1.0 for name in ("alpha", "beta"))
    return not scaled and not read_attribute(node, "transA", 0)


def _split_product(graph: ir.Graph, node: ir.Node) -> bool:
    joined, matrix = node.inputs[0], _read_matrix(node)
    concat = None if joined is None else joined.producer()
    if joined is None or matrix is None or concat is None or concat.op_identifier()[:2] != ("", "Concat"):
        return False
    if (
        joined.shape is None
        or joined.dtype not in _FLOATS
        or len(joined.uses()) > 1
        or joined.is_graph_output()
    ):
        return False
    rank = len(joined.shape)
    if rank < 2 or read_attribute(concat, "axis", 0) not in (rank - 1, -1):
        return False
    terms = _merge_terms(list(_read_terms(concat, matrix)))
    full = [term for term in terms if _has_rows_of(term.value, joined)]
    if not full or sum(len(term.matrix) for term in full) >= len(matrix):
        return False
    new = Rewriting(graph, "split_product")
    total = _sum_terms(new, [*full, *(term for term in terms if term not in full)])
    if node.op_type == "Gemm" and len(node.inputs) > 2 and node.inputs[2] is not None:
        total = new.add_node("Add", [total, node.inputs[2]])
    new.insert_nodes()
    rename_output(node.outputs[0], total)
    graph.remove(node, safe=True)
    return True


def _read_matrix(node: ir.Node) -> Array | None:
    matrix = read_constant(node.inputs[1])
    if matrix is None or matrix.ndim != 2:
        return None
    return matrix.T if read_attribute(node, "transB", 0) else matrix


def _read_terms(concat: ir.Node, matrix: Array) -> Iterator[_Term]:
    """Yield the terms of operand part of a concatenation, with its rows of the matrix."""
    start = 0
    for part in concat.inputs:
        if part is None or part.shape is None or not isinstance(part.shape[-1], int):
            yield _Term(1, concat.outputs[0], matrix)
            return
        rows = matrix[start : start + part.shape[-1]]
        start += part.shape[-1]
        for sign, value in expand_linear(part):
            yield _Term(sign, value, rows)


def expand_linear(value: ir.Value) -> list[tuple[int, ir.Value]]:
    """Return values of the same width whose signed sum `value` is, without repetitions along other dimensions."""
    node = value.producer()
    if node is None or node.domain or value.shape is None:
        return [(1, value)]
    inner = [operand for operand in node.inputs if operand is not None]
    match node.op_type:
        case "Identity":
            return expand_linear(inner[0])
        case "Expand" | "Tile" if _repeats_rows(node):
            return expand_linear(inner[0])
        case "Neg":
            return [(-sign, operand) for sign, operand in expand_linear(inner[0])]
        case "Add" | "Sub" if all(_has_width_of(operand, value) for operand in inner):
            sign_of_second = -1 if node.op_type == "Sub" else 1
            second = [(sign * sign_of_second, operand) for sign, operand in expand_linear(inner[1])]
            return expand_linear(inner[0]) + second
        case _:
            return [(1, value)]


def _repeats_rows(node: ir.Node) -> bool:
    """Return whether Expand or Tile repeats dimensions of size 1, and not the last one."""
    inner, outer = node.inputs[0], node.outputs[0]
    if inner is None or inner.shape is None or outer.shape is None or not _has_width_of(inner, outer):
        return False
    if node.op_type == "Expand":
        return True
    repeats = read_integers(node.inputs[1])
    return repeats is not None and all(
        repeat == 1 or dim == 1 for repeat, dim in zip(repeats, inner.shape.dims, strict=True)
    )


def _has_width_of(value: ir.Value, other: ir.Value) -> bool:
    if value.shape is None or other.shape is None or not len(value.shape):
        return False
    return isinstance(value.shape[-1], int) and value.shape[-1] == other.shape[-1]


def _has_rows_of(value: ir.Value, other: ir.Value) -> bool:
    """Return whether two values have the same dimensions except the last, by size or by name."""
    if value.shape is None or other.shape is None or len(value.shape) != len(other.shape):
        return False
    dims = zip(value.shape.dims[:-1], other.shape.dims[:-1], strict=True)
    return all(mine == theirs and (isinstance(mine, int) or mine.value is not None) for mine, theirs in dims)


def _merge_terms(terms: list[_Term]) -> list[_Term]:
    """Return one term per value, whose matrix is the signed sum of its terms' matrices."""
    sums: dict[ir.Value, Array] = {}
    for term in terms:
        # In double precision, so that the sum of the slices is rounded once.
        matrix = term.sign * term.matrix.astype(np.float64)
        sums[term.value] = sums[term.value] + matrix if term.value in sums else matrix
    kinds = {term.value: term.matrix.dtype for term in terms}
    return [_Term(1, value, matrix.astype(kinds[value])) for value, matrix in sums.items()]


def _sum_terms(new: Rewriting, terms: list[_Term]) -> ir.Value:
    total: ir.Value | None = None
    for term in terms:
        matrix = new.add_constant(np.ascontiguousarray(term.matrix))
        product = new.add_node("MatMul", [term.value, matrix])
        total = product if total is None else new.add_node("Add", [total, product])
    assert total is not None  # noqa: S101  a concatenation has parts
    return total
