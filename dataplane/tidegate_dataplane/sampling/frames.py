"""Encode and parse the messages between runner and agent on the pod's socket.

The runner sends frames: two lengths of four bytes, big-endian, then a header in JSON, then the tensors' bytes.
Its first frame is a HelloFrame, which comes again if it changes, and its last one a GoodbyeFrame; without the latter its process ended without an unload.
The agent sends lines of JSON: the share to sample, and how many records of this connection it has processed.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

SOCKET_NAME = "samples.sock"
FRAME_LENGTHS = struct.Struct(">II")
STRING_LENGTH = struct.Struct("<I")
MAX_HEADER_BYTES = 64 << 10
MAX_BODY_BYTES = 512 << 10
"""The limit for the tensors of one record, a row or a small batch. More would block the agent's event loop, because
json.dumps holds the GIL: 4 MiB of FP32 take 0.67 s."""


class DropReason(StrEnum):
    """Why a sampled request is not in the log."""

    BUFFER_FULL = "BufferFull"
    SINK_DOWN = "SinkDown"
    TOO_LARGE = "TooLarge"
    UNCONFIRMED = "Unconfirmed"
    AGENT_ENDED = "AgentEnded"
    NOT_WANTED = "NotWanted"


@dataclass(frozen=True, slots=True)
class SampleTensor:
    """One input or output; `data` is its memory in C order, and each string follows its length, little-endian."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes


@dataclass(frozen=True, slots=True)
class SampleRecord:
    """One answered request; `time_s` is the time of the answer, and `own_id` is False if we generated the id."""

    id: str
    own_id: bool
    model: str
    version: str
    time_s: float
    inputs: tuple[SampleTensor, ...]
    outputs: tuple[SampleTensor, ...]


@dataclass(frozen=True, slots=True)
class SampleLosses:
    """The number of sampled requests that the runner has dropped since its last report, by reason."""

    counts: Mapping[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, slots=True)
class HelloFrame:
    """The first frame of a connection: the version that the runner runs, and its server.

    `server` identifies the server's process.
    `memory_kills` is the number of processes that the kernel has killed at the container's memory limit.
    `instances` is the number of the version's processes in the server; each sends its own Hello.
    `join_limit` is a JoinLimit, empty if the runner checks no joined answers; a change of it is another Hello.
    """

    model: str
    version: int
    server: str
    memory_kills: int
    instances: int = 1
    join_limit: str = ""


@dataclass(frozen=True, slots=True)
class GoodbyeFrame:
    """The last frame of a runner that was unloaded."""


@dataclass(frozen=True, slots=True)
class AgentUpdate:
    """A line of the agent: the share to sample, and the number of records that it has processed."""

    share: float
    done: int


def encode_record(record: SampleRecord) -> bytes | None:
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
        "inputs": [_describe_tensor(tensor) for tensor in record.inputs],
        "outputs": [_describe_tensor(tensor) for tensor in record.outputs],
    }
    return _make_frame(header, body)


def encode_losses(losses: SampleLosses) -> bytes:
    """Return the frame that reports dropped requests."""
    return _make_small_frame({"dropped": dict(losses.counts)})


def encode_hello(hello: HelloFrame) -> bytes:
    """Return the frame that a connection begins with."""
    return _make_small_frame({"hello": asdict(hello)})


def encode_goodbye() -> bytes:
    """Return the frame that a connection ends with."""
    return _make_small_frame({"goodbye": True})


def parse_frame(header: bytes, body: bytes) -> SampleRecord | SampleLosses | HelloFrame | GoodbyeFrame:
    """Return the message in a frame.

    Raises:
        ValueError: the frame is malformed or of an unknown type.
    """
    try:
        document: dict[str, Any] = json.loads(header)
        if "dropped" in document:
            return SampleLosses(
                {DropReason(name).value: int(count) for name, count in document["dropped"].items()}
            )
        if "hello" in document:
            return _parse_hello(document["hello"])
        if "goodbye" in document:
            return GoodbyeFrame()
        inputs, rest = _parse_tensors(document["inputs"], memoryview(body))
        outputs, rest = _parse_tensors(document["outputs"], rest)
        return SampleRecord(
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


def encode_update(update: AgentUpdate) -> bytes:
    """Return the agent's line."""
    return json.dumps({"share": update.share, "done": update.done}).encode() + b"\n"


def parse_update(line: bytes) -> AgentUpdate:
    """Return the message in a line of the agent.

    Raises:
        ValueError: the line is malformed.
    """
    try:
        document = json.loads(line)
        return AgentUpdate(float(document["share"]), int(document["done"]))
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a line of the agent: {error!r}") from error


def encode_texts(texts: Sequence[str | bytes]) -> bytes:
    """Return strings as a tensor's data."""
    pieces: list[bytes] = []
    for text in texts:
        content = text.encode(errors="surrogatepass") if isinstance(text, str) else bytes(text)
        pieces += (STRING_LENGTH.pack(len(content)), content)
    return b"".join(pieces)


def _make_frame(header: Mapping[str, Any], body: bytes) -> bytes | None:
    text = json.dumps(header).encode()
    if len(text) > MAX_HEADER_BYTES:
        return None
    return FRAME_LENGTHS.pack(len(text), len(body)) + text + body


def _make_small_frame(header: Mapping[str, Any]) -> bytes:
    frame = _make_frame(header, b"")
    assert frame is not None  # noqa: S101 - a few small fields
    return frame


def _parse_hello(document: Mapping[str, Any]) -> HelloFrame:
    return HelloFrame(
        str(document["model"]),
        int(document["version"]),
        str(document["server"]),
        int(document["memory_kills"]),
        # A runner of an older image does not send these; it lives on when its agent restarts.
        int(document.get("instances", 1)),
        str(document.get("join_limit", "")),
    )


def _describe_tensor(tensor: SampleTensor) -> list[Any]:
    return [tensor.name, tensor.datatype, list(tensor.shape), len(tensor.data)]


def _parse_tensors(
    described: Sequence[Sequence[Any]], body: memoryview
) -> tuple[tuple[SampleTensor, ...], memoryview]:
    tensors: list[SampleTensor] = []
    for name, datatype, shape, length in described:
        if not 0 <= int(length) <= len(body):
            raise ValueError(f"tensor {name} has {length} bytes by its header, and {len(body)} bytes remain")
        data, body = bytes(body[:length]), body[length:]
        tensors.append(SampleTensor(str(name), str(datatype), tuple(int(size) for size in shape), data))
    return tuple(tensors), body
