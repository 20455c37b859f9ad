"""Random requests have the shapes that the model's clients send."""

from __future__ import annotations

import random
from importlib import import_module
from typing import Any

from tidegate.planning.diagnosis.calibration import RandomInputs
from tidegate.triton.load_generator import build_request

_messages: Any = import_module("tritonclient.grpc.service_pb2")


def test_shared_inputs_have_one_row_beside_the_rows_of_the_others() -> None:
    metadata = _messages.ModelMetadataResponse()
    metadata.inputs.add(name="history", datatype="INT64", shape=[-1, -1])
    metadata.inputs.add(name="item", datatype="INT64", shape=[-1, 4])
    inputs = RandomInputs(rows=16, length=20, shared_inputs=frozenset({"history"}))
    request = build_request("ctr", metadata.inputs, inputs, random.Random(0))
    assert {tensor.name: list(tensor.shape) for tensor in request.inputs} == {
        "history": [1, 20],
        "item": [16, 4],
    }
    assert [len(content) for content in request.raw_input_contents] == [1 * 20 * 8, 16 * 4 * 8]
