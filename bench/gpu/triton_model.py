"""Triton's model of the measurements on a GPU, for its Python backend: model.py of a version, beside worker.py."""

import json
import sys
from pathlib import Path
from typing import Any

import torch
import triton_python_backend_utils as pb_utils  # type: ignore[import-not-found]  # pyright: ignore[reportMissingImports]  # lives in the server


class TritonPythonModel:
    """The attention model, captured for each number of rows that the configuration names."""

    def initialize(self, args: dict[str, str]) -> None:
        """Make the model on the GPU of the instance."""
        sys.path.insert(0, str(Path(args["model_repository"]) / args["model_version"]))
        from worker import AttentionModel, CapturedModel

        torch.cuda.set_device(int(args["model_instance_device_id"]))
        model = AttentionModel().cuda().eval()
        rows = json.loads(args["model_config"])["parameters"]["rows"]["string_value"]
        self._captured = {int(count): CapturedModel(model, int(count)) for count in rows.split(",")}

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer each request, in order. NumPy is avoided: its second version breaks as_numpy() of old servers."""
        return [self._answer_request(request) for request in requests]

    def _answer_request(self, request: Any) -> Any:
        history, target = (
            torch.from_dlpack(pb_utils.get_input_tensor_by_name(request, name).to_dlpack())
            for name in ("history", "target")
        )
        scores = self._captured[history.shape[0]].compute_scores(history, target).clone()
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor.from_dlpack("scores", torch.utils.dlpack.to_dlpack(scores))]
        )
