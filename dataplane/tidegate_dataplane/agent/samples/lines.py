"""A record as a line of JSON, with tensors in the form of the Open Inference Protocol. Pure."""

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tidegate_dataplane.sampling.frames import STRING_LENGTH, SampleRecord, SampleTensor

# The letter of struct for each element type.
LETTERS: Mapping[str, str] = {
    "BOOL": "?",
    "INT8": "b",
    "INT16": "h",
    "INT32": "i",
    "INT64": "q",
    "UINT8": "B",
    "UINT16": "H",
    "UINT32": "I",
    "UINT64": "Q",
    "FP16": "e",
    "FP32": "f",
    "FP64": "d",
}


@dataclass(frozen=True, slots=True)
class SampleOrigin:
    """Fields that all records of a pod have in common."""

    inference: str
    pod: str


def render_line(record: SampleRecord, origin: SampleOrigin) -> bytes:
    """Return the record as one line of JSON with its newline.

    Raises:
        ValueError: the bytes of a tensor do not fit its type.
    """
    document = {
        "id": record.id,
        "ownId": record.own_id,
        "inference": origin.inference,
        "model": record.model,
        "version": record.version,
        "pod": origin.pod,
        "time": datetime.fromtimestamp(record.time_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "inputs": [_render_tensor(tensor) for tensor in record.inputs],
        "outputs": [_render_tensor(tensor) for tensor in record.outputs],
    }
    return json.dumps(document, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def _render_tensor(tensor: SampleTensor) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "datatype": tensor.datatype,
        "shape": list(tensor.shape),
        "data": _decode_values(tensor),
    }


def _decode_values(tensor: SampleTensor) -> Sequence[Any]:
    if tensor.datatype == "BYTES":
        return _decode_texts(tensor.data)
    letter = LETTERS.get(tensor.datatype)
    if letter is None:
        raise ValueError(f"tensor {tensor.name} has the type {tensor.datatype}, which JSON has no form for")
    if len(tensor.data) % struct.calcsize(letter):
        raise ValueError(f"tensor {tensor.name} has {len(tensor.data)} bytes, which are no {tensor.datatype}")
    count = len(tensor.data) // struct.calcsize(letter)
    values = struct.unpack(f"<{count}{letter}", tensor.data)
    if letter in "efd" and not all(map(math.isfinite, values)):
        # JSON has no such numbers; these strings are those of protobuf's JSON.
        return [value if math.isfinite(value) else _name_non_finite(value) for value in values]
    return values


def _name_non_finite(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _decode_texts(data: bytes) -> Sequence[str]:
    texts: list[str] = []
    position = 0
    while position < len(data):
        try:
            (length,) = STRING_LENGTH.unpack_from(data, position)
        except struct.error as error:
            raise ValueError(f"a text tensor is cut off: {error}") from error
        position += STRING_LENGTH.size
        texts.append(data[position : position + length].decode(errors="replace"))
        position += length
    return texts
