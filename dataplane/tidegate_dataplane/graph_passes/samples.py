"""Make requests from a model's own signature, to compare and to measure graphs with."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import onnx_ir as ir

from tidegate_dataplane.graph_passes.constants import Array, read_attribute, read_constant, read_static_dims
from tidegate_dataplane.graph_passes.elementwise import find_source, parse_expression
from tidegate_dataplane.graph_passes.embedding_columns import find_block

ROWS: Final = (1, 3, 17)
INNER_SIZES: Final = (1, 7)
"""Sizes of dimensions, other than the rows, that the graph leaves to the request."""
MAX_EDGES: Final = 8
_LARGE: Final = 1e4
_TEXTS: Final = ("", "a", "male", "1234567", "ü")
_MAX_TEXTS: Final = 1000
"""Of one vocabulary."""
_VOCABULARY: Final = ("ai.onnx.ml", "LabelEncoder")

Request = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class _Contents:
    """What the graph shows of the values of its inputs."""

    bounds: Mapping[tuple[str, int], int]
    texts: Mapping[str, Sequence[str]]


def make_requests(
    model: ir.Model, rows: Sequence[int] = ROWS, inner_sizes: Sequence[int] = INNER_SIZES, seed: int = 0
) -> Iterator[Request]:
    """Yield random requests, one for each number of rows and each size of the free dimensions.

    Shapes of the model's values must have been inferred.

    Ids stay within the tables that they index where the graph shows which these are, and texts come from its vocabularies.
    """
    random = np.random.default_rng(seed)
    contents = _Contents(find_bounds(model.graph), find_texts(model.graph))
    for inner in inner_sizes:
        for count in rows:
            yield {
                str(value.name): _make_tensor(value, count, inner, contents, random)
                for value in model.graph.inputs
                if not value.is_initializer()
            }
        if not _has_free_dims(model.graph):
            return


def make_edge_requests(model: ir.Model, seed: int = 1) -> Iterator[Request]:
    """Yield requests that the original may refuse: no rows, large and nearly equal numbers, ids at and beyond both ends of a table.

    Beyond the ends are ids of at most MAX_EDGES columns of each input.
    """
    random = np.random.default_rng(seed)
    contents = _Contents(find_bounds(model.graph), find_texts(model.graph))
    inputs = {str(value.name): value for value in model.graph.inputs if not value.is_initializer()}

    def make_request(rows: int) -> dict[str, Array]:
        return {name: _make_tensor(value, rows, 1, contents, random) for name, value in inputs.items()}

    yield make_request(0)
    yield {
        name: array + array.dtype.type(_LARGE) if array.dtype.kind == "f" else array
        for name, array in make_request(3).items()
    }
    request = make_request(3)
    for name in inputs:
        entries = {
            column: size for (input_name, column), size in contents.bounds.items() if input_name == name
        }
        kind = request[name].dtype
        if kind.kind not in "iuf" or not entries:
            continue
        for column, number in _list_edges(entries):
            array = request[name].copy()
            flat = array.reshape(len(array), -1) if array.ndim else array
            limits = np.finfo(kind) if kind.kind == "f" else np.iinfo(kind)
            fits = limits.min <= number <= limits.max
            if flat.ndim == 2 and flat.shape[1] and fits:
                flat[0, max(column, 0)] = number
                yield {**request, name: array}


def _list_edges(entries: Mapping[int, int]) -> Iterator[tuple[int, int]]:
    for column, size in list(entries.items())[:MAX_EDGES]:
        for number in (0, size - 1, -1, -size, size, -size - 1):
            yield column, number


def share_inputs(request: Request, names: Sequence[str]) -> tuple[Request, Request]:
    """Return a request whose named inputs have equal rows, and the same one with one row of each; without rows, with none."""
    repeated = {
        name: np.repeat(array[:1], len(array), axis=0) if name in names else array
        for name, array in request.items()
    }
    once = {name: array[:1] if name in names else array for name, array in repeated.items()}
    return repeated, once


def repeat_shared(request: Request, names: Sequence[str]) -> Request:
    """Return a request of a client with as many rows of the named inputs as of the others, if it has one row of each."""
    rows = max((len(array) for name, array in request.items() if name not in names and array.ndim), default=1)
    return {
        name: np.repeat(array, rows, axis=0) if name in names and array.ndim and len(array) == 1 else array
        for name, array in request.items()
    }


def has_finite_numbers(request: Request) -> bool:
    """Return whether no number of a request is infinite or NaN: graphs that are equal otherwise may differ there."""
    return all(array.dtype.kind != "f" or bool(np.isfinite(array).all()) for array in request.values())


def _has_free_dims(graph: ir.Graph) -> bool:
    return any(None in (read_static_dims(value) or ())[1:] for value in graph.inputs)


def find_bounds(graph: ir.Graph) -> dict[tuple[str, int], int]:
    """Return the entries of the smallest table that each column of each input indexes; column -1 stands for all of an input."""
    bounds: dict[tuple[str, int], int] = {}
    for node in graph:
        if node.op_identifier()[:2] != ("", "Gather") or node.inputs[1] is None:
            continue
        table = read_constant(node.inputs[0])
        if table is None or not table.ndim:
            continue
        entries = table.shape[read_attribute(node, "axis", 0) % table.ndim]
        source = find_source(parse_expression(node.inputs[1]))
        block = find_block(source)
        value = source if block is None else block.matrix
        columns = (-1,) if block is None else range(block.start, block.stop)
        for column in columns:
            key = str(value.name), column
            bounds[key] = min(bounds.get(key, entries), entries)
    return bounds


def find_texts(graph: ir.Graph) -> dict[str, list[str]]:
    """Return the texts that the graph's vocabularies have, by the input that they are looked up for."""
    texts: dict[str, list[str]] = {}
    for node in graph:
        keys = node.attributes.get("keys_strings")
        if node.op_identifier()[:2] != _VOCABULARY or node.inputs[0] is None or keys is None:
            continue
        block = find_block(node.inputs[0])
        value = node.inputs[0] if block is None else block.matrix
        texts.setdefault(str(value.name), []).extend(keys.as_strings()[:_MAX_TEXTS])
    return texts


