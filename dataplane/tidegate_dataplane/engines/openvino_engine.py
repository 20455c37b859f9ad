"""Run a graph that OpenVINO compiled for one shape; imported only where the package is installed."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import openvino  # type: ignore[import-not-found,import-untyped,unused-ignore]  # publishes no types

from tidegate_dataplane.engines.bucket_shapes import Array

_PRECISIONS = {"FP32": "f32", "BF16": "bf16"}


def make_properties(precision: str, threads: int) -> dict[str, Any]:
    """Return OpenVINO's properties for one request at a time, on so many threads, in FP32 or BF16."""
    return {
        "NUM_STREAMS": 1,
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": _PRECISIONS[precision],
        # Pinned threads of several processes would share a core.
        "ENABLE_CPU_PINNING": False,
    }


class OpenVinoEngine:
    """A compiled graph; it takes requests of exactly one shape."""

    def __init__(self, compiled: Any, outputs: Sequence[str]) -> None:
        self._request = compiled.create_infer_request()
        self._outputs = [compiled.output(name) for name in outputs]

    @classmethod
    def load_blob(
        cls, blob: bytes, outputs: Sequence[str], *, precision: str, threads: int
    ) -> "OpenVinoEngine":
        """Return the engine of an exported graph; OpenVINO raises RuntimeError if it is of another version."""
        compiled = openvino.Core().import_model(blob, "CPU", make_properties(precision, threads))
        return cls(compiled, outputs)

    def run_request(self, inputs: Mapping[str, Array]) -> list[Array]:
        """Return the outputs in the model's order; the shapes of the inputs are those that it was compiled for."""
        results = self._request.infer(dict(inputs), share_inputs=True)
        return [np.asarray(results[output]) for output in self._outputs]


def compile_graph(graph: bytes, precision: str) -> tuple[Any, bytes]:
    """Compile an ONNX graph of fixed shapes for one thread; return it, and the same for `load_blob`.

    OpenVINO raises RuntimeError for what it does not support.
    """
    core = openvino.Core()
    compiled = core.compile_model(core.read_model(graph), "CPU", make_properties(precision, 1))
    exported: Any = compiled.export_model()
    return compiled, exported if isinstance(exported, bytes) else exported.getvalue()
