"""Read facts about a runner's container: the server that started it, and the processes that the kernel killed."""

import os
from pathlib import Path

_START_TIME_FIELD = 19
"""The index of a process's start time in /proc/PID/stat, counted after its name (proc_pid_stat(5), field 22)."""
_EVENT_FILES = ("memory.events", "memory/memory.oom_control")
"""The event files of control groups of version 2 and 1; a container sees its own group at the root."""


def read_server_identity(pid: int | None = None, proc: Path = Path("/proc")) -> str:
    """Return an identity of the process `pid`, by default the one that started this process; a reused pid differs."""
    number = os.getppid() if pid is None else pid
    try:
        fields = (proc / str(number) / "stat").read_text().rpartition(")")[2].split()
        return f"{number}-{fields[_START_TIME_FIELD]}"
    except (OSError, IndexError):
        return str(number)


def count_memory_kills(root: Path = Path("/sys/fs/cgroup")) -> int:
    """Return how many processes of this container the kernel has killed at its memory limit; 0 if unknown."""
    for name in _EVENT_FILES:
        try:
            lines = (root / name).read_text().splitlines()
        except OSError:
            continue
        counts = dict(line.split(maxsplit=1) for line in lines if " " in line)
        return int(counts.get("oom_kill", "0"))
    return 0
