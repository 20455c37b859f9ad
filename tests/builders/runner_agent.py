"""The agent's end of the pod's socket, as little of it as a runner needs."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from builders.waiting import wait_until
from tidegate_dataplane.sampling.frames import (
    FRAME_LENGTHS,
    AgentUpdate,
    GoodbyeFrame,
    HelloFrame,
    SampleLosses,
    SampleRecord,
    encode_update,
    parse_frame,
)
from tidegate_dataplane.sampling.sampler import Sampler


class RunnerAgent:
    """Listens, tells a share, and keeps what it hears; with `reading=False` only from `read()` on."""

    def __init__(self, folder: Path, *, share: float, reading: bool = True) -> None:
        self.path = folder / "samples.sock"
        self.taken: list[SampleRecord] = []
        self.lost: Counter[str] = Counter()
        self.words: list[HelloFrame | GoodbyeFrame] = []
        self._share = share
        self._may_read = threading.Event()
        if reading:
            self._may_read.set()
        self._listener: socket.socket | None = None
        self._connections: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._listen()
        return self

    def __exit__(self, *_: object) -> None:
        self._may_read.set()
        self._end()

    @contextmanager
    def sampler(self, most_bytes: int = 8 << 20) -> Iterator[Sampler]:
        """A runner of version 3 of `ctr` that is connected."""
        sampler = Sampler("ctr", "3", path=self.path, max_bytes=most_bytes)
        sampler.start()
        try:
            yield sampler
        finally:
            sampler.finish_sending()

    def read(self) -> None:
        """Begin to read."""
        self._may_read.set()

    def records(self, count: int) -> list[SampleRecord]:
        """The records, once there are so many."""
        wait_until(lambda: len(self.taken) >= count, what=f"{count} records arrived")
        return self.taken

    def tell(self, *, share: float, done: int = 0) -> None:
        """Say a line to every runner."""
        self._share = share
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.sendall(encode_update(AgentUpdate(share, done)))

    def restart(self) -> None:
        """End all connections, and listen again."""
        self._end()
        self._listen()

    def _listen(self) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self.path))
        self._listener.listen()
        self._spawn(self._accept, self._listener)

    def _end(self) -> None:
        self.path.unlink(missing_ok=True)
        for each in (self._listener, *self._connections):
            if each is not None:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
                each.close()
        self._connections.clear()
        for thread in self._threads:
            thread.join(10)

    def _spawn(self, work: object, *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            connection.sendall(encode_update(AgentUpdate(self._share, 0)))
            self._connections.append(connection)
            self._spawn(self._read, connection)

    def _read(self, connection: socket.socket) -> None:
        self._may_read.wait()
        with contextlib.suppress(OSError, ValueError), connection.makefile("rb") as frames:
            while lengths := frames.read(FRAME_LENGTHS.size):
                header, body = FRAME_LENGTHS.unpack(lengths)
                said = parse_frame(frames.read(header), frames.read(body))
                match said:
                    case SampleLosses():
                        self.lost.update(said.counts)
                    case SampleRecord():
                        self.taken.append(said)
                    case _:
                        self.words.append(said)
