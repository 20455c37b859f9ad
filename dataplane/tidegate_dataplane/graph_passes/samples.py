"""Make requests from a model's own signature, to compare and to measure graphs with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import onnx_ir as ir

from tidegate_dataplane.graph_passes.constants import Array, read_constant, read_static_dims
from tidegate_dataplane.graph_passes.elementwise import find_source, parse_expression
from tidegate_dataplane.graph_passes.embedding_columns import find_block

ROWS: Final = (1, 3, 17)
INNER_SIZES: Final = (1, 7)
"""Sizes of dimensions, other than the rows, that the graph leaves to the request."""
_TEXTS: Final = ("", "a", "male", "1234567", "ü")

Request = Mapping[str, Array]


def make_requests(model: ir.Model, rows: Sequence[int] = ROWS, seed: int = 0) -> Iterator[Request]:
    """Yield random requests of so many rows each; shapes of the model's values must have been inferred.

    Ids stay within the tables that they index where the graph shows which these are, negative ids included once.
    """
    random = np.random.default_rng(seed)
    bounds = _find_bounds(model.graph)
    for inner in INNER_SIZES:
        for count in rows:
            yield {
                str(value.name): _make_tensor(value, count, inner, bounds, random)
                for value in model.graph.inputs
                if not value.is_initializer()
            }
        if not _has_free_dims(model.graph):
            return


def share_inputs(request: Request, names: Sequence[str]) -> tuple[Request, Request]:
    """Return a request whose named inputs have equal rows, and the same one with one row for each of them."""
    repeated = {
        name: np.repeat(array[:1], len(array), axis=0) if name in names else array
        for name, array in request.items()
    }
    return repeated, {name: array[:1] if name in names else array for name, array in repeated.items()}


def _has_free_dims(graph: ir.Graph) -> bool:
    return any(None in (read_static_dims(value) or ())[1:] for value in graph.inputs)


def _find_bounds(graph: ir.Graph) -> dict[tuple[str, int], int]:
    """Return the entries of the smallest table that each column of each input indexes; column -1 stands for all of an input."""
    bounds: dict[tuple[str, int], int] = {}
    for node in graph:
        if node.op_identifier()[:2] != ("", "Gather") or node.inputs[1] is None:
            continue
        table = read_constant(node.inputs[0])
        if table is None or not table.ndim:
            continue
        source = find_source(parse_expression(node.inputs[1]))
        block = find_block(source)
        value = source if block is None else block.matrix
        columns = (-1,) if block is None else range(block.start, block.stop)
        for column in columns:
            key = str(value.name), column
            bounds[key] = min(bounds.get(key, table.shape[0]), table.shape[0])
    return bounds


def _make_tensor(
    value: ir.Value, rows: int, inner: int, bounds: Mapping[tuple[str, int], int], random: np.random.Generator
) -> Array:
    dims = read_static_dims(value) or ()
    shape = tuple(
        (rows if position == 0 else inner) if dim is None else dim for position, dim in enumerate(dims)
    )
    if value.dtype is None or value.dtype == ir.DataType.STRING:
        return np.array(random.choice(_TEXTS, size=shape), dtype=object)
    kind: np.dtype[Any] = value.dtype.numpy()
    if kind.kind == "f":
        return random.standard_normal(shape).astype(kind)
    if kind.kind == "b":
        return random.random(shape) < 0.5
    return _make_ids(str(value.name), shape, bounds, random).astype(kind)


def _make_ids(
    name: str, shape: tuple[int, ...], bounds: Mapping[tuple[str, int], int], random: np.random.Generator
) -> Array:
    entries = bounds.get((name, -1), 2)
    if len(shape) != 2:
        return random.integers(0, entries, size=shape)
    highs = np.array([bounds.get((name, column), entries) for column in range(shape[1])])
    return random.integers(0, np.broadcast_to(highs, shape)) if shape[1] else np.zeros(shape, dtype=np.int64)
