"""Mount, network and pid namespaces of one cluster: entered, found again from outside, ended by one pid."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import psutil

from tidegate_localcluster.errors import LocalClusterError

SUPERVISOR_MODULE = "tidegate_localcluster.supervisor"
UNSHARE = ("unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--propagation", "private")
KILL_TIMEOUT_S = 20.0
POLL_INTERVAL_S = 0.05
LOOKS = 20
"""In a row that have to miss a process before it has ended: one that becomes another program has no command line for a moment."""


@dataclass(frozen=True, slots=True)
class Namespace:
    """The namespaces of a running cluster as the machine sees them, by the host pid of their first process."""

    pid: int

    @classmethod
    def start(
        cls, command: Sequence[str], state_dir: Path, *, log: Path, descriptors: Sequence[int]
    ) -> "Namespace":
        """Start `command`, the supervisor of `state_dir`, in new namespaces; `descriptors` stay open in it.

        Raises LocalClusterError with the end of the log when it ends at once.
        """
        start_detached([*UNSHARE, *command], log=log, descriptors=descriptors)
        absent = 0
        while absent < LOOKS:
            if (namespace := cls.find(state_dir)) is not None:
                return namespace
            absent = 0 if supervising(state_dir) else absent + 1
            time.sleep(POLL_INTERVAL_S)
        raise LocalClusterError(f"the namespaces could not be made; see {log}:\n{log.read_text()[-2000:]}")

    @classmethod
    def find(cls, state_dir: Path) -> "Namespace | None":
        """The namespaces of the cluster in `state_dir`, recognised by the command line of their first process."""
        first = (pid for pid in supervising(state_dir) if _pid_inside(pid) == 1)
        return next((cls(pid) for pid in first), None)

    def enter_command(self, command: Sequence[str], *, directory: Path | None = None) -> list[str]:
        """The command line that runs `command` inside, in `directory` if it exists there, else in `/`."""
        inside = Path(f"/proc/{self.pid}/root{directory}") if directory else None
        place = str(directory) if inside is not None and inside.is_dir() else "/"
        enter = ["nsenter", "--target", str(self.pid), "--mount", "--net", "--pid", "--"]
        return [*enter, "env", f"--chdir={place}", *command]

    def processes(self) -> Mapping[int, int]:
        """Host process id by process id inside, for every process of the pid namespace."""
        try:
            ours = os.readlink(f"/proc/{self.pid}/ns/pid")
        except OSError:
            return {}
        found: dict[int, int] = {}
        for pid in psutil.pids():
            if _pid_namespace(pid) == ours and (inside := _pid_inside(pid)) is not None:
                found[inside] = pid
        return found

    def kill(self) -> None:
        """End every process inside at once: the kernel does it when the first one dies."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def wait_ended(self, timeout_s: float = KILL_TIMEOUT_S) -> bool:
        """Wait until the first process and with it all the others are gone; False after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while psutil.pid_exists(self.pid) and not _is_zombie(self.pid):
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_INTERVAL_S)
        return True


def start_detached(command: Sequence[str], *, log: Path, descriptors: Sequence[int] = ()) -> None:
    """Start `command` as nobody's child, in a session of its own, writing to `log`.

    Raises LocalClusterError when it cannot be started at all.
    """
    with log.open("ab") as output:
        result = subprocess.run(
            ["setsid", "--fork", *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=descriptors,
            check=False,
        )
    if result.returncode != 0:
        raise LocalClusterError(f"{command[0]} could not be started: {log.read_text()[-2000:]}")


def supervising(state_dir: Path) -> tuple[int, ...]:
    """Host pids of the supervisor of `state_dir`, of what is about to become it, and of what waits for it."""
    wanted = supervisor_command(state_dir)[1:]
    found: list[int] = []
    for process in psutil.process_iter(["cmdline", "pid"]):
        words: list[str] = process.info["cmdline"] or []
        if any(words[start : start + len(wanted)] == wanted for start in range(len(words))):
            found.append(process.info["pid"])
    return tuple(found)


def supervisor_command(state_dir: Path) -> list[str]:
    """How the first process of the cluster in `state_dir` is called; also how it is found again."""
    return [sys.executable, "-m", SUPERVISOR_MODULE, str(state_dir)]


def _pid_namespace(pid: int) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return None


def _pid_inside(pid: int) -> int | None:
    """The innermost process id of host process `pid`; None when it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    for line in status.splitlines():
        if line.startswith("NSpid:"):
            return int(line.split()[-1])
    return None


def _is_zombie(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def run_as_init(work: Callable[[], int]) -> int:
    """Do `work` in a child and reap every orphan meanwhile, as process 1 must; returns the child's exit status.

    In the child it returns what `work` returns. SIGTERM is passed on.
    """
    child = os.fork()
    if child == 0:
        return work()

    def pass_on(number: int, frame: FrameType | None) -> None:
        os.kill(child, number)

    signal.signal(signal.SIGTERM, pass_on)
    while True:
        pid, status = os.wait()
        if pid == child:
            return os.waitstatus_to_exitcode(status) & 0xFF
