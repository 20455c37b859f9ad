"""Properties of each artefact format: its file, the Triton backend that runs it, and whether it contains code."""

from collections.abc import Mapping
from dataclasses import dataclass

from tidegate_dataplane.contract import ModelFormat

MODEL_FILES: Mapping[ModelFormat, str] = {
    ModelFormat.ONNX: "model.onnx",
    ModelFormat.TORCH_EXPORT: "model.pt2",
    ModelFormat.TENSORRT: "model.plan",
    ModelFormat.PYTHON: "model.py",
}

SERVED_GRAPH = "served.onnx"
"""The graph of an ONNX version that the server loads: the published one, or the one that was compiled from it."""

UNKNOWN_GRAPH = "?"
"""Recorded instead of a sha256 while the served graph of a version is replaced."""


@dataclass(frozen=True, slots=True)
class NativeBackend:
    """A backend of Triton, and Triton's name for the pair of backend and format."""

    backend: str
    platform: str


NATIVE_BACKENDS: Mapping[ModelFormat, NativeBackend] = {
    ModelFormat.ONNX: NativeBackend("onnxruntime", "onnxruntime_onnx"),
    ModelFormat.TORCH_EXPORT: NativeBackend("pytorch", "torch_aoti"),
    ModelFormat.TENSORRT: NativeBackend("tensorrt", "tensorrt_plan"),
}

COMPILED_FORMATS = frozenset({ModelFormat.TORCH_EXPORT, ModelFormat.TENSORRT})
"""Formats compiled ahead of time, whose signature cannot be read without the compiler's libraries."""

CODE_FORMATS = frozenset({ModelFormat.PYTHON, ModelFormat.TORCH_EXPORT})
"""Formats whose artefacts contain code: Python, or the shared library that torch.export compiles to."""
