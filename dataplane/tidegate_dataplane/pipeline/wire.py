"""Encode and decode the Open Inference Protocol over REST with Triton's binary tensors."""

import contextlib
import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from tidegate_dataplane.contract import TensorSpec

Array = npt.NDArray[Any]
Arrays = Mapping[str, Array]

LENGTH_HEADER = "Inference-Header-Content-Length"
TEXT = "BYTES"
NUMPY_TYPES: Mapping[str, str] = {
    "BOOL": "?",
    "INT8": "<i1",
    "INT16": "<i2",
    "INT32": "<i4",
    "INT64": "<i8",
    "UINT8": "<u1",
    "UINT16": "<u2",
    "UINT32": "<u4",
    "UINT64": "<u8",
    "FP16": "<f2",
    "FP32": "<f4",
    "FP64": "<f8",
}


@dataclass(frozen=True, slots=True)
class EncodedTensor:
    """An input as every call that takes it sends it: its entry in the JSON document, and its elements in binary."""

    entry: str
    content: memoryview


def encode_tensor(array: Array, spec: TensorSpec) -> EncodedTensor:
    """Encode an input; numbers are not copied if they are contiguous and of the type of `spec`."""
    if spec.dtype == TEXT:
        content = memoryview(_encode_texts(array))
    else:
        numbers = np.ascontiguousarray(array, dtype=NUMPY_TYPES[spec.dtype])
        content = numbers.reshape(-1).view(np.uint8).data
    shape = ", ".join(map(str, array.shape))
    size = f'"parameters": {{"binary_data_size": {len(content)}}}'
    return EncodedTensor(f'{{{_encode_type(spec.name, spec.dtype)}, "shape": [{shape}], {size}}}', content)


def encode_document(tensors: Sequence[EncodedTensor], outputs: Sequence[TensorSpec]) -> bytes:
    """Return the JSON document of a request for `outputs`, which the contents of the tensors follow in order."""
    inputs = ", ".join(tensor.entry for tensor in tensors)
    return f'{{"inputs": [{inputs}], "outputs": {_encode_outputs(tuple(spec.name for spec in outputs))}}}'.encode()


@lru_cache(maxsize=1024)
def _encode_type(name: str, dtype: str) -> str:
    return f'"name": {json.dumps(name)}, "datatype": {json.dumps(dtype)}'


@lru_cache(maxsize=1024)
def _encode_outputs(names: tuple[str, ...]) -> str:
    return json.dumps([{"name": name, "parameters": {"binary_data": True}} for name in names])


def read_error_message(body: bytes | memoryview, limit_chars: int) -> str:
    """Return the error in a response without outputs, empty if it has none: Triton sends JSON, the gateway plain text."""
    text = bytes(body).decode(errors="replace").strip()
    with contextlib.suppress(ValueError, RecursionError):
        document = json.loads(text)
        if isinstance(document, dict) and "error" in document:
            text = str(document["error"])
    return text[:limit_chars]


def decode_response(
    body: bytes | memoryview,
    json_length: int,
    outputs: Sequence[TensorSpec],
    optional_outputs: Sequence[TensorSpec] = (),
) -> Arrays:
    """Return the requested output tensors in the body of a response, which may lack optional ones; numbers are not copied.

    Raises:
        ValueError: the body violates the protocol, lacks a tensor, or has one of another type or shape, or as JSON.
    """
    try:
        specs = {spec.name: spec for spec in (*outputs, *optional_outputs)}
        tensors = _decode_tensors(memoryview(body), json_length, specs)
    except (AttributeError, KeyError, TypeError, RecursionError, struct.error) as error:
        raise ValueError(f"it is not what the protocol says: {type(error).__name__}: {error}") from error
    for spec in outputs:
        if spec.name not in tensors:
            raise ValueError(f"output {spec.name} is missing")
    return tensors


def _decode_tensors(body: memoryview, json_length: int, specs: Mapping[str, TensorSpec]) -> Arrays:
    head = json.loads(str(body[:json_length], "utf-8"))
    tensors: dict[str, Array] = {}
    offset = json_length
    for output in head["outputs"]:
        name, dtype = output["name"], output["datatype"]
        size = (output.get("parameters") or {}).get("binary_data_size")
        piece = body[offset : offset + (size or 0)]
        offset += size or 0
        if name not in specs:
            continue
        if size is None:
            raise ValueError(f"output {name} came as JSON although binary was asked for")
        spec, shape = specs[name], output["shape"]
        if dtype != spec.dtype or not _fits_shape(shape, spec.shape):
            raise ValueError(f"output {name} is {dtype} {shape}, not {spec.dtype} {list(spec.shape)}")
        tensors[name] = _decode_tensor(name, piece, dtype, shape)
    return tensors


def _fits_shape(shape: Sequence[int], expected: Sequence[int]) -> bool:
    """Return whether the dimensions after the rows are as expected; -1 expects any size."""
    return len(shape) == len(expected) and all(
        length in (-1, size) for size, length in zip(shape[1:], expected[1:], strict=True)
    )


def _encode_texts(array: Array) -> bytes:
    elements = (_encode_text(value) for value in array.reshape(-1).tolist())
    return b"".join(piece for element in elements for piece in (struct.pack("<I", len(element)), element))


def _encode_text(value: bytes | str) -> bytes:
    return value if isinstance(value, bytes) else value.encode()


def _decode_tensor(name: str, piece: memoryview, dtype: str, shape: Sequence[int]) -> Array:
    if dtype != TEXT:
        return np.frombuffer(piece, dtype=NUMPY_TYPES[dtype]).reshape(shape)
    if len(piece) == 4 * math.prod(shape) and not np.frombuffer(piece, dtype=np.uint8).any():
        # Only empty texts, each a length of four bytes, as marks usually are: a loop over them takes many times as long.
        return np.full(shape, b"", dtype=object)
    elements: list[bytes] = []
    offset = 0
    while offset < len(piece):
        (length,) = struct.unpack_from("<I", piece, offset)
        elements.append(bytes(piece[offset + 4 : offset + 4 + length]))
        offset += 4 + length
    if offset > len(piece):
        raise ValueError(f"the text of output {name} ends early")
    return np.array(elements, dtype=object).reshape(shape)
