"""Split the product of a concatenation of shared values and values with rows: the shared part is multiplied once per request.

The product is linear in each part, so concat(user, item) W = user Wu + item Wi for the rows Wu and Wi of the matrix. Sums are
made in another order than in the original graph, so answers differ by rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from tidegate_dataplane.graph_passes.constants import Array
from tidegate_dataplane.graph_passes.products import is_product, read_columns, read_matrix
from tidegate_dataplane.graph_passes.rewriting import Rewriting, rename_output


@dataclass(frozen=True, slots=True)
class MixedParts:
    """The two parts of a concatenation, each concatenated for itself, with the positions of their columns."""

    shared: ir.Value
    shared_columns: tuple[int, ...]
    own: ir.Value
    """Of the values with as many rows as the request."""
    own_columns: tuple[int, ...]


def split_concat(new: Rewriting, concat: ir.Node, is_shared: Callable[[ir.Value], bool]) -> MixedParts | None:
    """Return the parts of a Concat of the last dimension; None unless only products with constant matrices read it."""
    joined, columns = concat.outputs[0], read_columns(concat)
    if columns is None or joined.is_graph_output():
        return None
    if not all(_is_split(use.node, use.idx) for use in joined.uses()) or not _have_same_dims(concat):
        return None
    groups = [[entry for entry in columns if is_shared(entry[0]) is shared] for shared in (True, False)]
    if not all(groups):
        return None
    (shared, shared_columns), (own, own_columns) = (_join_parts(new, group) for group in groups)
    return MixedParts(shared, shared_columns, own, own_columns)


def multiply_parts(new: Rewriting, product: ir.Node, parts: MixedParts) -> None:
    """Let the sum of two products take the place of one."""
    matrix = read_matrix(product)
    if matrix is None:
        message = "only products with a constant matrix read these parts"
        raise ValueError(message)
    shared = _multiply_part(new, parts.shared, matrix[list(parts.shared_columns)])
    if len(product.inputs) > 2 and product.inputs[2] is not None:
        shared = new.add_node("Add", [shared, product.inputs[2]])
    total = new.add_node("Add", [shared, _multiply_part(new, parts.own, matrix[list(parts.own_columns)])])
    old = product.outputs[0]
    total.type, total.shape = old.type, old.shape
    rename_output(old, total)


def _is_split(node: ir.Node, position: int) -> bool:
    return position == 0 and is_product(node) and read_matrix(node) is not None


def _have_same_dims(concat: ir.Node) -> bool:
    """Return whether the graph gives all parts the same dimensions between the first and the last.

    A request may give names of dimensions different sizes: the original refuses that, and a sum would not.
    """
    middles = [
        value.shape.dims[1:-1] for value in concat.inputs if value is not None and value.shape is not None
    ]
    return all(middle == middles[0] and all(isinstance(dim, int) for dim in middle) for middle in middles)


def _join_parts(new: Rewriting, group: Sequence[tuple[ir.Value, range]]) -> tuple[ir.Value, tuple[int, ...]]:
    """Return parts as one value, and where its columns were."""
    columns = tuple(position for _, positions in group for position in positions)
    if len(group) == 1:
        return group[0][0], columns
    return new.add_node("Concat", [part for part, _ in group], {"axis": -1}), columns


def _multiply_part(new: Rewriting, value: ir.Value, matrix: Array) -> ir.Value:
    return new.add_node("MatMul", [value, new.add_constant(np.ascontiguousarray(matrix))])
