"""NVIDIA's control program of MPS, one command at a time.

The commands and their output are those of the "Legacy MPS v2 Interface" of NVIDIA's MPS documentation: lists of pids,
and one word for a server's status. Without a daemon the program prints a message and ends with an error. It also does so,
with another message, if two programs ask a healthy daemon at the same moment.
"""

import asyncio
import contextlib
import os
import signal
from pathlib import Path

from tidegate_dataplane.contract.sharing import ServerStatus

_KILL_TIMEOUT_S = 1.0
_MAX_OUTPUT_CHARS = 300
"""Characters of the program's output that a report quotes."""
_BUSY = "Cannot send command to MPS control daemon process"
"""Output for a command that met another program's; seen on driver 580, and rare."""
_PAUSES_S = (0.02, 0.1)
"""Before the command is sent again."""


class DaemonGoneError(Exception):
    """The control program finds no daemon; the message is its output."""


class DaemonHangsError(Exception):
    """The control program did not answer in time."""


class ProgramMissingError(Exception):
    """The control program cannot be started, so the state of the daemon is unknown."""


class MpsControl:
    """Client of the daemon behind one pipe directory."""

    def __init__(self, program: str, pipe_directory: Path, timeout_s: float) -> None:
        self._program = program
        self._pipe_directory = pipe_directory
        self._timeout_s = timeout_s
        self._killed_process: asyncio.subprocess.Process | None = None

    async def list_servers(self) -> tuple[int, ...]:
        """Return the pids of the MPS servers.

        Raises:
            DaemonGoneError, DaemonHangsError, ProgramMissingError: as does every other command.
        """
        return _parse_pids(await self.run_command("get_server_list"))

    async def get_status(self, server: int) -> ServerStatus:
        """Return the status of a server."""
        output = (await self.run_command(f"get_server_status {server}")).upper().split()
        return next((status for status in ServerStatus if status.value in output), ServerStatus.UNKNOWN)

    async def list_clients(self, server: int) -> tuple[int, ...]:
        """Return the pids of a server's clients."""
        return _parse_pids(await self.run_command(f"get_client_list {server}"))

    async def run_command(self, text: str) -> str:
        """Write one command to the program's standard input; return its output."""
        status, printed = await self._send_command(text)
        for pause_s in _PAUSES_S:
            if _BUSY not in printed:
                break
            await asyncio.sleep(pause_s)
            status, printed = await self._send_command(text)
        if status == 0 and _BUSY not in printed:
            return printed
        raise DaemonGoneError(printed[:_MAX_OUTPUT_CHARS] or f"{self._program} ended with {status}")

    async def _send_command(self, text: str) -> tuple[int | None, str]:
        """Run the program once; return its exit status and output."""
        if self._killed_process is not None and self._killed_process.returncode is None:
            message = f"{self._program} has been killed and does not end: the driver holds it"
            raise DaemonHangsError(message)
        process, name = await self._start_program(), text.split(maxsplit=1)[0]
        try:
            async with asyncio.timeout(self._timeout_s):
                output, _ = await process.communicate(f"{text}\n".encode())
        except TimeoutError:
            message = f"{name} did not answer within {self._timeout_s:g} s"
            raise DaemonHangsError(message) from None
        finally:
            await self._kill_program(process)
        return process.returncode, output.decode(errors="replace").strip()

    async def _start_program(self) -> asyncio.subprocess.Process:
        try:
            return await asyncio.create_subprocess_exec(
                self._program,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env={**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(self._pipe_directory)},
                start_new_session=True,
            )
        except OSError as error:
            message = f"{self._program} cannot be started: {error}"
            raise ProgramMissingError(message) from error

    async def _kill_program(self, process: asyncio.subprocess.Process) -> None:
        """Kill the program and its children if it has not ended."""
        if process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        # A process that waits inside a driver dies when the driver lets it, which may take for ever.
        self._killed_process = process
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_KILL_TIMEOUT_S):
                await process.wait()


def _parse_pids(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split() if word.isascii() and word.isdecimal())
