"""An ONNX model of one user and many items, most of whose work depends on the user alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from builders.onnx_models import write_artefact
from tidegate_localcluster.demo.load import ScoringBatch

USER_INPUTS: Final = ("user", "history")
ITEMS: Final = 500
USERS: Final = 50
WIDTH: Final = 32
HIDDEN: Final = 256
STEP: Final = 1e6
"""A version's scores begin at this times its number; every other number is a small integer, so that sums are exact."""


def publish_user_model(folder: Path, version: int, *, mark: str = "") -> None:
    """Write `<folder>/<version>/model.onnx`: user int64 [rows], history int64 [rows, length], item int64 [rows, 1] → score float32 [rows].

    `mark` changes its content alone.
    """
    weights = {
        **_make_weights(),
        "offset": np.array(STEP * version, np.float32),
        "axis": np.array([1], np.int64),
    }
    nodes = [
        helper.make_node("Gather", ["items", "history"], ["liked"]),
        helper.make_node("ReduceSum", ["liked", "axis"], ["pooled"], keepdims=0),
        helper.make_node("Gather", ["users", "user"], ["known"]),
        helper.make_node("Add", ["pooled", "known"], ["features"]),
        helper.make_node("MatMul", ["features", "first"], ["product1"]),
        helper.make_node("Relu", ["product1"], ["layer1"]),
        helper.make_node("MatMul", ["layer1", "second"], ["product2"]),
        helper.make_node("Relu", ["product2"], ["layer2"]),
        helper.make_node("MatMul", ["layer2", "third"], ["taste"]),
        helper.make_node("Gather", ["items", "item"], ["rows"]),
        helper.make_node("Squeeze", ["rows", "axis"], ["offered"]),
        helper.make_node("Mul", ["taste", "offered"], ["matches"]),
        helper.make_node("ReduceSum", ["matches", "axis"], ["sum"], keepdims=0),
        helper.make_node("Add", ["sum", "offset"], ["score"]),
    ]
    shapes: dict[str, list[int | str]] = {
        "user": ["rows"],
        "history": ["rows", "length"],
        "item": ["rows", 1],
    }
    graph = helper.make_graph(
        nodes,
        "user",
        [helper.make_tensor_value_info(name, TensorProto.INT64, shape) for name, shape in shapes.items()],
        [helper.make_tensor_value_info("score", TensorProto.FLOAT, ["rows"])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
        doc_string=mark,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    write_artefact(folder, version, model)


def make_user_request(seed: int, rows: int, *, length: int = 20) -> dict[str, NDArray[np.int64]]:
    """Return one row of the user's inputs, and so many items: user [1, 1], history [1, length], item [rows, 1]."""
    random = np.random.default_rng(seed)
    return {
        "user": random.integers(0, USERS, (1, 1)),
        "history": random.integers(0, ITEMS, (1, length)),
        "item": random.integers(0, ITEMS, (rows, 1)),
    }


def repeat_user(request: Mapping[str, NDArray[np.int64]]) -> dict[str, NDArray[np.int64]]:
    """Return the request with as many rows of the user's inputs as there are items."""
    rows = len(request["item"])
    return {
        name: np.repeat(array, rows, axis=0) if len(array) != rows else array
        for name, array in request.items()
    }


def score_user(request: Mapping[str, NDArray[np.int64]], version: int) -> NDArray[np.float32]:
    """Return what a version answers, float32 [rows]."""
    weights = {name: array.astype(np.float64) for name, array in _make_weights().items()}
    whole = repeat_user(request)
    features = weights["items"][whole["history"]].sum(axis=1) + weights["users"][whole["user"][:, 0]]
    layer = np.maximum(np.maximum(features @ weights["first"], 0) @ weights["second"], 0)
    scores = ((layer @ weights["third"]) * weights["items"][whole["item"][:, 0]]).sum(axis=1)
    return (scores + STEP * version).astype(np.float32)


def make_user_batches(versions: tuple[int, ...], *, count: int = 8) -> list[ScoringBatch]:
    """Return requests of 1 to 64 items, every other one with the user sent once, with the right answers of each version."""
    batches: list[ScoringBatch] = []
    for number in range(count):
        request = make_user_request(number, (64, 17, 2, 1)[number // 2 % 4])
        inputs: Mapping[str, Any] = request if number % 2 else repeat_user(request)
        batches.append(
            ScoringBatch(inputs, {str(version): score_user(request, version) for version in versions})
        )
    return batches


def _make_weights() -> dict[str, NDArray[np.float32]]:
    random = np.random.default_rng(1)

    def make_sparse(rows: int, columns: int, share: float) -> NDArray[np.float32]:
        signs = random.integers(0, 2, (rows, columns)) * 2 - 1
        return (signs * (random.random((rows, columns)) < share)).astype(np.float32)

    return {
        "items": make_sparse(ITEMS, WIDTH, 0.5),
        "users": make_sparse(USERS, WIDTH, 0.5),
        "first": make_sparse(WIDTH, HIDDEN, 0.1),
        "second": make_sparse(HIDDEN, HIDDEN, 0.02),
        "third": make_sparse(HIDDEN, WIDTH, 0.02),
    }
