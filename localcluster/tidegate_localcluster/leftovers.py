"""Finds what a cluster that does not run has left on the machine."""

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from tidegate_localcluster.cgroups import CgroupTree
from tidegate_localcluster.namespaces import find_supervisors
from tidegate_localcluster.private_root import parse_mountinfo


@dataclass(frozen=True, slots=True)
class Leftovers:
    """What a cluster that does not run has left on the machine; all empty after a clean `down`."""

    processes: tuple[int, ...] = ()
    mounts: tuple[str, ...] = ()
    cgroups: tuple[Path, ...] = ()
    links: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Return whether anything is left."""
        return bool(self.processes or self.mounts or self.cgroups or self.links)

    def __str__(self) -> str:
        """Return one line that names everything."""
        names_by_kind = {
            "processes": self.processes,
            "mounts": self.mounts,
            "cgroups": self.cgroups,
            "links": self.links,
        }
        return "; ".join(
            f"{kind}: {', '.join(map(str, names))}" for kind, names in names_by_kind.items() if names
        )


@dataclass(frozen=True, slots=True)
class ClusterTraces:
    """The processes and the network of a running cluster, recorded to search for them after its end."""

    processes: tuple[psutil.Process, ...] = ()
    network: str | None = None
    """Its network namespace as /proc names it; the links in it live as long as a process holds it."""

    @classmethod
    def from_pids(cls, pids: Iterable[int], first: int | None) -> "ClusterTraces":
        """Record the processes `pids`, and the network of process `first`."""
        processes: list[psutil.Process] = []
        for pid in pids:
            with contextlib.suppress(psutil.NoSuchProcess):
                processes.append(psutil.Process(pid))
        return cls(tuple(processes), _read_network_namespace(first) if first is not None else None)


def find_leftovers(state_dir: Path, cgroup: str | None, traces: ClusterTraces) -> Leftovers:
    """Find everything that the cluster in `state_dir` has left."""
    tree = CgroupTree.detect()
    mounts = parse_mountinfo(Path("/proc/self/mountinfo").read_text())
    survivors = {process.pid for process in traces.processes if _is_running(process)}
    return Leftovers(
        processes=tuple(sorted({*find_supervisors(state_dir), *survivors})),
        mounts=tuple(mount.point for mount in mounts if mount.point.startswith(f"{state_dir}/")),
        cgroups=tree.list_existing_folders(cgroup) if cgroup is not None and tree is not None else (),
        links=tuple(_find_holders(traces.network)) if traces.network is not None else (),
    )


def _is_running(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _read_network_namespace(pid: int) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return None


def _find_holders(network: str) -> Iterator[str]:
    for pid in psutil.pids():
        if _read_network_namespace(pid) == network:
            yield f"those in {network}, held by process {pid}"
