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


@dataclass(frozen=True, slots=True)
class Native:
    """A backend of Triton, and Triton's name for the pair of backend and format."""

    backend: str
    platform: str


NATIVE: Mapping[ModelFormat, Native] = {
    ModelFormat.ONNX: Native("onnxruntime", "onnxruntime_onnx"),
    ModelFormat.TORCH_EXPORT: Native("pytorch", "torch_aoti"),
    ModelFormat.TENSORRT: Native("tensorrt", "tensorrt_plan"),
}

COMPILED = frozenset({ModelFormat.TORCH_EXPORT, ModelFormat.TENSORRT})
"""Formats compiled ahead of time, whose signature cannot be read without the compiler's libraries."""

BRINGS_CODE = frozenset({ModelFormat.PYTHON, ModelFormat.TORCH_EXPORT})
"""Formats whose artefacts contain code: Python, or the shared library that torch.export compiles to."""
