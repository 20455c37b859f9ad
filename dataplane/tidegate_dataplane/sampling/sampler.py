"""Send a share of the answered requests to the agent, without making a request wait.

A request costs a hash of its id and, if it is in the sample, a copy of its tensors.
If the buffer is full, samples are dropped and counted; threads of this process send the others.
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
from hashlib import blake2b
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from tidegate_dataplane.runner_interface import count_instances
from tidegate_dataplane.sampling.container import count_memory_kills, read_server_identity
from tidegate_dataplane.sampling.frames import (
    MAX_BODY_BYTES,
    SOCKET_NAME,
    STRING_LENGTH,
    DropReason,
    HelloFrame,
    SampleLosses,
    SampleRecord,
    SampleTensor,
    encode_goodbye,
    encode_hello,
    encode_losses,
    encode_record,
    encode_texts,
    parse_update,
)

Array = npt.NDArray[Any]

BUFFER_BYTES = 8 << 20
# The approximate memory of the Python objects around a record.
RECORD_BYTES = 1024
TEXT_BYTES = 64
# It makes the choice independent of other hashes of the same id.
HASH_PERSON = b"tidegate-sample"
HASH_RANGE = 1 << 64
FIRST_UPDATE_TIMEOUT_S = 1.0
RECONNECT_PAUSE_S = 0.5
LOSS_REPORT_INTERVAL_S = 1.0
FINISH_TIMEOUT_S = 2.0
DATATYPES: Mapping[str, str] = {
    "bool": "BOOL",
    "float16": "FP16",
    "float32": "FP32",
    "float64": "FP64",
    **{f"int{bits}": f"INT{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"UINT{bits}" for bits in (8, 16, 32, 64)},
}


def socket_path() -> Path:
    """Return the path of the agent's socket in this pod; tests use another folder."""
    return Path(os.environ.get("TIDEGATE_RUN_DIR", "/run/tidegate")) / SOCKET_NAME


def is_sampled(request_id: str, share: float) -> bool:
    """Return whether the request is in a sample of `share` (0 to 1), the same on every replica, version and retry.

    A larger sample contains every smaller one.
    """
    digest = blake2b(request_id.encode(errors="surrogatepass"), digest_size=8, person=HASH_PERSON).digest()
    return int.from_bytes(digest, "big") < share * HASH_RANGE


