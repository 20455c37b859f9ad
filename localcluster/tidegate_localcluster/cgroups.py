"""The cgroup folders of one cluster: made in every hierarchy (v1) or in the one tree (v2), removed at the end."""

import contextlib
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from tidegate_localcluster.errors import LocalClusterError

CGROUP_ROOT = Path("/sys/fs/cgroup")
REQUIRED_CONTROLLERS = ("cpu", "cpuset", "memory", "pids")
REMOVAL_TIMEOUT_S = 20.0
POLL_INTERVAL_S = 0.05
_DEFAULT_WEIGHT = 100
_DEFAULT_SHARES = 1024


class CgroupVersion(StrEnum):
    """Which of the two interfaces the machine has mounted."""

    V1 = "v1"
    V2 = "v2"


@dataclass(frozen=True, slots=True)
class CgroupTree:
    """Where this machine's cgroups are and which controllers they offer."""

    root: Path
    version: CgroupVersion
    controllers: tuple[str, ...]

    @classmethod
    def detect(cls, root: Path = CGROUP_ROOT) -> "CgroupTree | None":
        """What is mounted at `root`; None when there is no cgroup file system."""
        unified = root / "cgroup.controllers"
        if unified.exists():
            return cls(root, CgroupVersion.V2, tuple(unified.read_text().split()))
        # Whatever is there, `systemd` and `unified` too: runc makes its folders in every hierarchy it finds.
        found = tuple(sorted(listing.parent.name for listing in root.glob("*/cgroup.procs")))
        return cls(root, CgroupVersion.V1, found) if found else None

    @property
    def missing_controllers(self) -> tuple[str, ...]:
        """What the kubelet needs and the machine does not offer."""
        return tuple(name for name in REQUIRED_CONTROLLERS if name not in self.controllers)

    def folders(self, name: str) -> tuple[Path, ...]:
        """Where the cgroup `name` lies, whether it exists or not."""
        if self.version is CgroupVersion.V2:
            return (self.root / name,)
        distinct: dict[tuple[int, int], Path] = {}
        for hierarchy in self.controllers:
            folder = self.root / hierarchy
            status = folder.stat()
            # `cpu` and `cpuacct` are often one hierarchy under two names.
            distinct.setdefault((status.st_dev, status.st_ino), folder / name)
        return tuple(distinct.values())

    def create(self, name: str) -> None:
        """Make the cgroup `name` ready to hold pods: controllers handed down, cpuset filled. Idempotent."""
        if self.version is CgroupVersion.V2:
            self._create_v2(name)
            return
        for folder in self.folders(name):
            folder.mkdir(parents=True, exist_ok=True)
            if (folder / "cpuset.cpus").exists():
                self._fill_cpuset(folder)

    def weigh(self, name: str, processes: int) -> None:
        """Let everything in the cgroup `name`, which exists, compete for cores like so many processes outside of it.

        By default it competes like one, however many pods it holds.
        """
        if self.version is CgroupVersion.V2:
            _write(self.root / name / "cpu.weight", str(_DEFAULT_WEIGHT * processes))
        elif "cpu" in self.controllers:
            _write(self.root / "cpu" / name / "cpu.shares", str(_DEFAULT_SHARES * processes))

    def _create_v2(self, name: str) -> None:
        wanted = " ".join(f"+{controller}" for controller in (*REQUIRED_CONTROLLERS, "io", "hugetlb"))
        offered = [token for token in wanted.split() if token[1:] in self.controllers]
        folder = self.root
        for part in ("", *Path(name).parts):
            folder = folder / part
            folder.mkdir(exist_ok=True)
            for token in offered:
                _write(folder / "cgroup.subtree_control", token)

    def _fill_cpuset(self, folder: Path) -> None:
        """A v1 cpuset is born empty and takes no process until it has CPUs and memory nodes."""
        for key in ("cpuset.cpus", "cpuset.mems"):
            if (folder / key).read_text().strip():
                continue
            parent = folder.parent / key
            if not parent.read_text().strip():
                self._fill_cpuset(folder.parent)
            _write(folder / key, parent.read_text().strip())

    def remains(self, name: str) -> tuple[Path, ...]:
        """Folders of the cgroup `name` that still exist."""
        return tuple(folder for folder in self.folders(name) if folder.exists())

    def processes(self, name: str) -> tuple[int, ...]:
        """Host process ids anywhere below the cgroup `name`."""
        found: set[int] = set()
        for folder in self.remains(name):
            for listing in folder.rglob("cgroup.procs"):
                found.update(_process_ids(listing))
        return tuple(sorted(found))

    def remove(self, name: str, timeout_s: float = REMOVAL_TIMEOUT_S) -> None:
        """Remove the cgroup `name` and all below it, waiting for processes that are still dying.

        Raises LocalClusterError naming the folders and processes that stay after `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        while self.remains(name):
            for folder in self.remains(name):
                _remove_tree(folder)
            if time.monotonic() > deadline:
                folders = ", ".join(map(str, self.remains(name)))
                pids = ", ".join(map(str, self.processes(name))) or "none"
                raise LocalClusterError(
                    f"cgroup folders stay after {timeout_s:g} s: {folders} (processes: {pids})"
                )
            time.sleep(POLL_INTERVAL_S)


def _remove_tree(folder: Path) -> None:
    """Remove `folder` and its children, deepest first, as far as nothing holds them."""
    for path in _deepest_first(folder):
        with contextlib.suppress(OSError):
            path.rmdir()


def _deepest_first(folder: Path) -> Sequence[Path]:
    found = [Path(path) for path, _, _ in os.walk(folder)]
    return sorted(found, key=lambda path: len(path.parts), reverse=True)


def _process_ids(listing: Path) -> Iterable[int]:
    try:
        return [int(word) for word in listing.read_text().split()]
    except OSError:
        return []


def _write(path: Path, value: str) -> None:
    try:
        path.write_text(value)
    except OSError as error:
        raise LocalClusterError(
            f"cannot write {value!r} to {path}: {error.strerror}; the machine must let root delegate this controller"
        ) from error
