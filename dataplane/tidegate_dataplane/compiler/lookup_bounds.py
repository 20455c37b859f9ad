"""Find which ids of a request a graph looks up, and in tables of what size, so that those beyond a table reach no engine."""

from collections.abc import Iterator
from typing import Final

import onnx_ir as ir

from tidegate_dataplane.engines.request_guard import ALL_COLUMNS
from tidegate_dataplane.graph_passes.constants import read_attribute, read_constant, read_static_dims
from tidegate_dataplane.graph_passes.elementwise import bound_values, parse_expression
from tidegate_dataplane.graph_passes.embedding_columns import find_block

_CASTS: Final = frozenset({"Cast", "Identity"})
_MOVES: Final = _CASTS | {
    "Concat", "Expand", "Flatten", "Gather", "Reshape", "Slice", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze",
}  # fmt: skip
"""Operations whose results are numbers of their first input, or of all inputs of Concat."""
_SIZES: Final = frozenset({"Shape", "Size"})
"""Their results are constants for a fixed shape."""


class UnguardedLookupError(ValueError):
    """Why ids beyond their table cannot be told from the request."""


def list_lookup_bounds(graph: ir.Graph) -> dict[str, dict[str, int]]:
    """Return for each input the columns that are ids, and the number of entries of their smallest table.

    Shapes must have been inferred. Raises UnguardedLookupError if a lookup has ids that are computed from the request.
    """
    bounds: dict[str, dict[str, int]] = {}
    for node in ir.traversal.RecursiveGraphIterator(graph):
        table, index = (*node.inputs, None, None)[:2]
        if node.op_identifier()[:2] != ("", "Gather") or table is None or index is None:
            continue
        dims = read_static_dims(table)
        entries = dims[read_attribute(node, "axis", 0) % len(dims)] if dims else None
        low, high = bound_values(parse_expression(index))
        if not _depends_on_request(graph, index) or (entries is not None and 0 <= low <= high < entries):
            continue
        if entries is None:
            raise UnguardedLookupError(f"the table of lookup {node.name or index.name} has no fixed size")
        for name, column in _list_sources(graph, index):
            columns = bounds.setdefault(name, {})
            columns[str(column)] = min(columns.get(str(column), entries), entries)
    return bounds


def _list_sources(graph: ir.Graph, value: ir.Value) -> Iterator[tuple[str, int]]:
    """Yield the inputs, and columns of them, whose numbers are those of `value`."""
    value = _strip_casts(value)
    if value in graph.inputs and not value.is_initializer():
        yield str(value.name), ALL_COLUMNS
        return
    if not _depends_on_request(graph, value):
        return
    block = find_block(value)
    matrix = None if block is None else _strip_casts(block.matrix)
    if block is not None and matrix is not None and matrix in graph.inputs:
        for column in range(block.start, block.stop):
            yield str(matrix.name), column
        return
    node = value.producer()
    if node is None or node.domain or node.op_type not in _MOVES:
        operation = "an operation of a subgraph" if node is None else node.op_type
        raise UnguardedLookupError(
            f"{operation} computes ids from the request, so that those beyond their table cannot be told before"
        )
    for operand in node.inputs if node.op_type == "Concat" else node.inputs[:1]:
        if operand is not None:
            yield from _list_sources(graph, operand)


def _strip_casts(value: ir.Value) -> ir.Value:
    while (node := value.producer()) is not None and node.op_type in _CASTS and node.inputs[0] is not None:
        value = node.inputs[0]
    return value


def _depends_on_request(graph: ir.Graph, value: ir.Value) -> bool:
    """Return whether the numbers of a value come from a request, and not from its shape or constants alone."""
    pending, visited = [value], set[ir.Value]()
    while pending:
        value = pending.pop()
        node = value.producer()
        if (
            value in visited
            or read_constant(value) is not None
            or (node is not None and node.op_type in _SIZES)
        ):
            continue
        visited.add(value)
        if node is None and not value.is_initializer():
            return True
        pending += [operand for operand in (node.inputs if node is not None else ()) if operand is not None]
    return False
