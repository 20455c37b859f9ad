"""A real MPS control daemon in a folder of its own, which changes no setting of the GPU."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

PROGRAM = "nvidia-cuda-mps-control"
_NAME = "nvidia-cuda-mps"
"""How the names of its processes begin, which the kernel cuts."""
_COMMAND_TIMEOUT_S = 20.0
_END_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What the control program printed, and its exit status."""

    output: str
    status: int


@dataclass(frozen=True, slots=True)
class MpsDaemon:
    """The daemon behind the pipe directory `pipe`."""

    pipe: Path
    log: Path

    @property
    def environment(self) -> Mapping[str, str]:
        """Return the environment of processes that share the GPU by this daemon."""
        return {"CUDA_MPS_PIPE_DIRECTORY": str(self.pipe), "CUDA_MPS_LOG_DIRECTORY": str(self.log)}

    def send_command(self, command: str, timeout_s: float = _COMMAND_TIMEOUT_S) -> Answer:
        """Send one command. Raises subprocess.TimeoutExpired if the daemon does not answer."""
        done = subprocess.run(
            [PROGRAM],
            input=f"{command}\n",
            env={**os.environ, **self.environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        return Answer(done.stdout, done.returncode)

    def read_pid(self) -> int:
        """Return the pid that the daemon has written."""
        return int((self.pipe / "nvidia-cuda-mps-control.pid").read_text())

    def start(self) -> None:
        """Start the daemon. Raises subprocess.CalledProcessError."""
        subprocess.run(
            [PROGRAM, "-d"], env={**os.environ, **self.environment}, check=True, timeout=_COMMAND_TIMEOUT_S
        )

    def kill(self) -> None:
        """End the daemon of this folder and the servers of its pipe, whatever state they are in."""
        for process in _find_processes(self.pipe):
            _send_signal(process, signal.SIGCONT)
            _send_signal(process, signal.SIGKILL)


@contextmanager
def running_daemon(folder: Path) -> Iterator[MpsDaemon]:
    """Start a daemon in `folder`, and end it."""
    daemon = MpsDaemon(folder / "pipe", folder / "log")
    shutil.rmtree(folder, ignore_errors=True)
    for path in (daemon.pipe, daemon.log):
        path.mkdir(parents=True)
    try:
        daemon.start()
        yield daemon
    finally:
        with suppress(subprocess.TimeoutExpired):
            daemon.send_command("quit -t 1")
        deadline = time.monotonic() + _END_TIMEOUT_S
        while _find_processes(daemon.pipe) and time.monotonic() < deadline:
            time.sleep(0.1)
        daemon.kill()


def _find_processes(pipe: Path) -> list[int]:
    """Return the pids of the daemons and servers of a pipe directory, also of those whose daemon was killed."""
    found: list[int] = []
    for process in Path("/proc").iterdir():
        try:
            name = (process / "comm").read_text()
            environment = (process / "environ").read_bytes().split(b"\0")
        except (OSError, NotADirectoryError):
            continue
        if name.startswith(_NAME) and f"CUDA_MPS_PIPE_DIRECTORY={pipe}".encode() in environment:
            found.append(int(process.name))
    return found


def _send_signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
