"""The Open Inference Protocol over REST with Triton's binary tensors: arrays to a body, a body to arrays."""

import json
import struct
from collections.abc import Mapping, Sequence
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


def encode(arrays: Arrays, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> tuple[bytes, int]:
    """Return the body of a request for `outputs`, and how much of it is JSON."""
    pieces = [_bytes_of(arrays[spec.name], spec.dtype) for spec in inputs]
    head = json.dumps(
        {
            "inputs": [
                {
                    "name": spec.name,
                    "datatype": spec.dtype,
                    "shape": list(arrays[spec.name].shape),
                    "parameters": {"binary_data_size": len(piece)},
                }
                for spec, piece in zip(inputs, pieces, strict=True)
            ],
            "outputs": [{"name": spec.name, "parameters": {"binary_data": True}} for spec in outputs],
        }
    ).encode()
    return b"".join((head, *pieces)), len(head)


def decode(body: bytes, json_length: int) -> Arrays:
    """Return the output tensors in the body of a response.

    Raises:
        ValueError: the body is not what the protocol says, or a tensor in it was not asked for as binary.
    """
    head = json.loads(body[:json_length])
    found: dict[str, Array] = {}
    place = json_length
    for output in head["outputs"]:
        size = (output.get("parameters") or {}).get("binary_data_size")
        if size is None:
            raise ValueError(f"output {output['name']} came as JSON although binary was asked for")
        piece = body[place : place + size]
        place += size
        found[output["name"]] = _array_of(piece, output["datatype"], output["shape"])
    return found


def _bytes_of(array: Array, dtype: str) -> bytes:
    if dtype != TEXT:
        return np.ascontiguousarray(array, dtype=NUMPY_TYPES[dtype]).tobytes()
    elements = (_encoded(value) for value in array.reshape(-1).tolist())
    return b"".join(part for element in elements for part in (struct.pack("<I", len(element)), element))


def _encoded(value: bytes | str) -> bytes:
    return value if isinstance(value, bytes) else value.encode()


def _array_of(piece: bytes, dtype: str, shape: Sequence[int]) -> Array:
    if dtype != TEXT:
        return np.frombuffer(piece, dtype=NUMPY_TYPES[dtype]).reshape(shape)
    elements: list[bytes] = []
    place = 0
    while place < len(piece):
        (length,) = struct.unpack_from("<I", piece, place)
        elements.append(piece[place + 4 : place + 4 + length])
        place += 4 + length
    return np.array(elements, dtype=object).reshape(shape)
