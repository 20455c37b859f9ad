"""Drop repetitions that the next operation makes by itself: elementwise operations broadcast dimensions of size 1."""

from __future__ import annotations

from typing import Final

import onnx_ir as ir

from tidegate_dataplane.graph_passes.rewriting import finish_rewrite

_BROADCASTING: Final = frozenset(
    {
        "Add", "And", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Min", "Mod", "Mul",
        "Or", "Pow", "Sub", "Where", "Xor",
    }
)  # fmt: skip


def drop_repetitions(model: ir.Model) -> int:
    """Let elementwise operations read what Expand and Tile repeat; return how many inputs changed.

    An input changes if another one has the shape of the operation's result. The results are the same, bit for bit.
    """
    changed = sum(
        _read_inner(use.node, use.idx, inner)
        for node in list(model.graph)
        if (inner := _find_inner(node)) is not None
        for use in list(node.outputs[0].uses())
    )
    if changed:
        finish_rewrite(model)
    return changed


def _find_inner(node: ir.Node) -> ir.Value | None:
    """Return what a node repeats, if it repeats dimensions of size 1 alone."""
    inner, outer = node.inputs[0] if node.inputs else None, node.outputs[0]
    if node.domain or node.op_type not in ("Expand", "Tile") or inner is None:
        return None
    if inner.shape is None or outer.shape is None or len(inner.shape) != len(outer.shape):
        return None
    dims = zip(inner.shape.dims, outer.shape.dims, strict=True)
    return inner if all(mine == 1 or mine == repeated for mine, repeated in dims) else None


def _read_inner(node: ir.Node, position: int, inner: ir.Value) -> bool:
    if node.domain or node.op_type not in _BROADCASTING:
        return False
    result = node.outputs[0]
    operands = [value for place, value in enumerate(node.inputs) if place != position and value is not None]
    if not any(_has_shape_of(value, result) for value in operands):
        return False
    node.replace_input_with(position, inner)
    return True


def _has_shape_of(value: ir.Value, other: ir.Value) -> bool:
    if value.shape is None or other.shape is None or len(value.shape) != len(other.shape):
        return False
    dims = zip(value.shape.dims, other.shape.dims, strict=True)
    return all(mine == theirs and (isinstance(mine, int) or mine.value is not None) for mine, theirs in dims)
