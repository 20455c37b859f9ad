"""Read what a graph states about its values: constants, shapes and attributes."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

Array = npt.NDArray[Any]
DEFAULT_DOMAIN: Final = ""


def read_constant(value: ir.Value | None) -> Array | None:
    """Return the array of a value that no caller can change, or None.

    An initializer that is also an input of the graph is a default that callers may override, so it is none.
    """
    if value is None or value.is_graph_input():
        return None
    tensor = ir.convenience.get_const_tensor(value)
    return None if tensor is None else np.asarray(tensor.numpy())


def read_integers(value: ir.Value | None) -> tuple[int, ...] | None:
    """Return the numbers of a constant integer tensor of any shape, or None."""
    array = read_constant(value)
    if array is None or not np.issubdtype(array.dtype, np.integer):
        return None
    return tuple(int(number) for number in array.reshape(-1))


def read_axes(node: ir.Node) -> tuple[int, ...] | None:
    """Return the axes of a reduction, Squeeze or Unsqueeze, from its attribute or its second input; None if unknown."""
    if "axes" in node.attributes:
        return tuple(node.attributes["axes"].as_ints())
    return read_integers(node.inputs[1]) if len(node.inputs) > 1 else None


def read_static_dims(value: ir.Value) -> tuple[int | None, ...] | None:
    """Return the dimensions of a value, None for each that depends on the request; None if its rank is unknown."""
    if value.shape is None:
        return None
    return tuple(dim if isinstance(dim, int) else None for dim in value.shape.dims)


def read_row_symbol(value: ir.Value) -> int | str | None:
    """Return the size or name of a value's first dimension, or None if the graph does not name it."""
    if value.shape is None or not len(value.shape):
        return None
    dim = value.shape[0]
    return dim if isinstance(dim, int) else dim.value


def read_attribute(node: ir.Node, name: str, default: int) -> int:
    """Return an integer attribute of a node, or its default."""
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.as_int()


def normalize_axes(axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """Return axes counted from the front, in ascending order."""
    return tuple(sorted(axis % rank for axis in axes))
