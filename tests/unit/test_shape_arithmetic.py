"""Shapes that a graph computes are stated where they consist of constants and of the value's own sizes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_ir.passes.common import ShapeInferencePass

from tidegate_dataplane.graph_passes.constants import Array, read_integers
from tidegate_dataplane.graph_passes.pipeline import simplify_graph
from tidegate_dataplane.graph_passes.proof import Session
from tidegate_dataplane.graph_passes.repetitions import read_repetition
from tidegate_dataplane.graph_passes.shape_arithmetic import state_shapes

CONSTANTS = {
    "zero": np.array(0),
    "one": np.array(1),
    "axis": np.array([0]),
    "four": np.array([4]),
    "rest": np.array([-1]),
    "minus": np.array(-1),
}
SIZE_OF_Y = [
    helper.make_node("Shape", ["y"], ["shape"]),
    helper.make_node("Gather", ["shape", "zero"], ["rows"]),
    helper.make_node("Gather", ["shape", "one"], ["length"]),
    helper.make_node("Unsqueeze", ["rows", "axis"], ["rows1"]),
    helper.make_node("Unsqueeze", ["length", "axis"], ["length1"]),
]
EXPAND = [
    *SIZE_OF_Y,
    helper.make_node("Concat", ["rest", "length1", "rest"], ["listed"], axis=0),
    helper.make_node("Reshape", ["listed", "rest"], ["sizes"]),
    helper.make_node("Shape", ["sizes"], ["count"]),
    helper.make_node("ConstantOfShape", ["count"], ["ones"], value=numpy_helper.from_array(np.array([1]))),
    helper.make_node("Mul", ["ones", "minus"], ["negative"]),
    helper.make_node("Equal", ["sizes", "negative"], ["kept"]),
    helper.make_node("Where", ["kept", "ones", "sizes"], ["target"]),
    helper.make_node("Expand", ["x", "target"], ["repeated"]),
    helper.make_node("Mul", ["repeated", "y"], ["out"]),
]


def a_graph(
    nodes: Sequence[onnx.NodeProto], x: Sequence[int | str], y: Sequence[int | str], rank: int = 3
) -> onnx.ModelProto:
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in (("x", x), ("y", y))
    ]
    outputs = [helper.make_tensor_value_info("out", TensorProto.FLOAT, [None] * rank)]
    weights = [numpy_helper.from_array(array, name) for name, array in CONSTANTS.items()]
    graph = helper.make_graph(list(nodes), "shapes", inputs, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return model


def read_model(model: onnx.ModelProto) -> ir.Model:
    read = ir.from_proto(model)
    ShapeInferencePass()(read)
    return read


def answer(model: onnx.ModelProto, x: tuple[int, ...], y: tuple[int, ...]) -> list[Array] | None:
    random = np.random.default_rng(0)
    request = {name: random.standard_normal(dims).astype(np.float32) for name, dims in (("x", x), ("y", y))}
    return Session(model).run_request(request)


def test_an_expand_of_pytorch_is_seen_as_a_repetition() -> None:
    original = a_graph(EXPAND, ["rows", 1, 4], ["rows", "length", 4])
    model = read_model(original)
    simplify_graph(model)
    assert [node.op_type for node in model.graph] == ["Shape", "Expand", "Mul"]
    [expand] = [node for node in model.graph if node.op_type == "Expand"]
    repetition = read_repetition(expand.outputs[0])
    assert repetition is not None
    assert (repetition.inner.name, repetition.reference) == ("x", model.graph.inputs[1])
    for shapes in (
        ((3, 1, 4), (3, 5, 4)),
        ((0, 1, 4), (0, 5, 4)),
        ((3, 1, 4), (3, 1, 4)),
        ((2, 1, 4), (3, 5, 4)),
    ):
        expected, found = (answer(each, *shapes) for each in (original, ir.to_proto(model)))
        assert (expected is None) == (found is None)
        np.testing.assert_array_equal(expected or [], found or [])


def test_a_shape_is_stated_once() -> None:
    nodes = [
        helper.make_node("Shape", ["y"], ["target"]),
        helper.make_node("Expand", ["x", "target"], ["repeated"]),
        helper.make_node("Mul", ["repeated", "y"], ["out"]),
    ]
    assert state_shapes(read_model(a_graph(nodes, [1, 1, 4], ["rows", "length", 4]))) == 0


@pytest.mark.parametrize(
    ("x", "y"),
    [
        pytest.param(["rows", 1, 4], ["users", "length", 4], id="other rows"),
        pytest.param(["rows", 1, 4], ["rows", "length", 1], id="a smaller width"),
        pytest.param(["rows", "length", 4], ["rows", "length", 4], id="a length that inputs may not share"),
    ],
)
def test_an_expand_to_other_dimensions_stays(x: list[int | str], y: list[int | str]) -> None:
    assert state_shapes(read_model(a_graph(EXPAND, x, y))) == 0


@pytest.mark.parametrize(
    ("x", "sizes", "stated"),
    [
        pytest.param(["rows", 8], ["rows1", "rest", "four"], (0, -1, 4), id="own rows"),
        pytest.param(["users", 8], ["rows1", "rest", "four"], None, id="rows of another input"),
        pytest.param(
            ["rows", "length", 4], ["rows1", "length1", "four"], None, id="a length of another input"
        ),
        pytest.param(["rows", 8], ["rest", "rows1", "four"], None, id="rows at another place"),
    ],
)
def test_a_view_states_sizes_of_the_value_alone(
    x: list[int | str], sizes: list[str], stated: tuple[int, ...] | None
) -> None:
    nodes = [
        *SIZE_OF_Y,
        helper.make_node("Concat", sizes, ["target"], axis=0),
        helper.make_node("Reshape", ["x", "target"], ["out"]),
    ]
    model = read_model(a_graph(nodes, x, ["rows", "length", 4]))
    assert state_shapes(model) == (stated is not None)
    [reshape] = [node for node in model.graph if node.op_type == "Reshape"]
    assert read_integers(reshape.inputs[1]) == stated
