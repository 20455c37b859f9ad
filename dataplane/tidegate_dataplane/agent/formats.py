"""What each format of artefact is: its file, the backend of Triton's own that runs it, and whether it brings code."""

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
    """A backend of Triton's own, and what Triton calls the pair of it and the format."""

    backend: str
    platform: str


NATIVE: Mapping[ModelFormat, Native] = {
    ModelFormat.ONNX: Native("onnxruntime", "onnxruntime_onnx"),
    ModelFormat.TORCH_EXPORT: Native("pytorch", "torch_aoti"),
    ModelFormat.TENSORRT: Native("tensorrt", "tensorrt_plan"),
}

COMPILED = frozenset({ModelFormat.TORCH_EXPORT, ModelFormat.TENSORRT})
"""Compiled ahead of time: what goes in and out cannot be read without the compiler's own libraries."""

BRINGS_CODE = frozenset({ModelFormat.PYTHON, ModelFormat.TORCH_EXPORT})
"""The server runs code out of the artefact: Python, or the shared library that torch.export compiled it to."""
