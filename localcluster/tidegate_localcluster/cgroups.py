"""Creates and removes the cgroup folders of a cluster, in every hierarchy (v1) or in the one tree (v2)."""

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
    """The cgroup interface that the machine has mounted."""

    V1 = "v1"
    V2 = "v2"


@dataclass(frozen=True, slots=True)
class CgroupTree:
    """The machine's cgroup file system and the controllers that it offers."""

    root: Path
    version: CgroupVersion
    controllers: tuple[str, ...]

    @classmethod
    def detect(cls, root: Path = CGROUP_ROOT) -> "CgroupTree | None":
        """Return what is mounted at `root`; None when there is no cgroup file system."""
        unified = root / "cgroup.controllers"
        if unified.exists():
            return cls(root, CgroupVersion.V2, tuple(unified.read_text().split()))
        # All hierarchies, also `systemd` and `unified`: runc creates its folders in every hierarchy that exists.
        hierarchies = tuple(sorted(listing.parent.name for listing in root.glob("*/cgroup.procs")))
        return cls(root, CgroupVersion.V1, hierarchies) if hierarchies else None

    @property
    def missing_controllers(self) -> tuple[str, ...]:
        """Return the controllers that the kubelet needs and the machine does not offer."""
        return tuple(name for name in REQUIRED_CONTROLLERS if name not in self.controllers)

    def list_folders(self, name: str) -> tuple[Path, ...]:
        """Return the folders of the cgroup `name`, whether they exist or not."""
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
        """Create the cgroup `name` and enable what pods in it need: its controllers and cpuset. Idempotent."""
        if self.version is CgroupVersion.V2:
            self._create_v2(name)
            return
        for folder in self.list_folders(name):
            folder.mkdir(parents=True, exist_ok=True)
            if (folder / "cpuset.cpus").exists():
                self._fill_cpuset(folder)

    def set_cpu_weight(self, name: str, processes: int) -> None:
        """Give the existing cgroup `name` the CPU weight of this many processes outside of it.

        By default it has the weight of one process, however many pods it contains.
        """
        if self.version is CgroupVersion.V2:
            _write_file(self.root / name / "cpu.weight", str(_DEFAULT_WEIGHT * processes))
        elif "cpu" in self.controllers:
            _write_file(self.root / "cpu" / name / "cpu.shares", str(_DEFAULT_SHARES * processes))

    def _create_v2(self, name: str) -> None:
        delegated = (*REQUIRED_CONTROLLERS, "io", "hugetlb")
        tokens = [f"+{controller}" for controller in delegated if controller in self.controllers]
        folder = self.root
        for part in ("", *Path(name).parts):
            folder = folder / part
            folder.mkdir(exist_ok=True)
            for token in tokens:
                _write_file(folder / "cgroup.subtree_control", token)

    def _fill_cpuset(self, folder: Path) -> None:
        """Copy CPUs and memory nodes from the parent: a new v1 cpuset has none and accepts no process."""
        for key in ("cpuset.cpus", "cpuset.mems"):
            if (folder / key).read_text().strip():
                continue
            parent = folder.parent / key
            if not parent.read_text().strip():
                self._fill_cpuset(folder.parent)
            _write_file(folder / key, parent.read_text().strip())

    def list_existing_folders(self, name: str) -> tuple[Path, ...]:
        """Return the folders of the cgroup `name` that exist."""
        return tuple(folder for folder in self.list_folders(name) if folder.exists())

    def list_processes(self, name: str) -> tuple[int, ...]:
        """Return the host ids of all processes below the cgroup `name`."""
        pids: set[int] = set()
        for folder in self.list_existing_folders(name):
            for listing in folder.rglob("cgroup.procs"):
                pids.update(_read_process_ids(listing))
        return tuple(sorted(pids))

    def remove(self, name: str, timeout_s: float = REMOVAL_TIMEOUT_S) -> None:
        """Remove the cgroup `name` and all below it; wait for processes that are still ending.

        Raises LocalClusterError with the folders and processes that remain after `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        while self.list_existing_folders(name):
            for folder in self.list_existing_folders(name):
                _remove_tree(folder)
            if time.monotonic() > deadline:
                folders = ", ".join(map(str, self.list_existing_folders(name)))
                pids = ", ".join(map(str, self.list_processes(name))) or "none"
                raise LocalClusterError(
                    f"cgroup folders stay after {timeout_s:g} s: {folders} (processes: {pids})"
                )
            time.sleep(POLL_INTERVAL_S)


def _remove_tree(folder: Path) -> None:
    """Remove `folder` and its children, deepest first, except those that still have processes."""
    for path in _list_deepest_first(folder):
        with contextlib.suppress(OSError):
            path.rmdir()


def _list_deepest_first(folder: Path) -> Sequence[Path]:
    folders = [Path(path) for path, _, _ in os.walk(folder)]
    return sorted(folders, key=lambda path: len(path.parts), reverse=True)


def _read_process_ids(listing: Path) -> Iterable[int]:
    try:
        return [int(word) for word in listing.read_text().split()]
    except OSError:
        return []


def _write_file(path: Path, value: str) -> None:
    try:
        path.write_text(value)
    except OSError as error:
        raise LocalClusterError(
            f"cannot write {value!r} to {path}: {error.strerror}; the machine must let root delegate this controller"
        ) from error
