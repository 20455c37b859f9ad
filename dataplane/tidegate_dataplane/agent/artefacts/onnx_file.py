"""Inputs, outputs and external data files of an ONNX model, read without loading its weights.

The file is walked as a protobuf stream over a memory map and tensors are skipped, so that a model of
two gigabytes costs the agent no memory and a truncated one is detected.
Field numbers are those of onnx.proto.
"""

import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tidegate_dataplane.agent.artefacts.paths import check_data_file
from tidegate_dataplane.agent.refusals import ArtefactError
from tidegate_dataplane.contract import FailureReason, TensorSpec

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
MAX_SUBGRAPH_DEPTH = 64

# TensorProto.DataType → the inference protocol's name.
DTYPES: Mapping[int, str] = {
    1: "FP32",
    2: "UINT8",
    3: "INT8",
    4: "UINT16",
    5: "INT16",
    6: "INT32",
    7: "INT64",
    8: "BYTES",
    9: "BOOL",
    10: "FP16",
    11: "FP64",
    12: "UINT32",
    13: "UINT64",
    16: "BF16",
}


@dataclass(frozen=True, slots=True)
class OnnxTensor:
    """One graph input or output; `symbols` has the name of each free dimension, None for one without a name."""

    spec: TensorSpec
    symbols: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class OnnxFacts:
    """Signature and external data; `external` maps a data file to the number of bytes that the graph reads."""

    inputs: tuple[OnnxTensor, ...]
    outputs: tuple[OnnxTensor, ...]
    external: Mapping[str, int]


@dataclass(slots=True)
class _ModelSummary:
    """Results of the walk so far."""

    inputs: list[OnnxTensor] = field(default_factory=list[OnnxTensor])
    outputs: list[OnnxTensor] = field(default_factory=list[OnnxTensor])
    initializers: set[str] = field(default_factory=set[str])
    external: dict[str, int] = field(default_factory=dict[str, int])
    graphs: int = 0
    opsets: int = 0


def read_onnx(path: Path) -> OnnxFacts:
    """Read the signature of the model at `path`; external data files are listed and not opened.

    Raises:
        ArtefactError: ArtefactInvalid with the problem and, where there is one, the way out.
    """
    with path.open("rb") as file:
        size = path.stat().st_size
        if size == 0:
            raise _invalid_model(f"{path.name} is empty")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _make_facts(_walk_model(_ProtoMessage(data, 0, size)), path.name)


def _make_facts(summary: _ModelSummary, name: str) -> OnnxFacts:
    if not summary.graphs or not summary.opsets:
        missing = "graph" if not summary.graphs else "opset"
        raise _invalid_model(f"{name} has no {missing}: it is not an ONNX model, or it was cut short")
    inputs = tuple(tensor for tensor in summary.inputs if tensor.spec.name not in summary.initializers)
    if not summary.outputs:
        raise _invalid_model(f"{name} has no outputs, so there is nothing to serve")
    return OnnxFacts(inputs, tuple(summary.outputs), dict(sorted(summary.external.items())))


def _invalid_model(message: str) -> ArtefactError:
    return ArtefactError(FailureReason.ARTEFACT_INVALID, message)


