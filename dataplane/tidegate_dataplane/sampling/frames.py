"""What runner and agent say to each other over the pod's socket.

The runner says first who it is, and at last that it goes; without that last word its process has ended by itself.
The runner sends frames: two lengths of four bytes, big-endian, then a header in JSON, then the tensors' bytes.
The agent sends lines of JSON: the share to sample, and how many records of this connection it has dealt with.
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
"""Of one record's tensors, a row or a small batch. To make JSON of more stalls the agent's event loop, since json.dumps
keeps the GIL: 4 MiB of FP32 take 0.67 s."""


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
    """One input or output: `data` is its memory in C order; strings each follow their length, little-endian."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes


@dataclass(frozen=True, slots=True)
class Record:
    """One answered request. `time_s` is when the answer was made; `own_id` is False where we made the id up."""

    id: str
    own_id: bool
    model: str
    version: str
    time_s: float
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class Losses:
    """How many sampled requests the runner has dropped since it last said so, by reason."""

    counts: Mapping[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, slots=True)
class Hello:
    """The first frame of a connection: which version the runner runs, in which server.

    `server` is the same for as long as the server's process is.
    `memory_kills` is how many processes of the container the kernel has ended at its memory limit so far.
    `instances` is how many such processes the server runs of the version; each says its own Hello.
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
    """A line of the agent."""

    share: float
    done: int


def record_frame(record: Record) -> bytes | None:
    """Return the frame of a record, None when it is too large for one."""
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
    """Return the frame that tells what was dropped."""
    return _small_frame({"dropped": dict(losses.counts)})


def hello_frame(hello: Hello) -> bytes:
    """Return the frame that a connection begins with."""
    return _small_frame({"hello": asdict(hello)})


def goodbye_frame() -> bytes:
    """Return the frame that a connection ends with."""
    return _small_frame({"goodbye": True})


def parse_frame(header: bytes, body: bytes) -> Record | Losses | Hello | Goodbye:
    """Return what a frame says.

    Raises:
        ValueError: it says nothing that we know.
    """
    try:
        said: dict[str, Any] = json.loads(header)
        if "dropped" in said:
            return Losses({Dropped(name).value: int(count) for name, count in said["dropped"].items()})
        if "hello" in said:
            return _hello(said["hello"])
        if "goodbye" in said:
            return Goodbye()
        inputs, rest = _tensors(said["inputs"], memoryview(body))
        outputs, rest = _tensors(said["outputs"], rest)
        return Record(
            id=str(said["id"]),
            own_id=bool(said["own"]),
            model=str(said["model"]),
            version=str(said["version"]),
            time_s=float(said["time"]),
            inputs=inputs,
            outputs=outputs,
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a frame: {error!r}") from error


def told_line(told: Told) -> bytes:
    """Return the agent's line."""
    return json.dumps({"share": told.share, "done": told.done}).encode() + b"\n"


def parse_line(line: bytes) -> Told:
    """Return what the agent's line says.

    Raises:
        ValueError: it is not one.
    """
    try:
        said = json.loads(line)
        return Told(float(said["share"]), int(said["done"]))
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a line of the agent: {error!r}") from error


def texts_as_bytes(texts: Sequence[str | bytes]) -> bytes:
    """Return strings as a tensor's data."""
    parts: list[bytes] = []
    for text in texts:
        content = text.encode(errors="surrogatepass") if isinstance(text, str) else bytes(text)
        parts += (ELEMENT.pack(len(content)), content)
    return b"".join(parts)


def _frame(header: Mapping[str, Any], body: bytes) -> bytes | None:
    text = json.dumps(header).encode()
    if len(text) > MAX_HEADER_BYTES:
        return None
    return LENGTHS.pack(len(text), len(body)) + text + body


def _small_frame(header: Mapping[str, Any]) -> bytes:
    frame = _frame(header, b"")
    assert frame is not None  # noqa: S101 - a handful of words
    return frame


def _hello(said: Mapping[str, Any]) -> Hello:
    return Hello(
        str(said["model"]),
        int(said["version"]),
        str(said["server"]),
        int(said["memory_kills"]),
        # A runner of an older image, which lives on while its agent is started anew, does not say it.
        int(said.get("instances", 1)),
    )


def _described(tensor: Tensor) -> list[Any]:
    return [tensor.name, tensor.datatype, list(tensor.shape), len(tensor.data)]


def _tensors(described: Sequence[Sequence[Any]], body: memoryview) -> tuple[tuple[Tensor, ...], memoryview]:
    found: list[Tensor] = []
    for name, datatype, shape, length in described:
        if not 0 <= int(length) <= len(body):
            raise ValueError(f"tensor {name} is said to have {length} bytes, and {len(body)} are left")
        data, body = bytes(body[:length]), body[length:]
        found.append(Tensor(str(name), str(datatype), tuple(int(size) for size in shape), data))
    return tuple(found), body
