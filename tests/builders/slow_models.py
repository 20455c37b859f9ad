"""Models that take a known time and give a known answer, as a model repository for Triton's Python backend."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_CODE = """
import json, time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        self.delay_s = float(parameters["delay_ms"]["string_value"]) / 1000
        self.factor = float(parameters["factor"]["string_value"])
        self.given = parameters["given"]["string_value"]
        self.gives = parameters["gives"]["string_value"]
        time.sleep(float(parameters["load_s"]["string_value"]))

    def execute(self, requests):
        time.sleep(self.delay_s)
        return [self.answer(request) for request in requests]

    def answer(self, request):
        rows = pb_utils.get_input_tensor_by_name(request, self.given).as_numpy()
        if (rows < 0).any():
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("a row is below zero"))
        scores = (rows * self.factor).astype(np.float32)
        return pb_utils.InferenceResponse([pb_utils.Tensor(self.gives, scores)])
"""


@dataclass(frozen=True, slots=True)
class SlowModel:
    """Answers `factor` times its input, `delay_ms` after it was asked; rows below zero are an error.

    Loading it takes `load_s`, as one of some gigabytes does.
    """

    name: str
    factor: float
    delay_ms: float = 50.0
    given: str = "x"
    given_type: str = "FP32"
    gives: str = "score"
    load_s: float = 0.0

    def write(self, repository: Path) -> None:
        """Puts version 1 into a model repository."""
        folder = repository / self.name / "1"
        folder.mkdir(parents=True)
        (folder / "model.py").write_text(_CODE)
        parameters = {
            "delay_ms": self.delay_ms,
            "factor": self.factor,
            "given": self.given,
            "gives": self.gives,
            "load_s": self.load_s,
        }
        lines = [
            f'name: "{self.name}"',
            'backend: "python"',
            "max_batch_size: 128",
            f'input [{{ name: "{self.given}" data_type: TYPE_{self.given_type} dims: [1] }}]',
            f'output [{{ name: "{self.gives}" data_type: TYPE_FP32 dims: [1] }}]',
            "instance_group [{ kind: KIND_CPU count: 1 }]",
            *(
                f'parameters {{ key: "{key}" value: {{ string_value: "{value}" }} }}'
                for key, value in parameters.items()
            ),
        ]
        (folder.parent / "config.pbtxt").write_text("\n".join(lines))
