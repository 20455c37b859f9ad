"""The pod's socket: runners send samples, and receive the share to sample and how many records are settled."""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

import structlog

from tidegate_dataplane.agent.runners import RunnerRegistry
from tidegate_dataplane.sampling.frames import (
    FRAME_LENGTHS,
    MAX_BODY_BYTES,
    MAX_HEADER_BYTES,
    AgentUpdate,
    GoodbyeFrame,
    HelloFrame,
    SampleLosses,
    SampleRecord,
    encode_update,
    parse_frame,
)

log = structlog.get_logger()

SOCKET_MODE = 0o660
UPDATE_INTERVAL_S = 0.1
# Limit for reading what ended runners have sent.
LAST_READ_S = 0.5


class RunnerPeer:
    """Connection of one runner."""

    def __init__(self, writer: asyncio.StreamWriter, share: Callable[[], float]) -> None:
        self._writer = writer
        self._share = share
        self._settled_count = 0
        self._timer: asyncio.TimerHandle | None = None

    def settle(self) -> None:
        """Count one settled record, and send the count soon."""
        self._settled_count += 1
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(UPDATE_INTERVAL_S, self.send_update)

    def send_update(self) -> None:
        """Send the share and the count of settled records now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._writer.is_closing():
            self._writer.write(encode_update(AgentUpdate(self._share(), self._settled_count)))

    def close(self) -> None:
        """Send the last update and close the connection."""
        self.send_update()
        self._writer.close()


class RunnerSocket:
    """Accepts runners, registers them in `runners`, and passes their samples to `take`."""

    def __init__(
        self,
        path: Path,
        share: Callable[[], float],
        take: Callable[[SampleRecord | SampleLosses, int, RunnerPeer], None],
        runners: RunnerRegistry,
    ) -> None:
        self._path = path
        self._share = share
        self._take = take
        self._runners = runners
        self._server: asyncio.Server | None = None
        self._peers: dict[RunnerPeer, asyncio.Task[object] | None] = {}

    async def start(self) -> None:
        """Listen; if that fails nothing is sampled, and everything else works."""
        try:
            self._server = await asyncio.start_unix_server(self._serve_runner, path=self._path)
            self._path.chmod(SOCKET_MODE)
            self._runners.start_listening()
        except OSError as error:
            log.warning("samples_socket_unusable", path=str(self._path), error=str(error))

    def notify_runners(self) -> None:
        """Send every runner the share to sample."""
        for peer in self._peers:
            peer.send_update()

    async def stop_reading(self) -> None:
        """Read what ended runners have sent, then stop reading."""
        if self._server is not None:
            self._server.close()
            self._path.unlink(missing_ok=True)
        tasks = [task for task in self._peers.values() if task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=LAST_READ_S)
        for task in tasks:
            task.cancel()

    def close(self) -> None:
        """Send the last updates and close every connection."""
        for peer in list(self._peers):
            peer.close()
        self._peers.clear()

    async def _serve_runner(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = RunnerPeer(writer, self._share)
        self._peers[peer] = asyncio.current_task()
        peer.send_update()
        try:
            while True:
                await self._read_frame(reader, peer)
        except (asyncio.IncompleteReadError, ConnectionError):
            self._runners.record_disconnect(peer)
        except ValueError as error:
            log.warning("samples_frame_refused", error=str(error))
        except asyncio.CancelledError:
            return  # `close` sends the last update
        # The runner is alive and will reconnect.
        self._runners.remove_runner(peer)
        self._peers.pop(peer, None)
        with contextlib.suppress(ConnectionError):
            peer.close()

    async def _read_frame(self, reader: asyncio.StreamReader, peer: RunnerPeer) -> None:
        header_bytes, body_bytes = FRAME_LENGTHS.unpack(await reader.readexactly(FRAME_LENGTHS.size))
        if header_bytes > MAX_HEADER_BYTES or body_bytes > MAX_BODY_BYTES:
            raise ValueError(f"a frame of {header_bytes} and {body_bytes} bytes")
        header = await reader.readexactly(header_bytes)
        body = await reader.readexactly(body_bytes)
        match parse_frame(header, body):
            case HelloFrame() as hello:
                self._runners.add_runner(peer, hello)
            case GoodbyeFrame():
                self._runners.remove_runner(peer)
            case frame:
                self._take(frame, header_bytes + body_bytes, peer)
