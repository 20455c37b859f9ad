"""Keeps what etcd had when a fleet was filled, so that the next fleet of the same kind begins there.

A thousand Inferences and their pods are some forty thousand writes, one after the other from the same few processes.
What is kept is real: the API server, the scheduler and the controllers made it, and the next ones find it as after a restart.
"""

import hashlib
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tidegate_localcluster.commands import run_checked
from tidegate_localcluster.state import Plan, StateDir

WORTHWHILE: Final = 200
"""With fewer Inferences a fleet is filled as soon as it is restored."""
FOLDER: Final = "fleets"
_CODE: Final = (
    *(f"operator/tidegate/{name}" for name in ("allocation", "api", "planning", "resources")),
    "controllers",
    *(
        f"localcluster/tidegate_localcluster/fleet_demo/{name}.py"
        for name in ("agents", "kubelet", "objects", "workload")
    ),
)
"""What decides how the objects of a filled fleet look."""
_OBJECTS: Final = ("crds", "charts/tidegate/files", "charts/tidegate/templates")


class FilledFleet:
    """One kind of fleet in the cache: that of a plan, by this source tree, on these programs."""

    def __init__(self, home: Path, root: Path, plan: Plan) -> None:
        """Name it; nothing is read or written but the source tree at `root`."""
        self._shelf = home / FOLDER
        self._folder = self._shelf / _key(root, plan)
        self._wanted = plan.fleet is not None and plan.fleet.inferences >= WORTHWHILE
        self._fresh = plan.fleet is not None and plan.fleet.fresh

    def restore(self, files: StateDir) -> bool:
        """Begin where it ended, before etcd is started; False where there is nothing of the kind, or it is not wanted."""
        if self._fresh or not self._folder.is_dir():
            return False
        files.control_plane.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, place in _parts(files):
            run_checked("cp", "-a", "--sparse=always", self._folder / name, place)
        return True

    def keep(self, files: StateDir, etcd: int) -> None:
        """Keep what etcd, the process of this number, has now; another fleet's is thrown away for it.

        It stands still meanwhile: what it has written by then is what a killed one would find again.
        """
        if not self._wanted or (self._folder.is_dir() and not self._fresh):
            return
        partial = self._folder.with_name(f"{self._folder.name}.{os.getpid()}.partial")
        partial.mkdir(mode=0o700, parents=True)
        try:
            os.kill(etcd, signal.SIGSTOP)
            try:
                for name, place in _parts(files):
                    run_checked("cp", "-a", "--sparse=always", place, partial / name)
            finally:
                os.kill(etcd, signal.SIGCONT)
            for other in self._shelf.iterdir():
                if other != partial:
                    shutil.rmtree(other)
            partial.rename(self._folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def _parts(files: StateDir) -> Iterator[tuple[str, Path]]:
    """What belongs together: the objects, and the certificates that some of them carry."""
    yield "etcd", files.control_plane / "etcd"
    yield "tls", files.data / "tls"


def _key(root: Path, plan: Plan) -> str:
    """Changes with everything that could make other objects: the code, the CRDs, the programs, and how many there are."""
    digest = hashlib.sha256()
    fleet = plan.fleet
    if fleet is not None:
        digest.update(f"{fleet.nodes} {fleet.inferences} {fleet.seed}".encode())
    for name, binary in sorted(plan.binaries.items()):
        digest.update(f"{name} {binary}".encode())
    places = [root / name for name in (*_CODE, *_OBJECTS)]
    files = [
        path
        for place in places
        for path in (place, *place.rglob("*.*"))
        if path.suffix in {".py", ".yaml"} and path.is_file()
    ]
    for path in sorted(files):
        digest.update(str(path.relative_to(root)).encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
