"""Encode and parse the messages between runner and agent on the pod's socket.

The runner sends frames: two lengths of four bytes, big-endian, then a header in JSON, then the tensors' bytes.
Its first frame is a Hello, and its last one a Goodbye; without a Goodbye its process ended without an unload.
The agent sends lines of JSON: the share to sample, and how many records of this connection it has processed.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

SOCKET = "samples.sock"
LENGTHS = struct.Struct(">II")
ELEMENT = struct.Struct("<I")
MAX_HEADER_BYTES = 64 << 10
MAX_BODY_BYTES = 512 << 10
"""The limit for the tensors of one record, a row or a small batch. More would block the agent's event loop, because
json.dumps holds the GIL: 4 MiB of FP32 take 0.67 s."""


class Dropped(StrEnum):
    """Why a sampled request is not in the log."""

    BUFFER_FULL = "BufferFull"
    SINK_DOWN = "SinkDown"
    TOO_LARGE = "TooLarge"
    UNCONFIRMED = "Unconfirmed"
    AGENT_ENDED = "AgentEnded"
    NOT_WANTED = "NotWanted"


@dataclass(frozen=True, slots=True)
class Tensor:
    """One input or output; `data` is its memory in C order, and each string follows its length, little-endian."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes


@dataclass(frozen=True, slots=True)
class Record:
    """One answered request; `time_s` is the time of the answer, and `own_id` is False if we generated the id."""

    id: str
    own_id: bool
    model: str
    version: str
    time_s: float
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class Losses:
    """The number of sampled requests that the runner has dropped since its last report, by reason."""

    counts: Mapping[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, slots=True)
class Hello:
    """The first frame of a connection: the version that the runner runs, and its server.

    `server` identifies the server's process.
    `memory_kills` is the number of processes that the kernel has killed at the container's memory limit.
    `instances` is the number of the version's processes in the server; each sends its own Hello.
    """

    model: str
    version: int
    server: str
    memory_kills: int
    instances: int = 1


@dataclass(frozen=True, slots=True)
class Goodbye:
    """The last frame of a runner that was unloaded."""


@dataclass(frozen=True, slots=True)
class Told:
    """A line of the agent: the share to sample, and the number of records that it has processed."""

    share: float
    done: int


def record_frame(record: Record) -> bytes | None:
    """Return the frame of a record, None if the record is too large."""
    tensors = (*record.inputs, *record.outputs)
    if sum(len(tensor.data) for tensor in tensors) > MAX_BODY_BYTES:
        return None
    body = b"".join(tensor.data for tensor in tensors)
    header = {
        "id": record.id,
        "own": record.own_id,
        "model": record.model,
        "version": record.version,
        "time": record.time_s,
        "inputs": [_described(tensor) for tensor in record.inputs],
        "outputs": [_described(tensor) for tensor in record.outputs],
    }
    return _frame(header, body)


def losses_frame(losses: Losses) -> bytes:
    """Return the frame that reports dropped requests."""
    return _small_frame({"dropped": dict(losses.counts)})


def hello_frame(hello: Hello) -> bytes:
    """Return the frame that a connection begins with."""
    return _small_frame({"hello": asdict(hello)})


def goodbye_frame() -> bytes:
    """Return the frame that a connection ends with."""
    return _small_frame({"goodbye": True})


def parse_frame(header: bytes, body: bytes) -> Record | Losses | Hello | Goodbye:
    """Return the message in a frame.

    Raises:
        ValueError: the frame is malformed or of an unknown type.
    """
    try:
        document: dict[str, Any] = json.loads(header)
        if "dropped" in document:
            return Losses({Dropped(name).value: int(count) for name, count in document["dropped"].items()})
        if "hello" in document:
            return _hello(document["hello"])
        if "goodbye" in document:
            return Goodbye()
        inputs, rest = _tensors(document["inputs"], memoryview(body))
        outputs, rest = _tensors(document["outputs"], rest)
        return Record(
            id=str(document["id"]),
            own_id=bool(document["own"]),
            model=str(document["model"]),
            version=str(document["version"]),
            time_s=float(document["time"]),
            inputs=inputs,
            outputs=outputs,
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a frame: {error!r}") from error


def told_line(told: Told) -> bytes:
    """Return the agent's line."""
    return json.dumps({"share": told.share, "done": told.done}).encode() + b"\n"


def parse_line(line: bytes) -> Told:
    """Return the message in a line of the agent.

    Raises:
        ValueError: the line is malformed.
    """
    try:
        document = json.loads(line)
        return Told(float(document["share"]), int(document["done"]))
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a line of the agent: {error!r}") from error


def texts_as_bytes(texts: Sequence[str | bytes]) -> bytes:
    """Return strings as a tensor's data."""
    pieces: list[bytes] = []
    for text in texts:
        content = text.encode(errors="surrogatepass") if isinstance(text, str) else bytes(text)
        pieces += (ELEMENT.pack(len(content)), content)
    return b"".join(pieces)


def _frame(header: Mapping[str, Any], body: bytes) -> bytes | None:
    text = json.dumps(header).encode()
    if len(text) > MAX_HEADER_BYTES:
        return None
    return LENGTHS.pack(len(text), len(body)) + text + body


def _small_frame(header: Mapping[str, Any]) -> bytes:
    frame = _frame(header, b"")
    assert frame is not None  # noqa: S101 - a few small fields
    return frame


def _hello(document: Mapping[str, Any]) -> Hello:
    return Hello(
        str(document["model"]),
        int(document["version"]),
        str(document["server"]),
        int(document["memory_kills"]),
        # A runner of an older image does not send it; it lives on when its agent restarts.
        int(document.get("instances", 1)),
    )


def _described(tensor: Tensor) -> list[Any]:
    return [tensor.name, tensor.datatype, list(tensor.shape), len(tensor.data)]


def _tensors(described: Sequence[Sequence[Any]], body: memoryview) -> tuple[tuple[Tensor, ...], memoryview]:
    tensors: list[Tensor] = []
    for name, datatype, shape, length in described:
        if not 0 <= int(length) <= len(body):
            raise ValueError(f"tensor {name} has {length} bytes by its header, and {len(body)} bytes remain")
        data, body = bytes(body[:length]), body[length:]
        tensors.append(Tensor(str(name), str(datatype), tuple(int(size) for size in shape), data))
    return tuple(tensors), body
