"""Read a model with its weights into the compiler's process, or say why it is not compiled."""

import resource
from pathlib import Path
from typing import Final

import onnx

from tidegate_dataplane.agent.artefacts.onnx_file import read_onnx
from tidegate_dataplane.agent.refusals import ArtefactError

BASE_BYTES: Final = 200 << 20
SIZE_FACTOR: Final = 4
MAX_MODEL_BYTES: Final = 2**31 - 2**20
"""Above this, protobuf cannot hold a graph with its weights inside."""


class ModelNotCompiledError(Exception):
    """Why a model is not compiled, and the way out."""


def read_model(source: Path) -> onnx.ModelProto:
    """Return a model with its external data inside; raise ModelNotCompiledError if it cannot be compiled here."""
    try:
        size = source.stat().st_size + sum(read_onnx(source).external.values())
    except (ArtefactError, OSError) as error:
        raise ModelNotCompiledError(f"the model cannot be read: {error}; remove spec.compile") from error
    if size > MAX_MODEL_BYTES:
        raise ModelNotCompiledError(
            f"the graph has {size / 2**30:.1f} GiB with its weights, and none of more than {MAX_MODEL_BYTES / 2**30:.0f} GiB is compiled: "
            "remove spec.compile"
        )
    if count_needed_bytes(size) > resource.getrlimit(resource.RLIMIT_DATA)[0] != resource.RLIM_INFINITY:
        raise explain_memory(size)
    try:
        return onnx.load(source)
    except MemoryError as error:
        raise explain_memory(size) from error
    except Exception as error:  # protobuf and onnx have no common class for what is no model
        raise ModelNotCompiledError(f"the model cannot be read: {error}; remove spec.compile") from error


def count_needed_bytes(size: int) -> int:
    """Return the memory that a model of this size takes at least: the file, two graphs of the passes and two sessions."""
    return BASE_BYTES + SIZE_FACTOR * size


def explain_memory(size: int) -> ModelNotCompiledError:
    """Return the error of a compilation of a graph of this many bytes that ran out of memory."""
    limit = resource.getrlimit(resource.RLIMIT_DATA)[0]
    bound = "its limit" if limit == resource.RLIM_INFINITY else f"the {limit >> 20} MiB that it may take"
    return ModelNotCompiledError(
        f"the compiler needs more memory than {bound}, for a model of {size >> 20} MiB at least {count_needed_bytes(size) >> 20} MiB: "
        "raise spec.compile.memory"
    )
