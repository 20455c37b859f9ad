"""Tiny ONNX models whose answer says which version gave it: y = x + 1000 × version."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

STEP: Final = 1000.0


def answer(inputs: NDArray[np.float32], version: int) -> NDArray[np.float32]:
    """What version `version` answers to `inputs` (float32 [rows, 1]), as float32 [rows]."""
    return (inputs + np.float32(STEP * version)).ravel()


def is_answer(scores: NDArray[Any], inputs: NDArray[np.float32], version: str) -> bool:
    """Whether `scores` are exactly what `version` answers to `inputs`; its name is the server's, so it may be no number."""
    return version.isdecimal() and np.array_equal(scores, answer(inputs, int(version)))


def publish(folder: Path, version: int, *, takes: str = "x") -> str:
    """Writes `<folder>/<version>/model.onnx`, whose input is called `takes`, and returns its sha256."""
    offset = numpy_helper.from_array(np.array([STEP * version], dtype=np.float32), "offset")
    graph = helper.make_graph(
        [helper.make_node("Add", [takes, "offset"], ["score"])],
        "probe",
        [helper.make_tensor_value_info(takes, TensorProto.FLOAT, ["rows", 1])],
        [helper.make_tensor_value_info("score", TensorProto.FLOAT, ["rows", 1])],
        [offset],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return _write(folder, version, model)


def publish_hungry(folder: Path, version: int, *, mebibytes: int) -> str:
    """The same in a small file that takes so much memory to load."""
    offset = numpy_helper.from_array(np.array([STEP * version], dtype=np.float32), "offset")
    size = numpy_helper.from_array(np.array([mebibytes << 18], dtype=np.int64), "size")
    graph = helper.make_graph(
        [
            helper.make_node("ConstantOfShape", ["size"], ["zeros"]),
            helper.make_node("ReduceSum", ["zeros"], ["nothing"], keepdims=0),
            helper.make_node("Add", ["x", "offset"], ["sum"]),
            helper.make_node("Add", ["sum", "nothing"], ["score"]),
        ],
        "hungry",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 1])],
        [helper.make_tensor_value_info("score", TensorProto.FLOAT, ["rows", 1])],
        [offset, size],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return _write(folder, version, model)


def publish_balloon(folder: Path, version: int) -> str:
    """The same, but a request takes as many mebibytes as its largest x says, while it is answered."""
    offset = numpy_helper.from_array(np.array([STEP * version], dtype=np.float32), "offset")
    mebibyte = numpy_helper.from_array(np.array([1 << 18], dtype=np.int64), "mebibyte")
    graph = helper.make_graph(
        [
            helper.make_node("ReduceMax", ["x"], ["largest"], keepdims=0, axes=[0]),
            helper.make_node("Cast", ["largest"], ["whole"], to=TensorProto.INT64),
            helper.make_node("Mul", ["whole", "mebibyte"], ["size"]),
            helper.make_node("ConstantOfShape", ["size"], ["zeros"]),
            helper.make_node("ReduceSum", ["zeros"], ["nothing"], keepdims=0),
            helper.make_node("Add", ["x", "offset"], ["sum"]),
            helper.make_node("Add", ["sum", "nothing"], ["score"]),
        ],
        "balloon",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 1])],
        [helper.make_tensor_value_info("score", TensorProto.FLOAT, ["rows", 1])],
        [offset, mebibyte],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return _write(folder, version, model)


def publish_slow(folder: Path, version: int, *, rounds: int) -> str:
    """The same, but a request goes so many rounds for each whole unit of its largest x."""
    values = {"offset": np.float32(STEP * version), "rounds": np.int64(rounds), "go": np.bool_(True)}
    weights = [numpy_helper.from_array(np.asarray(value), name) for name, value in values.items()]
    body = helper.make_graph(
        [helper.make_node("Identity", ["going"], ["goes_on"]), helper.make_node("Sin", ["sum"], ["next"])],
        "round",
        [
            helper.make_tensor_value_info("number", TensorProto.INT64, []),
            helper.make_tensor_value_info("going", TensorProto.BOOL, []),
            helper.make_tensor_value_info("sum", TensorProto.FLOAT, []),
        ],
        [
            helper.make_tensor_value_info("goes_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, []),
        ],
    )
    graph = helper.make_graph(
        [
            helper.make_node("ReduceMax", ["x"], ["largest"], keepdims=0),
            helper.make_node("Cast", ["largest"], ["units"], to=TensorProto.INT64),
            helper.make_node("Mul", ["units", "rounds"], ["trips"]),
            helper.make_node("Loop", ["trips", "go", "largest"], ["end"], body=body),
            helper.make_node("Sub", ["end", "end"], ["nothing"]),
            helper.make_node("Add", ["x", "offset"], ["sum_of_both"]),
            helper.make_node("Add", ["sum_of_both", "nothing"], ["score"]),
        ],
        "slow",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 1])],
        [helper.make_tensor_value_info("score", TensorProto.FLOAT, ["rows", 1])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return _write(folder, version, model)


def publish_unloadable(folder: Path, version: int, *, extra_input: bool = False) -> str:
    """A whole model with an operator that nobody has; `extra_input` makes its signature another one too."""
    names = ["x", "more"] if extra_input else ["x"]
    graph = helper.make_graph(
        [helper.make_node("NoSuchOperator", ["x"], ["score"])],
        "unloadable",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", 1]) for name in names],
        [helper.make_tensor_value_info("score", TensorProto.FLOAT, ["rows", 1])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return _write(folder, version, model)


def publish_for_one_row(folder: Path, version: int, *, user: bool = False) -> str:
    """A model that promises to take any number of rows, and fails for more than one; with an input `user` beside x if asked for."""
    one = numpy_helper.from_array(np.array([1, 1], dtype=np.int64), "one")
    offset = numpy_helper.from_array(np.array([STEP * version], dtype=np.float32), "offset")
    graph = helper.make_graph(
        [
            helper.make_node("Reshape", ["x", "one"], ["row"]),
            helper.make_node("Add", ["row", "offset"], ["score"]),
        ],
        "for-one-row",
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", 1])
            for name in ("x", *(["user"] if user else []))
        ],
        [helper.make_tensor_value_info("score", TensorProto.FLOAT, ["rows", 1])],
        [one, offset],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return _write(folder, version, model)


def _write(folder: Path, version: int, model: onnx.ModelProto) -> str:
    place = folder / str(version)
    place.mkdir(parents=True, exist_ok=True)
    content = model.SerializeToString()
    temporary = place / ".model.onnx"
    temporary.write_bytes(content)
    temporary.rename(place / "model.onnx")
    return hashlib.sha256(content).hexdigest()
