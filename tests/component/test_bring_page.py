"""docs/how-to/bring-your-model.md: its commands turn the output of a converter into a model that a real Triton serves."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import tritonclient.grpc as triton_grpc
from onnx import TensorProto, helper, numpy_helper

from documented.pages import ROOT
from documented.tutorial import MismatchError, run, steps
from fixtures.agent import ModelPod, serves_version

PAGE = ROOT / "docs" / "how-to" / "bring-your-model.md"


def _convert_classifier(path: Path, *, scores: str) -> None:
    """Write a graph with the outputs that converters of LightGBM declare: a label of one row, and `scores` of any number."""
    weights = np.arange(16, dtype=np.float32).reshape(8, 2)
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "weights"], ["logits"]),
            helper.make_node("Softmax", ["logits"], [scores], axis=1),
            helper.make_node("ArgMax", [scores], ["label"], axis=1, keepdims=0),
        ],
        "classifier",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 8])],
        [
            helper.make_tensor_value_info("label", TensorProto.INT64, [1]),
            helper.make_tensor_value_info(scores, TensorProto.FLOAT, [None, 2]),
        ],
        [numpy_helper.from_array(weights, "weights")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def _type_page(folder: Path) -> None:
    typed = [block for block in steps(PAGE.read_text(), "bring-your-model.md") if not block.not_run]
    environment = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    assert len(run(typed, folder, environment, timeout_s=120)) == 3


@pytest.mark.triton
def test_what_the_page_publishes_is_served_with_any_number_of_rows(model_pod: ModelPod) -> None:
    _convert_classifier(model_pod.folder / "ctr.onnx", scores="probabilities")

    _type_page(model_pod.folder)
    model_pod.start_agent(model_pod.order())
    model_pod.triton.start()
    report = model_pod.wait_for("version 1 serves", serves_version(1))

    assert [(tensor.name, tensor.shape) for tensor in report.outputs] == [("probabilities", (-1, 2))]
    tensor = triton_grpc.InferInput("x", [3, 8], "FP32")
    tensor.set_data_from_numpy(np.ones((3, 8), np.float32))
    with triton_grpc.InferenceServerClient(model_pod.triton.grpc) as client:
        answer = client.infer("ctr", [tensor])
    assert answer is not None
    scores = answer.as_numpy("probabilities")
    assert scores is not None
    assert scores.shape == (3, 2)
    np.testing.assert_allclose(scores.sum(axis=1), 1, rtol=1e-6)


def test_another_name_of_an_output_is_refused_with_those_of_the_file(tmp_path: Path) -> None:
    _convert_classifier(tmp_path / "ctr.onnx", scores="score")

    with pytest.raises(MismatchError, match=r"ctr\.onnx has no output probabilities; it has label, score"):
        _type_page(tmp_path)
