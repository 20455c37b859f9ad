"""Writes a trained DIN as an ONNX graph, and checks that the graph says what the jax function says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import onnxruntime as ort  # type: ignore[import-untyped]  # publishes no types
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from movielens_din import din
from movielens_din.din import HISTORY, ITEM, PADDING_ITEM, Architecture, Inputs, NumberFeature
from movielens_din.training import Parameters

OPSET: Final = 17
IR_VERSION: Final = 8
"""Old enough for every ONNX Runtime since 2022, among them those that Triton 24.10 and the test server carry."""
SCORE: Final = "score"
TOLERANCE: Final = 1e-5
"""Largest difference between graph and function that counts as equal: float32 sums in another order."""


class ExportError(RuntimeError):
    """The graph does not compute what the trained function computes."""


class _Graph:
    """Collects nodes and weights; every method adds one node and gives its output's name."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, onnx.TensorProto] = {}

    def weight(self, name: str, values: NDArray[np.float32] | NDArray[np.int64]) -> str:
        self.weights.setdefault(name, numpy_helper.from_array(values, name))
        return name

    def add(self, operation: str, inputs: Sequence[str], name: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(operation, list(inputs), [name], name=name, **attributes))
        return name

    def dense(self, layer: str, source: str, parameters: Parameters, *, relu: bool) -> str:
        weight = self.weight(f"{layer}.weight", _float32(parameters[f"{layer}.weight"]))
        bias = self.weight(f"{layer}.bias", _float32(parameters[f"{layer}.bias"]))
        product = self.add("MatMul", [source, weight], f"{layer}.product")
        total = self.add("Add", [product, bias], f"{layer}.sum")
        return self.add("Relu", [total], f"{layer}.relu") if relu else total


def to_onnx(architecture: Architecture, parameters: Parameters, metadata: dict[str, str]) -> onnx.ModelProto:
    """The inference graph: one input per feature, INT64 or FP32 [rows, 1], the history INT64 [rows, length]; output score,
    FP32 [rows, 1].

    Each embedding is read by a Gather of its own, so that a server may move those to another machine.
    """
    graph = _Graph()
    axis = graph.weight("axis.1", np.array([1], dtype=np.int64))
    scalars: list[str] = []
    for name in architecture.scalars:
        table = graph.weight(f"embedding.{name}", _float32(parameters[f"embedding.{name}"]))
        rows = graph.add("Gather", [table, name], f"{name}.embedding", axis=0)
        scalars.append(graph.add("Squeeze", [rows, axis], f"{name}.vector"))
    numbers = [_standardise(graph, number) for number in architecture.numbers]
    interest = _interest(graph, parameters)
    hidden = graph.add("Concat", [*scalars, interest, *numbers], "top.input", axis=1)
    hidden = graph.dense("top.0", hidden, parameters, relu=True)
    hidden = graph.dense("top.1", hidden, parameters, relu=True)
    graph.add("Sigmoid", [graph.dense("top.2", hidden, parameters, relu=False)], SCORE)
    inputs = [
        *((name, TensorProto.INT64, 1) for name in architecture.scalars),
        (HISTORY, TensorProto.INT64, architecture.history_length),
        *((number.name, TensorProto.FLOAT, 1) for number in architecture.numbers),
    ]
    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "din",
            [helper.make_tensor_value_info(name, kind, ["rows", width]) for name, kind, width in inputs],
            [helper.make_tensor_value_info(SCORE, TensorProto.FLOAT, ["rows", 1])],
            list(graph.weights.values()),
        ),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="tidegate-example-movielens",
    )
    helper.set_model_props(model, metadata)
    onnx.checker.check_model(model, full_check=True)
    return model


def run_onnx(model: Path | bytes, inputs: Inputs, batch_rows: int = 2048) -> NDArray[np.float32]:
    """Scores by ONNX Runtime on one CPU thread: float32 [rows, 1]."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(
        model if isinstance(model, bytes) else str(model), options, providers=["CPUExecutionProvider"]
    )
    rows = len(next(iter(inputs.values())))
    parts = [
        np.asarray(
            session.run([SCORE], {name: values[at : at + batch_rows] for name, values in inputs.items()})[0]
        )
        for at in range(0, rows, batch_rows)
    ]
    return np.concatenate(parts).astype(np.float32, copy=False)


def largest_difference(
    model: bytes, architecture: Architecture, parameters: Parameters, inputs: Inputs
) -> float:
    """The largest absolute difference between graph and function over these rows.

    Raises ExportError when it is above TOLERANCE.
    """
    graph_scores = run_onnx(model, inputs)
    function_scores = din.scores(architecture, parameters, inputs)
    difference = float(np.abs(graph_scores - function_scores).max())
    if not difference <= TOLERANCE:
        raise ExportError(
            f"the ONNX graph differs from the trained function by {difference:.2e} at most, "
            f"over {len(function_scores)} rows; {TOLERANCE:.0e} is allowed"
        )
    return difference


def _standardise(graph: _Graph, number: NumberFeature) -> str:
    mean = graph.weight(f"{number.name}.mean", np.array(number.mean, dtype=np.float32))
    deviation = graph.weight(f"{number.name}.deviation", np.array(number.deviation, dtype=np.float32))
    centred = graph.add("Sub", [number.name, mean], f"{number.name}.centred")
    return graph.add("Div", [centred, deviation], f"{number.name}.standardised")


def _interest(graph: _Graph, parameters: Parameters) -> str:
    """DIN's activation unit, as `din._attend`: the history weighed against the item and averaged."""
    table = f"embedding.{ITEM}"
    history = graph.add("Gather", [table, HISTORY], f"{HISTORY}.embedding", axis=0)
    shape = graph.add("Shape", [history], f"{HISTORY}.shape")
    target = graph.add("Expand", [f"{ITEM}.embedding", shape], "attention.target")
    difference = graph.add("Sub", [target, history], "attention.difference")
    product = graph.add("Mul", [target, history], "attention.product")
    pairs = graph.add("Concat", [target, history, difference, product], "attention.pairs", axis=2)
    hidden = graph.dense("attention.0", pairs, parameters, relu=True)
    weights = graph.dense("attention.1", hidden, parameters, relu=False)
    padding = graph.weight("padding", np.array(PADDING_ITEM, dtype=np.int64))
    empty = graph.add("Equal", [HISTORY, padding], "attention.empty")
    present = graph.add("Not", [empty], "attention.present")
    mask = graph.add("Cast", [present], "attention.mask", to=TensorProto.FLOAT)
    last = graph.weight("axis.2", np.array([2], dtype=np.int64))
    mask = graph.add("Unsqueeze", [mask, last], "attention.mask.column")
    weighed = graph.add(
        "Mul", [graph.add("Mul", [weights, mask], "attention.weights"), history], "attention.weighed"
    )
    total = graph.add("ReduceSum", [weighed, "axis.1"], "attention.total", keepdims=0)
    liked = graph.add("ReduceSum", [mask, "axis.1"], "attention.liked", keepdims=0)
    one = graph.weight("one", np.array(1.0, dtype=np.float32))
    return graph.add("Div", [total, graph.add("Max", [liked, one], "attention.divisor")], "interest")


def _float32(values: object) -> NDArray[np.float32]:
    return np.asarray(values, dtype=np.float32)
