"""Reads how busy the machine is from the kernel."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

_LOW_PRIORITY: Final = 10
"""A niceness: about a ninth of a process's usual share."""


def pressure() -> float:
    """Return the share of the last ten seconds in which some process waited for a core, 0 to 100; 0 without PSI."""
    try:
        some = Path("/proc/pressure/cpu").read_text().split("\n", 1)[0]
    except OSError:
        return 0.0
    return float(some.split("avg10=", 1)[1].split(" ", 1)[0])


def lower_priority() -> None:
    """Let other processes run before this one and its children, within its session and beside other sessions."""
    os.setpriority(os.PRIO_PROCESS, 0, _LOW_PRIORITY)
    # Where the kernel groups processes by session, their own priorities count only within it (sched(7), autogroup).
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(_LOW_PRIORITY))


def busy_seconds() -> float:
    """Return the processor time that the whole machine has spent since it started, all cores added up."""
    user, nice, system, _idle, _iowait, irq, softirq = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:8]
    )
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")
