"""Rules that tell which operations treat the rows of their inputs independently."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import numpy as np
import onnx_ir as ir

from tidegate_dataplane.graph_passes.constants import (
    normalize_axes,
    read_attribute,
    read_axes,
    read_constant,
    read_integers,
    read_static_dims,
)

Rule: TypeAlias = Callable[[ir.Node, set[ir.Value]], bool]
"""Returns whether one row of the shared inputs, which the set has, leads to one row of each output."""
_REDUCTIONS: Final = frozenset(
    {
        "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin",
        "ReduceProd", "ReduceSum", "ReduceSumSquare",
    }
)  # fmt: skip


def _check_gather(node: ir.Node, shared: set[ir.Value]) -> bool:
    data, index = node.inputs[0], node.inputs[1]
    if index in shared:
        return read_constant(data) is not None and read_attribute(node, "axis", 0) == 0
    rank = _read_rank(data)
    return rank is not None and read_attribute(node, "axis", 0) % rank != 0


def _check_matmul(node: ir.Node, shared: set[ir.Value]) -> bool:
    data, matrix = node.inputs[0], node.inputs[1]
    rank = _read_rank(data)
    if data not in shared or rank is None or rank < 2:
        return False
    other = read_constant(matrix)
    return (other is not None and other.ndim <= 2) or (
        matrix in shared and rank >= 3 and _read_rank(matrix) == rank
    )


def _check_gemm(node: ir.Node, shared: set[ir.Value]) -> bool:
    bias = read_constant(node.inputs[2]) if len(node.inputs) > 2 else None
    is_row = bias is None or bias.ndim < 2 or bias.shape[0] == 1
    return (
        node.inputs[0] in shared
        and node.inputs[1] not in shared
        and not read_attribute(node, "transA", 0)
        and is_row
    )


def _check_reduce(node: ir.Node, shared: set[ir.Value]) -> bool:
    axes, rank = read_axes(node), _read_rank(node.inputs[0])
    return bool(axes) and rank is not None and 0 not in normalize_axes(axes or (), rank)


def _check_moved_axes(node: ir.Node, shared: set[ir.Value]) -> bool:
    """Check a Squeeze or Unsqueeze: its axes count in the input's and in the output's dimensions."""
    axes = read_axes(node)
    rank = _read_rank(node.inputs[0] if node.op_type == "Squeeze" else node.outputs[0])
    return axes is not None and rank is not None and 0 not in normalize_axes(axes, rank)


def _check_axis(default: int) -> Rule:
    def check_axis(node: ir.Node, shared: set[ir.Value]) -> bool:
        rank = _read_rank(node.inputs[0])
        return (
            rank is not None
            and read_attribute(node, "axis", default) % rank != 0
            and node.inputs[0] in shared
        )

    return check_axis


def _check_concat(node: ir.Node, shared: set[ir.Value]) -> bool:
    rank = _read_rank(node.outputs[0])
    return (
        rank is not None
        and read_attribute(node, "axis", 0) % rank != 0
        and all(value in shared for value in node.inputs)
    )


def _check_transpose(node: ir.Node, shared: set[ir.Value]) -> bool:
    return "perm" in node.attributes and node.attributes["perm"].as_ints()[0] == 0


def _check_slice(node: ir.Node, shared: set[ir.Value]) -> bool:
    axes = read_integers(node.inputs[3]) if len(node.inputs) > 3 else None
    rank = _read_rank(node.inputs[0])
    return (
        axes is not None
        and rank is not None
        and 0 not in normalize_axes(axes, rank)
        and node.inputs[0] in shared
    )


def _check_reshape(node: ir.Node, shared: set[ir.Value]) -> bool:
    """Return whether a Reshape keeps the rows: to [0, …], or to [-1, …] with as many numbers per row as before."""
    value, shape = node.inputs[0], read_integers(node.inputs[1])
    dims = None if value is None else read_static_dims(value)
    if not shape or dims is None or value not in shared or read_attribute(node, "allowzero", 0):
        return False
    per_row, new_per_row = dims[1:], shape[1:]
    if shape[0] == 0:
        return True
    if shape[0] != -1 or None in per_row or any(size <= 0 for size in new_per_row):
        return False
    return int(np.prod([dim or 0 for dim in per_row])) == int(np.prod(new_per_row))


def _check_normalize(node: ir.Node, shared: set[ir.Value]) -> bool:
    rank = _read_rank(node.inputs[0])
    axis = read_attribute(node, "axis", -1)
    return rank is not None and axis % rank != 0 and all(value not in shared for value in node.inputs[1:])


def _read_rank(value: ir.Value | None) -> int | None:
    return None if value is None or value.shape is None else len(value.shape)


ROW_WISE: Final[Mapping[str, Rule]] = {
    **dict.fromkeys(_REDUCTIONS, _check_reduce),
    "ArgMax": _check_axis(0),
    "BatchNormalization": lambda node, shared: all(value not in shared for value in node.inputs[1:]),
    "Concat": _check_concat,
    "Flatten": lambda node, shared: read_attribute(node, "axis", 1) == 1,
    "Gather": _check_gather,
    "Gemm": _check_gemm,
    "LayerNormalization": _check_normalize,
    "LogSoftmax": _check_axis(-1),
    "MatMul": _check_matmul,
    "Reshape": _check_reshape,
    "Slice": _check_slice,
    "Softmax": _check_axis(-1),
    "Split": _check_axis(0),
    "Squeeze": _check_moved_axes,
    "Transpose": _check_transpose,
    "Unsqueeze": _check_moved_axes,
}
