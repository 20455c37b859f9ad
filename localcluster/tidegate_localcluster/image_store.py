"""A store of unpacked images that outlives clusters: a new node gets hard links instead of unpacking archives.

No process changes a file of an unpacked layer, so nodes can share it; containerd's small databases are copied.
A separate containerd fills the store. Use it in the mount namespace of a cluster before its root is swapped: hard
links cannot cross mounts, and the mounts of the unpacking must not reach the machine.
"""

import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tidegate_localcluster.commands import run_checked
from tidegate_localcluster.errors import LocalClusterError
from tidegate_localcluster.locks import hold_lock
from tidegate_localcluster.process import ChildProcess, wait_until
from tidegate_localcluster.progress import Progress
from tidegate_localcluster.state import Image

START_TIMEOUT_S = 30.0
CONFIGURATION = """\
version = 3
root = "{folder}/containerd"
state = "{folder}/state"
disabled_plugins = ["io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri",
                    "io.containerd.nri.v1.nri"]

[grpc]
  address = "{folder}/socket"
"""


class ImageStore:
    """The store in `folder`; `binaries` has containerd and ctr."""

    def __init__(self, folder: Path, binaries: Mapping[str, Path]) -> None:
        """Point to the store; create nothing yet."""
        self._folder = folder
        self._current, self._partial = folder / "current", folder / "partial"
        self._binaries = binaries

    def seed_node(self, images: Mapping[str, Image], target: Path, progress: Progress) -> None:
        """Create containerd's folder of a node in `target`, with all `images` and perhaps more.

        Raises LocalClusterError when `target` lies on another file system, or an image cannot be unpacked.
        """
        with hold_lock(self._folder / "lock", task="unpacking images", progress=progress):
            target.parent.mkdir(parents=True, exist_ok=True)
            self._check_linkable(target.parent)
            self._fill_store(images, progress)
            link_containerd_folder(self._current / "containerd", target)

    def _check_linkable(self, folder: Path) -> None:
        probe, link = self._folder / "lock", folder / "probe"
        try:
            link.hardlink_to(probe)
        except OSError as error:
            raise LocalClusterError(
                f"no hard link from {self._folder} to {folder}: {error.strerror}"
            ) from error
        link.unlink()

    def _fill_store(self, images: Mapping[str, Image], progress: Progress) -> None:
        unpacked = self._read_references()
        missing = {name: image for name, image in images.items() if unpacked.get(name) != image.ref}
        if not missing:
            return
        shutil.rmtree(self._partial, ignore_errors=True)
        self._partial.mkdir(parents=True)
        if unpacked:
            link_containerd_folder(self._current / "containerd", self._partial / "containerd")
        self._unpack_images(missing, unpacked, progress)
        refs = {**unpacked, **{name: image.ref for name, image in images.items()}}
        (self._partial / "images.json").write_text(json.dumps(refs))
        run_checked("rm", "-rf", "--one-file-system", self._current)
        self._partial.rename(self._current)

    def _read_references(self) -> Mapping[str, str]:
        """Return the references of the unpacked images by name."""
        try:
            refs: dict[str, str] = json.loads((self._current / "images.json").read_text())
        except (FileNotFoundError, ValueError):
            return {}
        return refs

    def _unpack_images(
        self, images: Mapping[str, Image], unpacked: Mapping[str, str], progress: Progress
    ) -> None:
        settings = self._partial / "config.toml"
        settings.write_text(CONFIGURATION.format(folder=self._partial))
        containerd = ChildProcess(
            "containerd-store",
            [self._binaries["containerd"], "--config", settings],
            log=self._partial / "containerd.log",
        )
        containerd.start()
        try:
            wait_until(
                lambda: self._is_containerd_ready(),
                description="the image store's containerd answers",
                processes=[containerd],
                timeout_s=START_TIMEOUT_S,
            )
            for name, image in images.items():
                progress(f"unpacking {image.ref}")
                self._run_ctr("import", "--local", "--index-name", image.ref, str(image.archive))
                if name in unpacked:
                    self._run_ctr("remove", "--sync", unpacked[name])
        finally:
            containerd.stop()

    def _is_containerd_ready(self) -> bool:
        command = [str(self._binaries["ctr"]), "--address", str(self._partial / "socket"), "version"]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def _run_ctr(self, *arguments: str) -> None:
        run_checked(
            self._binaries["ctr"],
            "--address",
            self._partial / "socket",
            "--namespace",
            "k8s.io",
            "images",
            *arguments,
        )


def link_containerd_folder(source: Path, target: Path) -> None:
    """Copy a folder with hard links for its files and real copies of its databases.

    Raises LocalClusterError when links are impossible; then `target` does not exist.
    """
    try:
        run_checked("cp", "--archive", "--link", source, target)
        for database in target.rglob("*.db"):
            copy = database.with_name(f"{database.name}.copy")
            shutil.copy2(database, copy)
            copy.replace(database)
    except (LocalClusterError, OSError):
        shutil.rmtree(target, ignore_errors=True)
        raise
