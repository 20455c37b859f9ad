"""Builds the base root file system of every image: Debian with Python, by debootstrap, without a registry."""

import hashlib
import json
import os
import shutil
import tarfile
from collections.abc import Mapping
from pathlib import Path

from tidegate_localcluster.buildah import IN_MOUNT_NAMESPACE
from tidegate_localcluster.progress import Progress, run_with_progress

SUITE = "bookworm"
# The Python backend of Triton needs libpython and the whole standard library; python3 brings the latter.
PACKAGES = ("ca-certificates", "libpython3.11", "python3")
# Not installed, but downloaded beside the base, for images that contain only one program of them.
DOWNLOADED_PACKAGES = ("prometheus",)
DEFAULT_MIRROR = "http://deb.debian.org/debian"
# Increase it when this module builds something else from the same packages.
REVISION = 1

# debian:12-slim lacks these as well.
REMOVED_PATHS = (
    "etc/hostname",
    "etc/resolv.conf",
    "usr/share/info",
    "usr/share/locale",
    "usr/share/man",
    "var/cache/apt",
    "var/lib/apt/lists",
    "var/log",
)


class BaseSystem:
    """The base root file system, built once into a folder below `home` that is named after its build inputs."""

    def __init__(self, home: Path, environment: Mapping[str, str] = os.environ) -> None:
        """Use the mirror named by TIDEGATE_DEBIAN_MIRROR, else Debian's own."""
        self._parent = home / "rootfs"
        self._mirror = environment.get("TIDEGATE_DEBIAN_MIRROR", DEFAULT_MIRROR)

    @property
    def inputs_key(self) -> str:
        """Return a hash, in 12 hex digits, of suite, package lists, removed paths and REVISION.

        The mirror and the versions of its packages are not part of it.
        """
        inputs = json.dumps([REVISION, SUITE, PACKAGES, DOWNLOADED_PACKAGES, REMOVED_PATHS])
        return hashlib.sha256(inputs.encode()).hexdigest()[:12]

    @property
    def archive_path(self) -> Path:
        """Return the path of the tar of the root file system, which exists only after `ensure`."""
        return self._parent / self.inputs_key / "base.tar"

    def package_path(self, name: str) -> Path:
        """Return the path of one of DOWNLOADED_PACKAGES, which exists only after `ensure`."""
        return self._parent / self.inputs_key / f"{name}.deb"

    def ensure(self, progress: Progress) -> None:
        """Build the base unless it exists; raises CommandFailedError with the mirror when it is unreachable."""
        if self.archive_path.exists():
            return
        partial = self._parent / f"{self.inputs_key}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        root = partial / "root"
        root.mkdir(parents=True)
        self._run_debootstrap(root, progress)
        self._download_packages(root, partial, progress)
        remove_unneeded_files(root)
        _write_archive(root, partial / "base.tar")
        shutil.rmtree(root)
        shutil.rmtree(self.archive_path.parent, ignore_errors=True)
        partial.rename(self.archive_path.parent)

    def _run_debootstrap(self, root: Path, progress: Progress) -> None:
        options = ["--variant=minbase", f"--include={','.join(PACKAGES)}"]
        run_with_progress(
            [*IN_MOUNT_NAMESPACE, "debootstrap", *options, SUITE, root, self._mirror],
            task=f"making the Debian {SUITE} base from {self._mirror} (another mirror: TIDEGATE_DEBIAN_MIRROR)",
            progress=progress,
        )

    def _download_packages(self, root: Path, target: Path, progress: Progress) -> None:
        for name in DOWNLOADED_PACKAGES:
            run_with_progress(
                ["chroot", root, "sh", "-c", 'cd /tmp && apt-get -q download "$1"', "sh", name],
                task=f"downloading Debian's {name}",
                progress=progress,
            )
            (archive,) = (root / "tmp").glob(f"{name}_*.deb")
            archive.rename(target / f"{name}.deb")


def remove_unneeded_files(root: Path) -> None:
    """Remove what no container needs: caches, documentation, translations, the host's resolver."""
    for name in REMOVED_PATHS:
        path = root / name
        if path.is_dir():
            for child in path.iterdir():
                shutil.rmtree(child) if child.is_dir() and not child.is_symlink() else child.unlink()
        else:
            path.unlink(missing_ok=True)
    for document in (root / "usr/share/doc").glob("*/*"):
        if document.name != "copyright":
            shutil.rmtree(document) if document.is_dir() and not document.is_symlink() else document.unlink()


def _write_archive(root: Path, target: Path) -> None:
    def without_devices(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        return None if member.isdev() and not member.isfile() else member

    with tarfile.open(target, "w") as tar:
        tar.add(root, arcname=".", filter=without_devices)
