"""Creates, finds, enters and ends the mount, network and pid namespaces of one cluster."""

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
MISSED_POLLS = 20
"""Polls in a row that must miss a process before it counts as ended: during exec it has no command line."""


@dataclass(frozen=True, slots=True)
class ClusterNamespaces:
    """The namespaces of a running cluster, identified by the host pid of their first process."""

    pid: int

    @classmethod
    def start(
        cls, command: Sequence[str], state_dir: Path, *, log: Path, descriptors: Sequence[int]
    ) -> "ClusterNamespaces":
        """Start `command`, the supervisor of `state_dir`, in new namespaces; it inherits `descriptors`.

        Raises LocalClusterError with the end of the log when it ends at once.
        """
        start_detached([*UNSHARE, *command], log=log, descriptors=descriptors)
        absent = 0
        while absent < MISSED_POLLS:
            if (namespace := cls.find(state_dir)) is not None:
                return namespace
            absent = 0 if find_supervisors(state_dir) else absent + 1
            time.sleep(POLL_INTERVAL_S)
        raise LocalClusterError(f"the namespaces could not be made; see {log}:\n{log.read_text()[-2000:]}")

    @classmethod
    def find(cls, state_dir: Path) -> "ClusterNamespaces | None":
        """Find the namespaces of the cluster in `state_dir` by the command line of their first process."""
        first = (pid for pid in find_supervisors(state_dir) if _read_pid_inside(pid) == 1)
        return next((cls(pid) for pid in first), None)

    def wrap_command(self, command: Sequence[str], *, directory: Path | None = None) -> list[str]:
        """Return the command line that runs `command` inside, in `directory` if it exists there, else in `/`."""
        inside = Path(f"/proc/{self.pid}/root{directory}") if directory else None
        folder = str(directory) if inside is not None and inside.is_dir() else "/"
        enter = ["nsenter", "--target", str(self.pid), "--mount", "--net", "--pid", "--"]
        return [*enter, "env", f"--chdir={folder}", *command]

    def map_processes(self) -> Mapping[int, int]:
        """Return the host pids by the pids inside, for every process of the pid namespace."""
        try:
            own_namespace = os.readlink(f"/proc/{self.pid}/ns/pid")
        except OSError:
            return {}
        host_pids: dict[int, int] = {}
        for pid in psutil.pids():
            if _read_pid_namespace(pid) == own_namespace and (inside := _read_pid_inside(pid)) is not None:
                host_pids[inside] = pid
        return host_pids

    def kill(self) -> None:
        """Kill the first process; the kernel then kills every other process inside."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def wait_until_ended(self, timeout_s: float = KILL_TIMEOUT_S) -> bool:
        """Wait until the first process, and with it all others, has ended; return False after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while psutil.pid_exists(self.pid) and not _is_zombie(self.pid):
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_INTERVAL_S)
        return True


def start_detached(command: Sequence[str], *, log: Path, descriptors: Sequence[int] = ()) -> None:
    """Start `command` detached, in a session of its own; it writes to `log`.

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


def find_supervisors(state_dir: Path) -> tuple[int, ...]:
    """Return the host pids of the supervisor of `state_dir`, and of the programs that start it or wait for it."""
    command = supervisor_command(state_dir)[1:]
    pids: list[int] = []
    for process in psutil.process_iter(["cmdline", "pid"]):
        arguments: list[str] = process.info["cmdline"] or []
        if any(arguments[start : start + len(command)] == command for start in range(len(arguments))):
            pids.append(process.info["pid"])
    return tuple(pids)


def supervisor_command(state_dir: Path) -> list[str]:
    """Return the command line of the supervisor of `state_dir`, by which `find_supervisors` finds it too."""
    return [sys.executable, "-m", SUPERVISOR_MODULE, str(state_dir)]


def _read_pid_namespace(pid: int) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return None


def _read_pid_inside(pid: int) -> int | None:
    """Return the innermost process id of host process `pid`; None when it has ended."""
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
    """Run `work` in a child and reap orphans meanwhile, as process 1 must; return the child's exit status.

    In the child it returns the result of `work`. It forwards SIGTERM to the child.
    """
    child = os.fork()
    if child == 0:
        return work()

    def forward_signal(number: int, frame: FrameType | None) -> None:
        os.kill(child, number)

    signal.signal(signal.SIGTERM, forward_signal)
    while True:
        pid, status = os.wait()
        if pid == child:
            return os.waitstatus_to_exitcode(status) & 0xFF
