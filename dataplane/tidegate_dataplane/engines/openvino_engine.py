"""Run a network that OpenVINO compiled for one shape; imported only where the package is installed."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import openvino  # type: ignore[import-not-found,import-untyped,unused-ignore]  # publishes no types

from tidegate_dataplane.batching.arrays import Array

_PRECISIONS = {"FP32": "f32", "BF16": "bf16"}


def make_properties(precision: str, threads: int) -> dict[str, Any]:
    """Return OpenVINO's properties for one request at a time, on this many threads, in FP32 or BF16."""
    return {
        "NUM_STREAMS": 1,
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": _PRECISIONS[precision],
        # Pinned threads of several processes would share a core.
        "ENABLE_CPU_PINNING": False,
    }


class OpenVinoNetwork:
    """A compiled network that reads and writes arrays of its own.

    OpenVINO copies arrays that are not aligned as its own are: with those of NumPy, 16 rows of attention took twice as long.
    """

    def __init__(self, compiled: Any, inputs: Collection[str], outputs: Sequence[str]) -> None:
        """`inputs` has the names that the network may read."""
        self._request = compiled.create_infer_request()
        self.inputs: Mapping[str, Array] = {
            next(name for name in port.names if name in inputs): self._request.get_tensor(port).data
            for port in compiled.inputs
        }
        self._outputs: list[Array] = [
            self._request.get_tensor(compiled.output(name)).data for name in outputs
        ]

    def compute_outputs(self) -> list[Array]:
        """Return the outputs, in the order of their names, for what the arrays in `inputs` have."""
        self._request.infer(share_outputs=True)
        return [output.copy() for output in self._outputs]


def load_network(
    blob: bytes, inputs: Collection[str], outputs: Sequence[str], *, precision: str, threads: int
) -> OpenVinoNetwork:
    """Return a network of an exported graph; OpenVINO raises RuntimeError if it is of another version."""
    compiled = openvino.Core().import_model(blob, "CPU", make_properties(precision, threads))
    return OpenVinoNetwork(compiled, inputs, outputs)


def export_network(graph: bytes, precision: str) -> bytes:
    """Return what `load_network` reads of an ONNX graph of fixed shapes.

    OpenVINO raises RuntimeError for what it does not support.
    """
    core = openvino.Core()
    exported: Any = core.compile_model(
        core.read_model(graph), "CPU", make_properties(precision, 1)
    ).export_model()
    return exported if isinstance(exported, bytes) else bytes(exported.getvalue())
