"""What a runner knows of the container that it runs in: which server started it, and what the kernel killed there."""

import os
from pathlib import Path

_STARTED = 19
"""Where a process's start stands in /proc/PID/stat, counted after its name (proc_pid_stat(5), field 22)."""
_COUNTS = ("memory.events", "memory/memory.oom_control")
"""Of control groups of version 2 and 1; the container sees its own at the root."""


def server_identity(pid: int | None = None, proc: Path = Path("/proc")) -> str:
    """Return words that are the same for as long as the process that started this one, or `pid`, is the same."""
    number = os.getppid() if pid is None else pid
    try:
        fields = (proc / str(number) / "stat").read_text().rpartition(")")[2].split()
        return f"{number}-{fields[_STARTED]}"
    except (OSError, IndexError):
        return str(number)


def memory_kills(root: Path = Path("/sys/fs/cgroup")) -> int:
    """Return how many processes of this container the kernel has ended at its memory limit; 0 where that is not said."""
    for name in _COUNTS:
        try:
            lines = (root / name).read_text().splitlines()
        except OSError:
            continue
        counts = dict(line.split(maxsplit=1) for line in lines if " " in line)
        return int(counts.get("oom_kill", "0"))
    return 0
