"""Recognize values that only repeat another one along dimensions of size 1."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from tidegate_dataplane.graph_passes.constants import read_attribute


@dataclass(frozen=True, slots=True)
class Repetition:
    """An Expand or Tile that repeats dimensions of size 1 alone."""

    inner: ir.Value
    reference: ir.Value | None
    """The value whose shape gives the repeated dimensions; None if the graph itself states them.

    Equal names of dimensions do not suffice: ONNX Runtime does not check that two inputs agree on them. The first dimension
    is the exception, because a server gives all inputs of a batched model the same number of rows.
    """


def read_repetition(value: ir.Value) -> Repetition | None:
    """Return what `value` repeats, or None if it is no such repetition or the graph does not show its size."""
    node, outer = value.producer(), value
    inner = node.inputs[0] if node is not None and node.inputs else None
    if node is None or node.domain or node.op_type not in ("Expand", "Tile") or inner is None:
        return None
    if inner.shape is None or outer.shape is None or len(inner.shape) != len(outer.shape):
        return None
    dims = list(zip(inner.shape.dims, outer.shape.dims, strict=True))
    if any(mine not in (1, repeated) for mine, repeated in dims):
        return None
    if all(mine == repeated or isinstance(repeated, int) for mine, repeated in dims[1:]):
        return Repetition(inner, None)
    reference = _read_shape_source(node.inputs[1]) if node.op_type == "Expand" else None
    return None if reference is None else Repetition(inner, reference)


def has_same_dims(value: ir.Value, other: ir.Value) -> bool:
    """Return whether the graph gives two values the same dimensions, by size or by name."""
    if value.shape is None or other.shape is None or len(value.shape) != len(other.shape):
        return False
    dims = zip(value.shape.dims, other.shape.dims, strict=True)
    return all(mine == theirs and (isinstance(mine, int) or mine.value is not None) for mine, theirs in dims)


def _read_shape_source(shape: ir.Value | None) -> ir.Value | None:
    node = None if shape is None else shape.producer()
    if node is None or node.domain or node.op_type != "Shape":
        return None
    is_whole = read_attribute(node, "start", 0) == 0 and "end" not in node.attributes
    return node.inputs[0] if is_whole else None