def _make_tensor(
    value: ir.Value, rows: int, inner: int, contents: _Contents, random: np.random.Generator
) -> Array:
    name, dims = str(value.name), read_static_dims(value) or ()
    shape = tuple(
        (rows if position == 0 else inner) if dim is None else dim for position, dim in enumerate(dims)
    )
    if value.dtype is None or value.dtype == ir.DataType.STRING:
        # By position: an array of texts would have room for the longest in each element.
        texts = [*_TEXTS, *contents.texts.get(name, ())]
        chosen = np.array(
            [texts[index] for index in random.integers(len(texts), size=math.prod(shape))], dtype=object
        )
        return chosen.reshape(shape)
    kind: np.dtype[Any] = value.dtype.numpy()
    if kind.kind == "f":
        return _make_floats(name, shape, contents.bounds, random).astype(kind)
    if kind.kind == "b":
        return random.random(shape) < 0.5
    return _make_ids(name, shape, contents.bounds, random).astype(kind)


def _make_floats(
    name: str, shape: tuple[int, ...], bounds: Mapping[tuple[str, int], int], random: np.random.Generator
) -> Array:
    """Return random numbers, with ids in the columns that the graph casts to ids of a table."""
    floats = random.standard_normal(shape)
    columns = [column for input_name, column in bounds if input_name == name]
    if -1 in columns:
        return _make_ids(name, shape, bounds, random)
    if columns and len(shape) == 2:
        floats[:, columns] = _make_ids(name, shape, bounds, random)[:, columns]
    return floats


def _make_ids(
    name: str, shape: tuple[int, ...], bounds: Mapping[tuple[str, int], int], random: np.random.Generator
) -> Array:
    entries = max(bounds.get((name, -1), 2), 1)
    if len(shape) != 2:
        return random.integers(0, entries, size=shape)
    highs = np.array([max(bounds.get((name, column), entries), 1) for column in range(shape[1])])
    return random.integers(0, np.broadcast_to(highs, shape)) if shape[1] else np.zeros(shape, dtype=np.int64)
