"""What a cluster that does not run has left on the machine."""

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from tidegate_localcluster.cgroups import CgroupTree
from tidegate_localcluster.namespaces import supervising
from tidegate_localcluster.private_root import parse_mountinfo


@dataclass(frozen=True, slots=True)
class Remains:
    """What a cluster that does not run has left on the machine; all empty after a clean `down`."""

    processes: tuple[int, ...] = ()
    mounts: tuple[str, ...] = ()
    cgroups: tuple[Path, ...] = ()
    links: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Whether anything is left."""
        return bool(self.processes or self.mounts or self.cgroups or self.links)

    def __str__(self) -> str:
        """One line that names everything."""
        found = {
            "processes": self.processes,
            "mounts": self.mounts,
            "cgroups": self.cgroups,
            "links": self.links,
        }
        return "; ".join(f"{kind}: {', '.join(map(str, names))}" for kind, names in found.items() if names)


@dataclass(frozen=True, slots=True)
class Traces:
    """What a running cluster holds, noted before it is ended so that it can be looked for afterwards."""

    processes: tuple[psutil.Process, ...] = ()
    network: str | None = None
    """Its network namespace as /proc names it; the links in it live as long as anything holds it."""

    @classmethod
    def of(cls, pids: Iterable[int], first: int | None) -> "Traces":
        """Note the processes `pids`, and the network of process `first`."""
        found: list[psutil.Process] = []
        for pid in pids:
            with contextlib.suppress(psutil.NoSuchProcess):
                found.append(psutil.Process(pid))
        return cls(tuple(found), _network(first) if first is not None else None)


def find_remains(state_dir: Path, cgroup: str | None, traces: Traces) -> Remains:
    """Look for everything that the cluster in `state_dir` could have left."""
    tree = CgroupTree.detect()
    mounts = parse_mountinfo(Path("/proc/self/mountinfo").read_text())
    left = {process.pid for process in traces.processes if _runs(process)}
    return Remains(
        processes=tuple(sorted({*supervising(state_dir), *left})),
        mounts=tuple(found.point for found in mounts if found.point.startswith(f"{state_dir}/")),
        cgroups=tree.remains(cgroup) if cgroup is not None and tree is not None else (),
        links=tuple(_holders(traces.network)) if traces.network is not None else (),
    )


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _network(pid: int) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return None


def _holders(network: str) -> Iterator[str]:
    for pid in psutil.pids():
        if _network(pid) == network:
            yield f"those in {network}, held by process {pid}"
