"""Looks at processes of the machine."""

from __future__ import annotations

import psutil


def is_alive(pid: int) -> bool:
    """Whether a process has not ended; one that nobody has waited for has."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
