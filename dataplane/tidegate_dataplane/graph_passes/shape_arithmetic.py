"""State shapes that a graph computes: PyTorch's exporter writes a view as ten operations on sizes, and an expand as sixteen.

The arithmetic is evaluated with the sizes of a request as symbols. If a shape turns out to consist of constants and of sizes
that the reshaped value has itself, the graph states it: 0 stands for such a size in a Reshape, and an Expand can take the
shape of another value whole. Then other passes can see what is repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import onnx_ir as ir

from tidegate_dataplane.graph_passes.constants import (
    read_attribute,
    read_constant,
    read_integers,
    read_static_dims,
)
from tidegate_dataplane.graph_passes.rewriting import Rewriting
from tidegate_dataplane.graph_passes.shape_inference import infer_shapes

MAX_DEPTH: Final = 64
"""Operations of one shape, one after the other."""
MAX_SIZES: Final = 64
"""Numbers of one tensor of sizes."""


@dataclass(frozen=True, slots=True)
class Dim:
    """A size that the request decides."""

    value: ir.Value
    axis: int


Sizes: TypeAlias = tuple[int | Dim, ...]


def state_shapes(model: ir.Model) -> int:
    """Replace computed shapes of Reshape and Expand in place; return how many.

    Shapes of the model's values must have been inferred, and are again afterwards.
    """
    stated = sum(_state_shape(model.graph, node) for node in list(model.graph))
    if stated:
        # Inference keeps a shape that a value has, so that what was unknown would stay unknown.
        for node in model.graph:
            for value in node.outputs:
                value.shape = value.shape if value.is_graph_output() else None
        model.graph.sort()
        infer_shapes(model)
    return stated


def read_sizes(value: ir.Value | None) -> Sizes | None:
    """Return the numbers of a tensor of at most one dimension, as constants and as sizes of values; None if unknown."""
    return _read_value(value, {}, 0)


def _read_value(
    value: ir.Value | None, sizes_by_value: dict[ir.Value, Sizes | None], depth: int
) -> Sizes | None:
    """Return the sizes of a value; `sizes_by_value` keeps those of its operands, which a graph may use many times."""
    if value is None or depth > MAX_DEPTH:
        return None
    if value not in sizes_by_value:
        sizes = _read_operation(value, sizes_by_value, depth)
        sizes_by_value[value] = None if sizes is None or len(sizes) > MAX_SIZES else sizes
    return sizes_by_value[value]


def _read_operation(
    value: ir.Value, sizes_by_value: dict[ir.Value, Sizes | None], depth: int
) -> Sizes | None:
    constant = read_constant(value)
    if constant is not None:
        return read_integers(value) if constant.size <= MAX_SIZES else None
    node = value.producer()
    if node is None or node.domain:
        return None
    if node.op_type == "Shape":
        return _read_shape(node)
    reader = _READERS.get(node.op_type)
    if reader is None:
        return None
    operands = [_read_value(operand, sizes_by_value, depth + 1) for operand in node.inputs]
    return None if None in operands else reader(node, [sizes for sizes in operands if sizes is not None])


def _state_shape(graph: ir.Graph, node: ir.Node) -> bool:
    if node.domain or node.op_type not in ("Reshape", "Expand") or read_constant(node.inputs[1]) is not None:
        return False
    producer = None if node.inputs[1] is None else node.inputs[1].producer()
    if producer is not None and producer.op_type == "Shape":
        # As simple as it can be.
        return False
    value, sizes = node.inputs[0], read_sizes(node.inputs[1])
    if value is None or value.shape is None or sizes is None or read_attribute(node, "allowzero", 0):
        return False
    new = Rewriting(graph, f"shape_{node.outputs[0].name}")
    shape = (
        _state_reshape(new, value, sizes) if node.op_type == "Reshape" else _state_expand(new, value, sizes)
    )
    if shape is None:
        return False
    new.insert_nodes()
    node.replace_input_with(1, shape)
    return True


def _state_reshape(new: Rewriting, value: ir.Value, sizes: Sizes) -> ir.Value | None:
    """Return the shape as a constant, if every size of the request is at its own place in the value."""
    dims = [
        0 if isinstance(size, Dim) and _is_own_dim(value, axis, size) else size
        for axis, size in enumerate(sizes)
    ]
    stated = [dim for dim in dims if not isinstance(dim, Dim)]
    if len(stated) < len(dims):
        return None
    return new.add_constant(np.array(stated, dtype=np.int64))


def _state_expand(new: Rewriting, value: ir.Value, sizes: Sizes) -> ir.Value | None:
    """Return the shape of the value whose sizes are repeated to, if its other sizes are those that the expanded value has."""
    references = {size.value for size in sizes if isinstance(size, Dim)}
    if len(references) != 1:
        return None
    [reference] = references
    if (
        reference.shape is None
        or value.shape is None
        or not len(reference.shape) == len(value.shape) == len(sizes)
    ):
        return None
    for axis, size in enumerate(sizes):
        is_repeated = value.shape[axis] == 1 and size == Dim(reference, axis)
        if not is_repeated and (
            size not in (1, value.shape[axis]) or not _has_same_dim(value, reference, axis)
        ):
            return None
    return new.add_node("Shape", [reference])


def _is_own_dim(value: ir.Value, axis: int, size: Dim) -> bool:
    """Return whether a size of the request is that of the value at the same place."""
    if size.axis != axis or value.shape is None or axis >= len(value.shape):
        return False
    return size.value is value or _has_same_dim(value, size.value, axis)


def _has_same_dim(value: ir.Value, other: ir.Value, axis: int) -> bool:
    """Return whether two values have the same size at a place.

    A name of a dimension of the inputs is trusted for the rows alone: ONNX Runtime does not check that inputs agree on it.
    """
    if value.shape is None or other.shape is None or axis >= min(len(value.shape), len(other.shape)):
        return False
    mine, theirs = value.shape[axis], other.shape[axis]
    if isinstance(mine, int) or isinstance(theirs, int):
        return mine == theirs
    return mine.value is not None and mine == theirs and (axis == 0 or not _is_input_dim(value, mine))


def _is_input_dim(value: ir.Value, dim: ir.SymbolicDim) -> bool:
    graph = value.graph
    inputs = graph.inputs if isinstance(graph, ir.Graph) else ()
    return any(dim in graph_input.shape.dims for graph_input in inputs if graph_input.shape is not None)


def _read_shape(node: ir.Node) -> Sizes | None:
    value = node.inputs[0]
    if value is None or value.shape is None:
        return None
    rank = len(value.shape)
    axes = range(rank)[read_attribute(node, "start", 0) : read_attribute(node, "end", rank)]
    dims = read_static_dims(value) or ()
    return tuple(Dim(value, axis) if (dim := dims[axis]) is None else dim for axis in axes)


def _read_gather(node: ir.Node, operands: list[Sizes]) -> Sizes | None:
    data, index = operands
    numbers = [number for number in index if isinstance(number, int) and -len(data) <= number < len(data)]
    return tuple(data[number] for number in numbers) if len(numbers) == len(index) else None


def _read_fill(node: ir.Node, operands: list[Sizes]) -> Sizes | None:
    attribute = node.attributes.get("value")
    number = 0 if attribute is None else attribute.as_tensor().numpy().item()
    [shape] = operands
    if len(shape) != 1 or not isinstance(shape[0], int) or not isinstance(number, int):
        return None
    return (number,) * shape[0] if shape[0] <= MAX_SIZES else None


def _read_product(node: ir.Node, operands: list[Sizes]) -> Sizes | None:
    pairs = _pair_sizes(operands[0], operands[1])
    numbers = [
        first * second for first, second in pairs if isinstance(first, int) and isinstance(second, int)
    ]
    return tuple(numbers) if len(numbers) == len(pairs) else None


def _read_equality(node: ir.Node, operands: list[Sizes]) -> Sizes | None:
    """Return 1 for each pair of equal numbers, 0 for others; a size is no negative number."""
    equal: list[int] = []
    for first, second in _pair_sizes(operands[0], operands[1]):
        numbers = [number for number in (first, second) if isinstance(number, int)]
        if len(numbers) == 1 and numbers[0] >= 0:
            return None
        if not numbers and first != second:
            return None
        equal.append(int(first == second))
    return tuple(equal)


def _read_choice(node: ir.Node, operands: list[Sizes]) -> Sizes | None:
    condition, first, second = operands
    if not len(condition) == len(first) == len(second):
        return None
    return tuple(
        chosen if is_chosen else other
        for is_chosen, chosen, other in zip(condition, first, second, strict=True)
    )


def _pair_sizes(first: Sizes, second: Sizes) -> list[tuple[int | Dim, int | Dim]]:
    length = max(len(first), len(second))
    first, second = (sizes * length if len(sizes) == 1 else sizes for sizes in (first, second))
    # Operands that do not fit each other are refused when the graph is loaded.
    return list(zip(first, second, strict=False))


_READERS: Final[dict[str, Callable[[ir.Node, list[Sizes]], Sizes | None]]] = {
    "Cast": lambda node, operands: operands[0],
    "Concat": lambda node, operands: tuple(size for sizes in operands for size in sizes),
    "ConstantOfShape": _read_fill,
    "Equal": _read_equality,
    "Gather": _read_gather,
    "Identity": lambda node, operands: operands[0],
    "Mul": _read_product,
    "Reshape": lambda node, operands: operands[0],
    "Squeeze": lambda node, operands: operands[0],
    "Unsqueeze": lambda node, operands: operands[0],
    "Where": _read_choice,
}
"""How the numbers of an operation follow from those of its operands, all of which have at most one dimension."""
