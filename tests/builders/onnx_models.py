"""ONNX models of awkward shapes, for what the agent must read or refuse."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def a_tensor(
    name: str, shape: Sequence[int | str | None] | None, kind: int = TensorProto.FLOAT
) -> onnx.ValueInfoProto:
    """An input or output; strings are symbols, None is a free dimension without a name."""
    return helper.make_tensor_value_info(name, kind, shape)


def a_model(
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    *,
    nodes: Sequence[onnx.NodeProto] | None = None,
    weights: Sequence[onnx.TensorProto] = (),
) -> onnx.ModelProto:
    """A model that passes its first input on, unless other nodes are given."""
    passing = [helper.make_node("Identity", [inputs[0].name], [outputs[0].name])]
    graph = helper.make_graph(nodes or passing, "g", list(inputs), list(outputs), list(weights))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def with_external_data(location: str, *, values: int = 1000) -> tuple[onnx.ModelProto, bytes]:
    """A model whose one weight lies in the file `location`, and that file's content."""
    weight = numpy_helper.from_array(np.arange(values, dtype=np.float32).reshape(1, values), "w")
    content = bytes(weight.raw_data)
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", "0"), ("length", str(len(content)))):
        entry = weight.external_data.add()
        entry.key, entry.value = key, value
    model = a_model(
        [a_tensor("x", ["n", 1])],
        [a_tensor("y", ["n", values])],
        nodes=[helper.make_node("MatMul", ["x", "w"], ["y"])],
        weights=[weight],
    )
    return model, content


def write_artefact(folder: Path, version: int, model: onnx.ModelProto, **files: bytes) -> Path:
    """Write `<folder>/<version>/model.onnx` and other files beside it; return the version folder."""
    place = folder / str(version)
    place.mkdir(parents=True, exist_ok=True)
    (place / "model.onnx").write_bytes(model.SerializeToString())
    for name, content in files.items():
        (place / name).write_bytes(content)
    return place
