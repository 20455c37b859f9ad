"""Counts the processor time of a process and of all its descendants: living, ended, and those that nobody waited for.

The kernel counts in a cgroup. Where none can be made, `getrusage` is read, which misses daemons and what still runs.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

CGROUPS: Final = Path("/sys/fs/cgroup")
_PROCESSES: Final = "cgroup.procs"
_NANOSECONDS: Final = "cpuacct.usage"
_STATISTICS: Final = "cpu.stat"
_OWN: Final = "tidegate-tests-"
"""The id of the process follows."""


@dataclass(frozen=True, slots=True)
class Account:
    """One cgroup; a process that is in it starts its children in it."""

    folder: Path

    @property
    def counts(self) -> bool:
        """Whether the kernel counts here: of the hierarchies of cgroup v1, one alone does."""
        statistics = self.folder / _STATISTICS
        return (self.folder / _NANOSECONDS).exists() or (
            statistics.exists() and "usage_usec" in statistics.read_text()
        )

    @property
    def seconds(self) -> float:
        """Processor time of all processes that were ever in it or in an account below it, all cores added up."""
        nanoseconds = self.folder / _NANOSECONDS
        if nanoseconds.exists():
            return int(nanoseconds.read_text()) / 1e9
        usage = dict(line.split() for line in (self.folder / _STATISTICS).read_text().splitlines())
        return int(usage["usage_usec"]) / 1e6

    def close(self) -> None:
        """Return the calling process to the parent; remove the folder where no other process is in it."""
        with suppress(OSError):
            (self.folder.parent / _PROCESSES).write_text("0")
        with suppress(OSError):
            self.folder.rmdir()


def _find(name: str) -> Account | None:
    """Return the account below that of the calling process, whether it exists or not; None where cgroups cannot count."""
    for line in _read_own_cgroups():
        _, controllers, path = line.split(":", 2)
        # A hierarchy that also schedules is left alone: a measurement must not change who gets a core.
        if controllers == "cpuacct":
            return Account(CGROUPS / "cpuacct" / path.lstrip("/") / name)
        if not controllers and (CGROUPS / "cgroup.controllers").exists():
            return Account(CGROUPS / path.lstrip("/") / name)
    return None


def enter_own_account() -> Account | None:
    """Create an account for the calling process and move into it; None where that is not possible."""
    return _enter(f"{_OWN}{os.getpid()}")


def enter_account_of(pid: int) -> Account | None:
    """Move the calling process into an account of another one, which must be in the same cgroup; None where that is not possible."""
    return _enter(f"{_OWN}{pid}")


def find_account_of(pid: int) -> Account | None:
    """Return the account that `enter_account_of` has created; None where there is none."""
    account = _find(f"{_OWN}{pid}")
    return account if account is not None and account.counts else None


def _enter(name: str) -> Account | None:
    """Create an account below that of the calling process and move into it; None where that is not possible."""
    account = _find(name)
    if account is None:
        return None
    _remove_abandoned(account.folder.parent)
    try:
        account.folder.mkdir(exist_ok=True)
        (account.folder / _PROCESSES).write_text("0")
        _ = account.seconds
    except OSError:
        account.close()
        return None
    return account


def read_own_seconds() -> float:
    """Return the processor time of the calling process and of the children that it has waited for."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def read_programs(pids: Iterable[int]) -> Mapping[str, float]:
    """Return processor seconds by program name of living processes, without those of their children."""
    spent: dict[str, float] = {}
    for pid in pids:
        with suppress(OSError):
            name, _, fields = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
            ticks = sum(map(int, fields.split()[11:13]))
            spent[name] = spent.get(name, 0.0) + ticks / os.sysconf("SC_CLK_TCK")
    return spent


def _remove_abandoned(folder: Path) -> None:
    """Remove accounts whose process was killed before it could close them; one that has processes stays."""
    for account in folder.glob(f"{_OWN}*"):
        if not Path("/proc", account.name.removeprefix(_OWN)).exists():
            _remove_abandoned(account)
            with suppress(OSError):
                account.rmdir()


def _read_own_cgroups() -> list[str]:
    try:
        return Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
