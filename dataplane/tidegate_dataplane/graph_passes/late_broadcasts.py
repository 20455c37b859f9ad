"""Drop repetitions that the next operation makes by itself: elementwise operations broadcast dimensions of size 1."""

from __future__ import annotations

from typing import Final

import onnx_ir as ir

from tidegate_dataplane.graph_passes.repetitions import Repetition, has_same_dims, read_repetition
from tidegate_dataplane.graph_passes.rewriting import finish_rewrite

BROADCASTING: Final = frozenset(
    {
        "Add", "And", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Min", "Mod", "Mul",
        "Or", "Pow", "Sub", "Where", "Xor",
    }
)  # fmt: skip


def drop_repetitions(model: ir.Model) -> int:
    """Let elementwise operations read what Expand and Tile repeat; return how many inputs changed.

    An input changes if another one has the dimensions that the repetition was made for. The results are the same, bit for bit.
    """
    changed = sum(
        _read_inner(use.node, use.idx, repetition)
        for node in list(model.graph)
        if (repetition := read_repetition(node.outputs[0])) is not None
        for use in list(node.outputs[0].uses())
    )
    if changed:
        finish_rewrite(model)
    return changed


def _read_inner(node: ir.Node, position: int, repetition: Repetition) -> bool:
    if node.domain or node.op_type not in BROADCASTING:
        return False
    operands = [value for place, value in enumerate(node.inputs) if place != position and value is not None]
    if repetition.reference is None:
        has_dims = any(has_same_dims(value, node.outputs[0]) for value in operands)
    else:
        has_dims = repetition.reference in operands
    if not has_dims:
        return False
    node.replace_input_with(position, repetition.inner)
    return True
