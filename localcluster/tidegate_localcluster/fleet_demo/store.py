"""Save etcd's data of a filled fleet, so that the next fleet of the same kind starts from it.

A thousand Inferences and their pods are some forty thousand writes, in sequence from the same few processes.
The data are real: API server, scheduler and controllers wrote them, and the next ones read them as after a restart.
"""

import hashlib
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tidegate_localcluster.commands import run_checked
from tidegate_localcluster.state import ClusterPlan, StateDir

MIN_INFERENCES: Final = 200
"""With fewer Inferences filling a fleet takes no longer than restoring it."""
FOLDER: Final = "fleets"
_CODE: Final = (
    *(f"operator/tidegate/{name}" for name in ("allocation", "api", "planning", "resources")),
    "controllers",
    *(
        f"localcluster/tidegate_localcluster/fleet_demo/{name}.py"
        for name in ("agents", "kubelet", "objects", "workload")
    ),
)
"""Code that decides the objects of a filled fleet."""
_OBJECTS: Final = ("crds", "charts/tidegate/files", "charts/tidegate/templates")


class FilledFleet:
    """One kind of fleet in the cache: that of a plan, of this source tree, with these programs."""

    def __init__(self, home: Path, root: Path, plan: ClusterPlan) -> None:
        """Compute the name; only the source tree at `root` is read."""
        self._cache = home / FOLDER
        self._folder = self._cache / _compute_key(root, plan)
        self._worth_saving = plan.fleet is not None and plan.fleet.inferences >= MIN_INFERENCES
        self._fresh = plan.fleet is not None and plan.fleet.fresh

    def restore_data(self, files: StateDir) -> bool:
        """Restore the data before etcd starts; return False if there are none or `fresh` is set."""
        if self._fresh or not self._folder.is_dir():
            return False
        files.control_plane.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, target in _saved_folders(files):
            run_checked("cp", "-a", "--sparse=always", self._folder / name, target)
        return True

    def save_data(self, files: StateDir, etcd: int) -> None:
        """Save the data of etcd, the process with this id, and delete those of other fleets.

        The process is stopped meanwhile: what it has written by then is what it would read after a crash.
        """
        if not self._worth_saving or (self._folder.is_dir() and not self._fresh):
            return
        partial = self._folder.with_name(f"{self._folder.name}.{os.getpid()}.partial")
        partial.mkdir(mode=0o700, parents=True)
        try:
            os.kill(etcd, signal.SIGSTOP)
            try:
                for name, source in _saved_folders(files):
                    run_checked("cp", "-a", "--sparse=always", source, partial / name)
            finally:
                os.kill(etcd, signal.SIGCONT)
            for folder in self._cache.iterdir():
                if folder != partial:
                    shutil.rmtree(folder)
            partial.rename(self._folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def _saved_folders(files: StateDir) -> Iterator[tuple[str, Path]]:
    """Yield the folders that belong together: etcd's data, and the certificates that some objects carry."""
    yield "etcd", files.control_plane / "etcd"
    yield "tls", files.data / "tls"


def _compute_key(root: Path, plan: ClusterPlan) -> str:
    """Return a digest of all that decides the objects: code, CRDs, programs, and the size of the fleet."""
    digest = hashlib.sha256()
    fleet = plan.fleet
    if fleet is not None:
        digest.update(f"{fleet.nodes} {fleet.inferences} {fleet.seed}".encode())
    for name, binary in sorted(plan.binaries.items()):
        digest.update(f"{name} {binary}".encode())
    roots = [root / name for name in (*_CODE, *_OBJECTS)]
    files = [
        path
        for root_path in roots
        for path in (root_path, *root_path.rglob("*.*"))
        if path.suffix in {".py", ".yaml"} and path.is_file()
    ]
    for path in sorted(files):
        digest.update(str(path.relative_to(root)).encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