@dataclass(frozen=True, slots=True)
class _ProtoMessage:
    """A message inside the file, from byte `start` to byte `end`."""

    data: mmap.mmap
    start: int
    end: int

    def iterate_fields(self) -> Iterator[tuple[int, "int | _ProtoMessage"]]:
        """Yield field numbers with integers (varint) or messages (length-delimited); fixed widths are skipped."""
        position = self.start
        while position < self.end:
            key, position = self._read_varint(position)
            number, wire_type = key >> 3, key & 7
            if number == 0:
                raise _invalid_model(
                    f"byte {position} is not ONNX: check that the URI names an ONNX file, not a web page"
                )
            if wire_type == VARINT:
                value, position = self._read_varint(position)
                yield number, value
            elif wire_type == LENGTH:
                length, position = self._read_varint(position)
                self._require_bytes(position, length)
                yield number, _ProtoMessage(self.data, position, position + length)
                position += length
            elif wire_type in (FIXED32, FIXED64):
                width = 4 if wire_type == FIXED32 else 8
                self._require_bytes(position, width)
                position += width
            else:
                raise _invalid_model(
                    f"byte {position} is not ONNX (wire type {wire_type}): check what the URI names"
                )

    def decode_text(self) -> str:
        """Return the bytes as UTF-8."""
        return self.data[self.start : self.end].decode(errors="replace")

    def _require_bytes(self, position: int, length: int) -> None:
        if position + length > self.end:
            raise _invalid_model(
                f"the ONNX file is truncated: at byte {position} it announces {length} more bytes, "
                f"{self.end - position} are left; publish it again"
            )

    def _read_varint(self, position: int) -> tuple[int, int]:
        value = shift = 0
        while True:
            self._require_bytes(position, 1)
            byte = self.data[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, position
            shift += 7
            if shift > 63:
                raise _invalid_model(
                    f"byte {position} is not ONNX (endless number): check what the URI names"
                )


def _iterate_messages(message: _ProtoMessage, *numbers: int) -> Iterator[tuple[int, _ProtoMessage]]:
    for number, value in message.iterate_fields():
        if number in numbers and isinstance(value, _ProtoMessage):
            yield number, value


def _walk_model(model: _ProtoMessage) -> _ModelSummary:
    summary = _ModelSummary()
    for number, part in _iterate_messages(model, 7, 8, 20, 25):
        if number == 7:
            summary.graphs += 1
            _walk_graph(part, summary, depth=0)
        elif number == 8:
            summary.opsets += 1
        elif number == 20:  # TrainingInfoProto: initialization, algorithm
            for _, graph in _iterate_messages(part, 1, 2):
                _walk_graph(graph, summary, depth=1)
        else:  # FunctionProto
            for _, node in _iterate_messages(part, 7):
                _walk_node(node, summary, depth=1)
    return summary


def _walk_graph(graph: _ProtoMessage, summary: _ModelSummary, *, depth: int) -> None:
    if depth > MAX_SUBGRAPH_DEPTH:
        raise _invalid_model(f"the model nests more than {MAX_SUBGRAPH_DEPTH} graphs")
    for number, part in _iterate_messages(graph, 1, 5, 11, 12, 15):
        if number == 1:
            _walk_node(part, summary, depth=depth)
        elif number == 5:
            name = _walk_tensor(part, summary)
            if depth == 0:
                summary.initializers.add(name)
        elif number == 15:
            _walk_sparse(part, summary, depth=depth)
        elif depth == 0 and number == 11:
            summary.inputs.append(_read_tensor(part, "input"))
        elif depth == 0:
            summary.outputs.append(_read_tensor(part, "output"))


def _walk_sparse(sparse: _ProtoMessage, summary: _ModelSummary, *, depth: int) -> None:
    for _, tensor in _iterate_messages(sparse, 1, 2):
        name = _walk_tensor(tensor, summary)
        if depth == 0:
            summary.initializers.add(name)


def _walk_node(node: _ProtoMessage, summary: _ModelSummary, *, depth: int) -> None:
    for _, attribute in _iterate_messages(node, 5):
        for number, value in _iterate_messages(attribute, 5, 6, 10, 11, 22, 23):
            if number in (5, 10):
                _walk_tensor(value, summary)
            elif number in (6, 11):
                _walk_graph(value, summary, depth=depth + 1)
            else:
                _walk_sparse(value, summary, depth=depth + 1)


def _walk_tensor(tensor: _ProtoMessage, summary: _ModelSummary) -> str:
    """Record the tensor's external data, if it has any, and return its name."""
    name, external, entries = "", False, dict[str, str]()
    for number, value in tensor.iterate_fields():
        if number == 8 and isinstance(value, _ProtoMessage):
            name = value.decode_text()
        elif number == 14:
            external = value == 1
        elif number == 13 and isinstance(value, _ProtoMessage):
            pair = {key: part.decode_text() for key, part in _iterate_messages(value, 1, 2)}
            entries[pair.get(1, "")] = pair.get(2, "")
    if external:
        _note_external(name, entries, summary)
    return name


def _note_external(name: str, entries: Mapping[str, str], summary: _ModelSummary) -> None:
    location = entries.get("location", "")
    if not location:
        raise _invalid_model(f"tensor {name!r} is stored outside the file but names no location")
    path = check_data_file(location)
    try:
        offset, length = int(entries.get("offset") or 0), int(entries.get("length") or 0)
    except ValueError:
        raise _invalid_model(f"tensor {name!r} has an offset or length that is not a number") from None
    if offset < 0 or length < 0:
        raise _invalid_model(f"tensor {name!r} has a negative offset or length")
    summary.external[path] = max(summary.external.get(path, 0), offset + length)


def _read_tensor(value_info: _ProtoMessage, role: str) -> OnnxTensor:
    name, kind = "", None
    for number, part in _iterate_messages(value_info, 1, 2):
        if number == 1:
            name = part.decode_text()
        else:
            kind = part
    tensor = next((part for _, part in _iterate_messages(kind, 1)), None) if kind else None
    if tensor is None:
        raise _invalid_model(
            f"{role} {name!r} is not a tensor, and only tensors can be served "
            "(scikit-learn models: export with zipmap=False)"
        )
    element, dims = 0, None
    for number, value in tensor.iterate_fields():
        if number == 1 and isinstance(value, int):
            element = value
        elif number == 2 and isinstance(value, _ProtoMessage):
            dims = [_read_dimension(dim, role, name) for _, dim in _iterate_messages(value, 1)]
    if element not in DTYPES:
        raise _invalid_model(f"{role} {name!r} has element type {element}, which Triton cannot serve")
    if dims is None:
        raise _invalid_model(
            f"{role} {name!r} has no shape; run onnx.shape_inference.infer_shapes before publishing"
        )
    spec = TensorSpec(name=name, dtype=DTYPES[element], shape=tuple(size for size, _ in dims))
    return OnnxTensor(spec, tuple(symbol for _, symbol in dims))


def _read_dimension(dim: _ProtoMessage, role: str, name: str) -> tuple[int, str | None]:
    """Return (size, symbol); a free dimension is -1."""
    for number, value in dim.iterate_fields():
        if number == 2 and isinstance(value, _ProtoMessage):
            return -1, value.decode_text() or None
        if number == 1 and isinstance(value, int):
            size = value - (1 << 64) if value >= 1 << 63 else value
            if size == 0:
                raise _invalid_model(f"{role} {name!r} has a dimension of size 0")
            return max(size, -1), None
    return -1, None
