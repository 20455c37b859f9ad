"""A client of models that answer with one score per row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import np_to_triton_dtype

from builders.waiting import LIMIT_S
from tidegate_localcluster.demo.scoring import ScoredAnswer


class ScoringClient:
    """One gRPC connection to a server that has the model."""

    def __init__(self, address: str, model: str, headers: Mapping[str, str] | None = None) -> None:
        self._client = triton.InferenceServerClient(address)
        self._model = model
        self._headers = dict(headers or {})

    def score(self, inputs: Mapping[str, Any]) -> ScoredAnswer:
        """Return scores float32 [rows]. Raises InferenceServerException."""
        tensors = []
        for name, array in inputs.items():
            tensor = triton.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
            tensor.set_data_from_numpy(array)
            tensors.append(tensor)
        result: Any = self._client.infer(self._model, tensors, headers=self._headers, client_timeout=LIMIT_S)
        return ScoredAnswer(
            np.asarray(result.as_numpy("score")).ravel(), str(result.get_response().model_version)
        )

    def close(self) -> None:
        """End the connection."""
        self._client.close()
