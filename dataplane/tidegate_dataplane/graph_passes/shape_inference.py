"""Infer types and shapes of a graph's values, also behind an operator of ONNX Runtime that ONNX has no schema of."""

from __future__ import annotations

from typing import Final

import onnx_ir as ir
from onnx_ir.passes.common import ShapeInferencePass

from tidegate_dataplane.graph_passes.constants import read_attribute

HASH: Final = ("com.microsoft", "MurmurHash3")
"""Domain and name of ONNX Runtime's operator that hashes each number or text of a tensor to 32 bits."""


def infer_shapes(model: ir.Model) -> None:
    """Infer what the graph shows of its values, in place; what is known already is kept."""
    ShapeInferencePass()(model)
    # What reads a hash follows from it, and may be hashed itself.
    while sum(_state_hash(node) for node in model.graph):
        ShapeInferencePass()(model)


def _state_hash(node: ir.Node) -> bool:
    """Give a hash the type and the shape that ONNX Runtime gives it; return whether it had none."""
    if node.op_identifier()[:2] != HASH or len(node.inputs) != 1 or len(node.outputs) != 1:
        return False
    [value], [hashed] = node.inputs, node.outputs
    if value is None or value.shape is None or hashed.shape is not None:
        return False
    is_unsigned = read_attribute(node, "positive", 1) == 1
    hashed.type = ir.TensorType(ir.DataType.UINT32 if is_unsigned else ir.DataType.INT32)
    hashed.shape = ir.Shape(value.shape.dims)
    return True
