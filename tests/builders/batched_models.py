"""Two ONNX models whose requests are worth joining: one that computes, and one over histories of any length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, ValueInfoProto, helper, numpy_helper

from builders.onnx_models import write_artefact

ENTRIES: Final = 1000
WIDTH: Final = 32


def publish_dense(folder: Path, version: int) -> None:
    """Write `<folder>/<version>/model.onnx`: x float32 [rows, 64] → score float32 [rows, 1], through layers of 512."""
    random = np.random.default_rng(version)
    sizes = (64, 512, 512, 1)
    weights: dict[str, NDArray[Any]] = {}
    nodes: list[onnx.NodeProto] = []
    value = "x"
    for layer, (inputs, outputs) in enumerate(pairwise(sizes)):
        weights[f"w{layer}"] = (random.normal(size=(inputs, outputs)) / np.sqrt(inputs)).astype(np.float32)
        nodes.append(helper.make_node("MatMul", [value, f"w{layer}"], [f"product{layer}"]))
        value = f"product{layer}"
        if outputs > 1:
            nodes.append(helper.make_node("Relu", [value], [f"hidden{layer}"]))
            value = f"hidden{layer}"
    nodes.append(helper.make_node("Identity", [value], ["score"]))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 64])
    _write_model(folder, version, nodes, [x], weights)


def publish_attention(folder: Path, version: int) -> None:
    """Write `<folder>/<version>/model.onnx`: attention of a target over a history whose id 0 counts nothing.

    history int64 [rows, length], target int64 [rows] → score float32 [rows, 1].
    """
    random = np.random.default_rng(version)

    def draw(*size: int) -> NDArray[np.float32]:
        return (random.normal(size=size) / np.sqrt(size[0])).astype(np.float32)

    weights: dict[str, NDArray[Any]] = {
        "table": (random.normal(size=(ENTRIES, WIDTH)) / 8).astype(np.float32),
        "attend1": draw(4 * WIDTH, 64),
        "attend2": draw(64, 1),
        "score1": draw(2 * WIDTH, 128),
        "score2": draw(128, 1),
        "one": np.array([1], np.int64),
        "two": np.array([2], np.int64),
        "zero": np.array(0, np.int64),
    }
    nodes = [
        helper.make_node("Gather", ["table", "history"], ["items"]),
        helper.make_node("Gather", ["table", "target"], ["query"]),
        helper.make_node("Unsqueeze", ["query", "one"], ["query3"]),
        helper.make_node("Shape", ["items"], ["shape"]),
        helper.make_node("Expand", ["query3", "shape"], ["queries"]),
        helper.make_node("Sub", ["queries", "items"], ["difference"]),
        helper.make_node("Mul", ["queries", "items"], ["product"]),
        helper.make_node("Concat", ["queries", "items", "difference", "product"], ["pairs"], axis=2),
        helper.make_node("MatMul", ["pairs", "attend1"], ["hidden"]),
        helper.make_node("Relu", ["hidden"], ["active"]),
        helper.make_node("MatMul", ["active", "attend2"], ["attention"]),
        helper.make_node("Greater", ["history", "zero"], ["is_item"]),
        helper.make_node("Cast", ["is_item"], ["mask2"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask2", "two"], ["mask"]),
        helper.make_node("Mul", ["attention", "mask"], ["masked"]),
        helper.make_node("Mul", ["masked", "items"], ["weighted"]),
        helper.make_node("ReduceSum", ["weighted", "one"], ["interest"], keepdims=0),
        helper.make_node("Concat", ["interest", "query"], ["both"], axis=1),
        helper.make_node("MatMul", ["both", "score1"], ["hidden2"]),
        helper.make_node("Relu", ["hidden2"], ["active2"]),
        helper.make_node("MatMul", ["active2", "score2"], ["score"]),
    ]
    history = helper.make_tensor_value_info("history", TensorProto.INT64, ["rows", "length"])
    target = helper.make_tensor_value_info("target", TensorProto.INT64, ["rows"])
    _write_model(folder, version, nodes, [history, target], weights)


def _write_model(
    folder: Path,
    version: int,
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[ValueInfoProto],
    weights: Mapping[str, NDArray[Any]],
) -> None:
    score = helper.make_tensor_value_info("score", TensorProto.FLOAT, ["rows", 1])
    initializers = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "batched", inputs, [score], initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    write_artefact(folder, version, model)