@dataclass(frozen=True, slots=True)
class _CopiedTensor:
    """A copy of a tensor; `texts` are immutable, so they are encoded later."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes
    texts: tuple[str | bytes, ...] | None = None

    def to_tensor(self) -> SampleTensor:
        data = self.data if self.texts is None else encode_texts(self.texts)
        return SampleTensor(self.name, self.datatype, self.shape, data)


@dataclass(frozen=True, slots=True)
class _QueuedSample:
    id: str
    own_id: bool
    time_s: float
    inputs: tuple[_CopiedTensor, ...]
    outputs: tuple[_CopiedTensor, ...]
    size: int


class Sampler:
    """Samples the requests of one loaded version in Triton's process.

    Only the thread that answers requests may call `offer_sample`.
    """

    def __init__(
        self, model: str, version: str, *, path: Path, instances: int = 1, max_bytes: int = BUFFER_BYTES
    ) -> None:
        self._model = model
        self._version = version
        self._instances = instances
        self._path = path
        self._max_bytes = max_bytes
        self._queue: SimpleQueue[_QueuedSample | None] = SimpleQueue()
        # Each of these has one writing thread, so no lock is needed.
        self._queued_bytes = 0
        self._dequeued_bytes = 0
        self._refused = Counter[str]({DropReason.BUFFER_FULL: 0, DropReason.TOO_LARGE: 0})
        self._refused_reported = Counter[str]()
        self._share = 0.0
        self._join_limit = ""
        self._join_limit_sent = ""
        self._losses: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._connected = threading.Condition(self._lock)
        self._socket: socket.socket | None = None
        self._sent_records = 0
        self._ending = False
        self._has_share = threading.Event()
        self._reader = threading.Thread(target=self._read_updates, name="samples-in", daemon=True)
        self._writer = threading.Thread(target=self._write_samples, name="samples-out", daemon=True)

    @classmethod
    def from_args(cls, args: Mapping[str, str]) -> Self:
        """Make the sampler of the model that Triton's Python backend initialises with `args`."""
        instances = count_instances(json.loads(args["model_config"]))
        return cls(args["model_name"], args["model_version"], path=socket_path(), instances=instances)

    def start(self) -> None:
        """Start the threads; if an agent listens, wait for its first line, so that no request comes before it."""
        self._reader.start()
        self._writer.start()
        if self._path.exists():
            self._has_share.wait(FIRST_UPDATE_TIMEOUT_S)

    @property
    def is_active(self) -> bool:
        """Return whether any requests are sampled."""
        return self._share > 0.0

    def offer_sample(
        self, request_id: str, inputs: Mapping[str, Array], outputs: Mapping[str, Array]
    ) -> None:
        """Copy the request and its answer if they are in the sample and the buffer has room; never wait."""
        identity = request_id or uuid.uuid4().hex
        if not is_sampled(identity, self._share):
            return
        arrays = (*inputs.values(), *outputs.values())
        body_bytes = sum(map(_body_bytes, arrays))
        size = RECORD_BYTES + body_bytes + TEXT_BYTES * sum(array.size for array in arrays if _is_text(array))
        if body_bytes > MAX_BODY_BYTES:
            self._count_dropped(DropReason.TOO_LARGE)
            return
        if self._queued_bytes - self._dequeued_bytes + size > self._max_bytes:
            self._count_dropped(DropReason.BUFFER_FULL)
            return
        sample = _QueuedSample(
            identity, bool(request_id), time.time(), _copy_tensors(inputs), _copy_tensors(outputs), size
        )
        self._queued_bytes += size
        self._queue.put(sample)

    def report_join_limit(self, limit: str) -> None:
        """Tell the agent which requests are joined; never wait."""
        if limit != self._join_limit:
            self._join_limit = limit
            self._queue.put(None)  # wakes the writer

    def _count_dropped(self, reason: DropReason) -> None:
        self._refused[reason] += 1
        if self._queue.empty():
            self._queue.put(None)  # wakes the writer, which reports the loss

    def finish_sending(self) -> None:
        """Send the remaining samples and the Goodbye, within FINISH_TIMEOUT_S."""
        self._ending = True
        self._queue.put(None)
        self._writer.join(FINISH_TIMEOUT_S)
        with self._connected:
            self._connected.notify_all()
            if self._socket is not None:
                with contextlib.suppress(OSError):
                    self._socket.settimeout(FINISH_TIMEOUT_S)
                    if not self._writer.is_alive():  # else it may be in the middle of a frame
                        self._socket.sendall(encode_goodbye())
                    self._socket.shutdown(socket.SHUT_RDWR)

    def _read_updates(self) -> None:
        """Keep a connection to the agent, and read from it the share to sample."""
        while not self._ending:
            try:
                connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                try:
                    connection.connect(str(self._path))
                    self._follow_agent(connection)
                finally:
                    connection.close()
            except OSError:
                pass
            time.sleep(RECONNECT_PAUSE_S)

    def _follow_agent(self, connection: socket.socket) -> None:
        done = 0
        connection.sendall(self._make_hello())
        with self._connected:
            self._socket, self._sent_records = connection, 0
            self._connected.notify_all()
        if self._join_limit != self._join_limit_sent:  # it changed in between
            self._queue.put(None)
        try:
            with connection.makefile("rb") as lines:
                for line in lines:
                    update = parse_update(line)
                    self._share, done = update.share, update.done
                    self._has_share.set()
        except (OSError, ValueError):
            pass
        finally:
            with self._connected:
                self._socket = None
                # Unknown whether they were logged; an agent that shuts down confirms its records first.
                self._losses[DropReason.AGENT_ENDED] += max(self._sent_records - done, 0)

    def _make_hello(self) -> bytes:
        self._join_limit_sent = self._join_limit
        return encode_hello(
            HelloFrame(
                self._model,
                int(self._version),
                read_server_identity(),
                count_memory_kills(),
                self._instances,
                self._join_limit,
            )
        )

    def _write_samples(self) -> None:
        while True:
            try:
                sample = self._queue.get(
                    timeout=LOSS_REPORT_INTERVAL_S if self._has_unreported_losses() else None
                )
            except Empty:
                self._report_losses()
                continue
            if sample is None:
                if self._join_limit != self._join_limit_sent and self._socket is not None:
                    self._send_frame(self._make_hello(), counts=False)
                self._report_losses()
                if self._ending and self._queue.empty():
                    return
                continue
            self._send_sample(sample)
            self._dequeued_bytes += sample.size
            if self._has_unreported_losses():
                self._report_losses()

    def _send_sample(self, sample: _QueuedSample) -> None:
        frame = encode_record(
            SampleRecord(
                id=sample.id,
                own_id=sample.own_id,
                model=self._model,
                version=self._version,
                time_s=sample.time_s,
                inputs=tuple(tensor.to_tensor() for tensor in sample.inputs),
                outputs=tuple(tensor.to_tensor() for tensor in sample.outputs),
            )
        )
        if frame is None:
            with self._lock:
                self._losses[DropReason.TOO_LARGE] += 1
            return
        # The agent ignores a truncated frame, so it is sent again over the next connection.
        while not self._send_frame(frame, counts=True):
            if self._ending and not self._path.exists():
                return

    def _has_unreported_losses(self) -> bool:
        return self._refused != self._refused_reported or any(self._losses.values())

    def _report_losses(self) -> None:
        with self._lock:
            refused, losses = Counter(self._refused), Counter(self._losses)
        counts = losses + (refused - self._refused_reported)
        if (
            not counts
            or self._socket is None
            or not self._send_frame(encode_losses(SampleLosses(counts)), counts=False)
        ):
            return
        self._refused_reported = refused
        with self._lock:
            self._losses -= losses

    def _send_frame(self, frame: bytes, *, counts: bool) -> bool:
        """Send a frame, waiting for a connection; return False if it broke and the frame must be sent again."""
        with self._connected:
            if self._socket is None:
                self._connected.wait(RECONNECT_PAUSE_S)
            connection = self._socket
            if connection is None:
                return False
            self._sent_records += counts
        try:
            connection.sendall(frame)
        except OSError:
            with self._connected:
                if self._socket is not connection:
                    return counts  # the end of the connection has counted it as lost
                self._sent_records -= counts
            return False
        return True


def _is_text(array: Array) -> bool:
    return array.dtype.kind in "OSU"


def _body_bytes(array: Array) -> int:
    """Return the tensor's bytes in a frame; for text the least number, since a character may take four bytes."""
    if not _is_text(array):
        return array.nbytes
    return STRING_LENGTH.size * array.size + sum(map(len, array.reshape(-1).tolist()))


def _copy_tensors(tensors: Mapping[str, Array]) -> tuple[_CopiedTensor, ...]:
    return tuple(_copy_tensor(name, array) for name, array in tensors.items())


def _copy_tensor(name: str, array: Array) -> _CopiedTensor:
    if _is_text(array):
        return _CopiedTensor(name, "BYTES", array.shape, b"", tuple(array.reshape(-1).tolist()))
    return _CopiedTensor(
        name, DATATYPES.get(array.dtype.name, "BYTES"), array.shape, np.asarray(array).tobytes()
    )
