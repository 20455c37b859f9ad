"""An ONNX model of a history of ids whose zeros are a mask, as sequence models have it, for engines compiled by shape."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

ITEMS: Final = 500
WIDTH: Final = 32
HIDDEN: Final = 64


def build_history_model(*, masked: bool = True, seed: int = 0) -> onnx.ModelProto:
    """Return `history` int64 [rows, length], `item` int64 [rows] → `score` float32 [rows].

    The items of the history are weighted by a network of both; zeros count nothing if `masked`.
    """
    random = np.random.default_rng(seed)
    weights = {
        "table": random.standard_normal((ITEMS, WIDTH)).astype(np.float32),
        "first": (random.standard_normal((3 * WIDTH, HIDDEN)) / 10).astype(np.float32),
        "second": (random.standard_normal((HIDDEN, 1)) / 10).astype(np.float32),
        "one": np.array([1], np.int64),
        "zero": np.array(0, np.int64),
        "last": np.array([-1], np.int64),
    }
    nodes = [
        helper.make_node("Gather", ["table", "history"], ["items"]),
        helper.make_node("Gather", ["table", "item"], ["target"]),
        helper.make_node("Unsqueeze", ["target", "one"], ["targets"]),
        helper.make_node("Mul", ["items", "targets"], ["products"]),
        helper.make_node("Sub", ["items", "targets"], ["differences"]),
        helper.make_node("Concat", ["items", "products", "differences"], ["pairs"], axis=2),
        helper.make_node("MatMul", ["pairs", "first"], ["hidden"]),
        helper.make_node("Relu", ["hidden"], ["active"]),
        helper.make_node("MatMul", ["active", "second"], ["weights"]),
        helper.make_node("Mul", ["items", "weights"], ["weighted"]),
        helper.make_node("Greater", ["history", "zero"], ["valid"]),
        helper.make_node("Cast", ["valid"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "last"], ["masks"]),
        helper.make_node("Mul", ["weighted", "masks"] if masked else ["weighted", "weighted"], ["kept"]),
        helper.make_node("ReduceSum", ["kept", "one"], ["user"], keepdims=0),
        helper.make_node("Mul", ["user", "target"], ["matches"]),
        helper.make_node("ReduceSum", ["matches", "one"], ["score"], keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "history",
        [
            helper.make_tensor_value_info("history", TensorProto.INT64, ["rows", "length"]),
            helper.make_tensor_value_info("item", TensorProto.INT64, ["rows"]),
        ],
        [helper.make_tensor_value_info("score", TensorProto.FLOAT, ["rows"])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return model


def make_history_request(rows: int, length: int, seed: int = 0) -> dict[str, NDArray[Any]]:
    """Return a request of ids from 1 on."""
    random = np.random.default_rng(seed)
    return {
        "history": random.integers(1, ITEMS, (rows, length)),
        "item": random.integers(1, ITEMS, rows),
    }
