"""Hands a share of the answered requests to the agent, without ever making a request wait.

A request pays for a hash of its id and, if it is in the sample, for a copy of its tensors.
What does not fit into the buffer is dropped and counted; threads of this process do the rest.
"""

import contextlib
import json
import os
import socket
import threading
import time
import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from tidegate_dataplane.sampling.choice import chosen
from tidegate_dataplane.sampling.container import memory_kills, server_identity
from tidegate_dataplane.sampling.frames import (
    ELEMENT,
    MAX_BODY_BYTES,
    SOCKET,
    Dropped,
    Hello,
    Losses,
    Record,
    Tensor,
    goodbye_frame,
    hello_frame,
    losses_frame,
    parse_line,
    record_frame,
    texts_as_bytes,
)

Array = npt.NDArray[Any]

BUFFER_BYTES = 8 << 20
# What Python's own objects take around a record, roughly.
RECORD_BYTES = 1024
TEXT_BYTES = 64
FIRST_WORD_S = 1.0
LOOK_AGAIN_S = 0.5
SAY_LOSSES_S = 1.0
FINISH_S = 2.0
DATATYPES: Mapping[str, str] = {
    "bool": "BOOL",
    "float16": "FP16",
    "float32": "FP32",
    "float64": "FP64",
    **{f"int{bits}": f"INT{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"UINT{bits}" for bits in (8, 16, 32, 64)},
}


def socket_path() -> Path:
    """Return where the agent of this pod listens; tests have another folder."""
    return Path(os.environ.get("TIDEGATE_RUN_DIR", "/run/tidegate")) / SOCKET


@dataclass(frozen=True, slots=True)
class _Copied:
    """A tensor that no longer shares memory with the request; `texts` are immutable, and made bytes later."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes
    texts: tuple[str | bytes, ...] | None = None

    def tensor(self) -> Tensor:
        data = self.data if self.texts is None else texts_as_bytes(self.texts)
        return Tensor(self.name, self.datatype, self.shape, data)


@dataclass(frozen=True, slots=True)
class _Sample:
    id: str
    own_id: bool
    time_s: float
    inputs: tuple[_Copied, ...]
    outputs: tuple[_Copied, ...]
    size: int


class Sampler:
    """The sample log of one loaded version, as far as Triton's process knows it.

    `offer` is for one thread alone, that which answers requests.
    """

    def __init__(
        self, model: str, version: str, *, path: Path, instances: int = 1, most_bytes: int = BUFFER_BYTES
    ) -> None:
        self._model = model
        self._version = version
        self._instances = instances
        self._path = path
        self._most_bytes = most_bytes
        self._queue: SimpleQueue[_Sample | None] = SimpleQueue()
        # One thread writes each of these alone, so nobody waits for a lock.
        self._put_bytes = 0
        self._taken_bytes = 0
        self._refused = Counter[str]({Dropped.BUFFER_FULL: 0, Dropped.TOO_LARGE: 0})
        self._refused_said = Counter[str]()
        self._share = 0.0
        self._losses: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._connected = threading.Condition(self._lock)
        self._socket: socket.socket | None = None
        self._sent = 0
        self._ending = False
        self._told = threading.Event()
        self._reader = threading.Thread(target=self._read, name="samples-in", daemon=True)
        self._writer = threading.Thread(target=self._write, name="samples-out", daemon=True)

    @classmethod
    def of(cls, args: Mapping[str, str]) -> Self:
        """Return that of the model that Triton's Python backend initialises with `args`."""
        groups = json.loads(args["model_config"]).get("instance_group") or [{}]
        instances = sum(int(group.get("count", 1)) * max(1, len(group.get("gpus") or ())) for group in groups)
        return cls(args["model_name"], args["model_version"], path=socket_path(), instances=instances)

    def start(self) -> None:
        """Begin; where an agent listens, its first word is waited for, so that no request comes before it."""
        self._reader.start()
        self._writer.start()
        if self._path.exists():
            self._told.wait(FIRST_WORD_S)

    @property
    def active(self) -> bool:
        """Whether any request is to be sampled."""
        return self._share > 0.0

    def offer(self, request_id: str, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> None:
        """Take a copy of the request and its answer if it is in the sample and there is room; never wait."""
        identity = request_id or uuid.uuid4().hex
        if not chosen(identity, self._share):
            return
        arrays = (*inputs.values(), *outputs.values())
        body = sum(map(_body_bytes, arrays))
        size = RECORD_BYTES + body + TEXT_BYTES * sum(array.size for array in arrays if _is_text(array))
        if body > MAX_BODY_BYTES:
            self._refuse(Dropped.TOO_LARGE)
            return
        if self._put_bytes - self._taken_bytes + size > self._most_bytes:
            self._refuse(Dropped.BUFFER_FULL)
            return
        sample = _Sample(identity, bool(request_id), time.time(), _copied(inputs), _copied(outputs), size)
        self._put_bytes += size
        self._queue.put(sample)

    def _refuse(self, why: Dropped) -> None:
        self._refused[why] += 1
        if self._queue.empty():
            self._queue.put(None)  # the writer may wait for a sample, and has something to say

    def finish(self) -> None:
        """Send what is left, for a moment at most."""
        self._ending = True
        self._queue.put(None)
        self._writer.join(FINISH_S)
        with self._connected:
            self._connected.notify_all()
            if self._socket is not None:
                with contextlib.suppress(OSError):
                    self._socket.settimeout(FINISH_S)
                    if not self._writer.is_alive():  # else it may be in the middle of a frame
                        self._socket.sendall(goodbye_frame())
                    self._socket.shutdown(socket.SHUT_RDWR)

    def _read(self) -> None:
        """Keep a connection, and hear from it what to sample."""
        while not self._ending:
            try:
                connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                try:
                    connection.connect(str(self._path))
                    self._listen(connection)
                finally:
                    connection.close()
            except OSError:
                pass
            time.sleep(LOOK_AGAIN_S)

    def _listen(self, connection: socket.socket) -> None:
        done = 0
        connection.sendall(
            hello_frame(
                Hello(self._model, int(self._version), server_identity(), memory_kills(), self._instances)
            )
        )
        with self._connected:
            self._socket, self._sent = connection, 0
            self._connected.notify_all()
        try:
            with connection.makefile("rb") as lines:
                for line in lines:
                    told = parse_line(line)
                    self._share, done = told.share, told.done
                    self._told.set()
        except (OSError, ValueError):
            pass
        finally:
            with self._connected:
                self._socket = None
                # Who knows what became of them; an agent that ends well says so first.
                self._losses[Dropped.AGENT_ENDED] += max(self._sent - done, 0)

    def _write(self) -> None:
        while True:
            try:
                sample = self._queue.get(timeout=SAY_LOSSES_S if self._unsaid() else None)
            except Empty:
                self._say_losses()
                continue
            if sample is None:
                self._say_losses()
                if self._ending and self._queue.empty():
                    return
                continue
            self._send_sample(sample)
            self._taken_bytes += sample.size
            if self._unsaid():
                self._say_losses()

    def _send_sample(self, sample: _Sample) -> None:
        frame = record_frame(
            Record(
                id=sample.id,
                own_id=sample.own_id,
                model=self._model,
                version=self._version,
                time_s=sample.time_s,
                inputs=tuple(each.tensor() for each in sample.inputs),
                outputs=tuple(each.tensor() for each in sample.outputs),
            )
        )
        if frame is None:
            with self._lock:
                self._losses[Dropped.TOO_LARGE] += 1
            return
        # A frame that was cut off is none: it goes whole over the next connection.
        while not self._sent_over(frame, counts=True):
            if self._ending and not self._path.exists():
                return

    def _unsaid(self) -> bool:
        return self._refused != self._refused_said or any(self._losses.values())

    def _say_losses(self) -> None:
        with self._lock:
            refused, losses = Counter(self._refused), Counter(self._losses)
        counts = losses + (refused - self._refused_said)
        if (
            not counts
            or self._socket is None
            or not self._sent_over(losses_frame(Losses(counts)), counts=False)
        ):
            return
        self._refused_said = refused
        with self._lock:
            self._losses -= losses

    def _sent_over(self, frame: bytes, *, counts: bool) -> bool:
        """Send over the connection there is, waiting for one; False if it broke."""
        with self._connected:
            if self._socket is None:
                self._connected.wait(LOOK_AGAIN_S)
            connection = self._socket
            if connection is None:
                return False
            self._sent += counts
        try:
            connection.sendall(frame)
        except OSError:
            with self._connected:
                if self._socket is not connection:
                    return counts  # the end of the connection has counted it as lost
                self._sent -= counts
            return False
        return True


def _is_text(array: Array) -> bool:
    return array.dtype.kind in "OSU"


def _body_bytes(array: Array) -> int:
    """Return what the tensor takes in a frame; of text at least that, since a character may take four bytes."""
    if not _is_text(array):
        return array.nbytes
    return ELEMENT.size * array.size + sum(map(len, array.reshape(-1).tolist()))


def _copied(tensors: Mapping[str, Array]) -> tuple[_Copied, ...]:
    return tuple(_copy(name, array) for name, array in tensors.items())


def _copy(name: str, array: Array) -> _Copied:
    if _is_text(array):
        return _Copied(name, "BYTES", array.shape, b"", tuple(array.reshape(-1).tolist()))
    return _Copied(name, DATATYPES.get(array.dtype.name, "BYTES"), array.shape, np.asarray(array).tobytes())
