"""Builds Dockerfiles with buildah on a storage of its own: no daemon, and the host's images stay as they are."""

import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from tidegate_localcluster.errors import LocalClusterError
from tidegate_localcluster.progress import CommandFailedError, Progress, run_with_progress

APT_LOCK_TIMEOUT_S = 300

# Program → Debian package. Installed through apt, not unpacked: buildah needs its policy files in /etc/containers,
# debootstrap its scripts in /usr/share.
TOOL_PACKAGES: Mapping[str, str] = {"buildah": "buildah", "debootstrap": "debootstrap"}
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")

# Some commands mount file systems; in a mount namespace of their own they leave none on the host, even when killed.
IN_MOUNT_NAMESPACE = ("unshare", "--mount", "--propagation", "private")
# Another user in the image reads these files, whatever umask the build runs under.
WITH_READABLE_UMASK = ("sh", "-c", 'umask 022 && exec "$@"', "sh")


# buildah puts the number of the stage before it when there are several.
STEP_PATTERN = re.compile(r"(?:\[\d+/\d+\] )?STEP \d+/\d+")


class ImageBuildError(LocalClusterError):
    """An image cannot be built on this machine; the message names what is missing and how to get it."""


def ignore_progress(_line: str) -> None:
    """Discard a progress line: for steps too short to report."""


def ensure_tools(progress: Progress) -> None:
    """Install buildah and debootstrap with apt if they are missing.

    Raises ImageBuildError when that is impossible: not root, or no apt-get.
    """
    missing = sorted({package for program, package in TOOL_PACKAGES.items() if shutil.which(program) is None})
    if not KEYRING.exists():
        missing.append("debian-archive-keyring")
    if os.geteuid() != 0:
        raise ImageBuildError(
            "building images needs root: the base system is made by debootstrap in a chroot. Run it with sudo"
        )
    if not missing:
        return
    packages = " ".join(missing)
    if shutil.which("apt-get") is None:
        raise ImageBuildError(
            f"building images needs {packages}, and there is no apt-get to install them with. "
            "Install them, or build the images with Docker: images/README.md"
        )
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    apt = ["apt-get", "-q", "-o", f"DPkg::Lock::Timeout={APT_LOCK_TIMEOUT_S}"]
    run_with_progress(
        [*apt, "update"], task="updating apt's package lists", progress=progress, environment=environment
    )
    run_with_progress(
        [*apt, "install", "--yes", "--no-install-recommends", *missing],
        task=f"installing {packages} with apt-get: they build the images of the local cluster",
        progress=progress,
        environment=environment,
    )


@dataclass(frozen=True, slots=True)
class DockerfileBuild:
    """A Dockerfile, its build context, and its build arguments."""

    context: Path
    dockerfile: Path
    arguments: Mapping[str, str]
    stages: Mapping[str, str] = field(default_factory=dict[str, str])
    """Images, by stage, that replace the build of a stage."""
    target: str | None = None
    """The stage to build; None is the last one."""


class Buildah:
    """The buildah commands that we need, on a storage below `home`.

    Not for concurrent use: the caller holds a lock. Every method raises CommandFailedError.
    """

    def __init__(self, home: Path) -> None:
        """Use `home`/buildah; nothing is created before the first command."""
        self._directory = home / "buildah"

    def has_image(self, reference: str) -> bool:
        """Return whether the storage contains `reference`."""
        return reference in self._list_references()

    def import_base(self, archive: Path, reference: str, progress: Progress) -> None:
        """Create an image with the one layer `archive`, a tar of a root file system."""
        self._remove_containers()
        container = "tidegate-base"
        self._run_buildah(["from", "--name", container, "scratch"], task="starting the base image")
        self._run_buildah(
            ["add", "--quiet", container, archive, "/"], task=f"importing {archive.name}", progress=progress
        )
        self._run_buildah(["config", "--cmd", "/bin/sh", container], task="setting the base image's command")
        self._run_buildah(
            ["commit", "--quiet", container, reference], task=f"writing {reference}", progress=progress
        )
        self._remove_containers()

    def build_image(self, build: DockerfileBuild, reference: str, progress: Progress) -> None:
        """Build a Dockerfile without network and without pulls; unchanged steps come from the cache."""
        self._remove_containers()
        # vfs copies the whole file system for every layer, so one layer is faster than a cache of layers.
        layers = "--layers=true" if self._storage_driver == "overlay" else "--layers=false"
        options = [layers, "--network=none", "--pull-never", "--identity-label=false"]
        options += [f"--build-arg={name}={value}" for name, value in build.arguments.items()]
        options += [
            f"--build-context={stage}=container-image://{image}" for stage, image in build.stages.items()
        ]
        options += [f"--target={build.target}"] if build.target is not None else []
        self._run_buildah(
            ["bud", *options, "--file", build.dockerfile, "--tag", reference, build.context],
            task=f"building {reference}",
            progress=progress,
        )

    def save_archive(self, reference: str, archive: Path, progress: Progress) -> None:
        """Write `reference` to `archive` in Docker's format, which containerd, Docker and podman load."""
        # Not as an OCI archive: buildah always compresses those, which takes longer than the build itself.
        partial = archive.with_suffix(".partial")
        partial.unlink(missing_ok=True)
        self._run_buildah(
            ["push", "--quiet", reference, f"docker-archive:{partial}:{reference}"],
            task=f"writing {archive.name}",
            progress=progress,
        )
        partial.replace(archive)

    def load_archive(self, archive: Path, progress: Progress) -> None:
        """Put the image of an archive that `save_archive` wrote into the storage, under its reference."""
        self._run_buildah(
            ["pull", "--quiet", f"docker-archive:{archive}"],
            task=f"reading {archive.name}",
            progress=progress,
        )

    def push_image(self, reference: str, target: str, *, plain_http: bool, progress: Progress) -> str:
        """Push `reference` to a registry under the reference `target`, with the credentials of `buildah login`.

        Return the digest that it has there.
        """
        tls = "--tls-verify=false" if plain_http else "--tls-verify=true"
        with tempfile.NamedTemporaryFile("r") as digest:
            self._run_buildah(
                ["push", "--quiet", tls, f"--digestfile={digest.name}", reference, f"docker://{target}"],
                task=f"pushing {target}",
                progress=progress,
            )
            return digest.read().strip()

    def remove_other_tags(self, repository: str, keep: Sequence[str]) -> None:
        """Remove the images of `repository` except those in `keep`, and all layers without an image."""
        for reference in self._list_references():
            if reference.rpartition(":")[0] == repository and reference not in keep:
                self._run_buildah(["rmi", reference], task=f"removing {reference}")
        self._run_buildah(["rmi", "--prune"], task="removing unused layers")

    def _remove_containers(self) -> None:
        """Remove the working containers that interrupted builds left."""
        self._run_buildah(["rm", "--all"], task="clearing up after earlier builds")

    def _list_references(self) -> Sequence[str]:
        return self._run_buildah(["images", "--format", "{{.Name}}:{{.Tag}}"], task="listing images")

    @cached_property
    def _storage_driver(self) -> str:
        """Return `overlay` if the kernel allows it on this file system, else `vfs` (slower, works anywhere)."""
        try:
            self._run_with_driver(
                "overlay", ["info"], task="trying the overlay driver", progress=ignore_progress
            )
        except CommandFailedError:
            return "vfs"
        return "overlay"

    def _run_buildah(
        self, arguments: Sequence[str | Path], *, task: str, progress: Progress = ignore_progress
    ) -> Sequence[str]:
        return self._run_with_driver(self._storage_driver, arguments, task=task, progress=progress)

    def _run_with_driver(
        self, driver: str, arguments: Sequence[str | Path], *, task: str, progress: Progress
    ) -> Sequence[str]:
        settings = {
            "CONTAINERS_STORAGE_CONF": str(self._write_storage_settings(driver)),
            "BUILDAH_ISOLATION": "chroot",
        }
        return run_with_progress(
            [*WITH_READABLE_UMASK, *IN_MOUNT_NAMESPACE, "buildah", *arguments],
            task=task,
            progress=progress,
            environment={**os.environ, **settings},
            describe=_find_current_step,
        )

    def _write_storage_settings(self, driver: str) -> Path:
        """Write the settings that keep buildah out of /var/lib/containers; return their path."""
        # buildah's running state must not survive a reboot, so its folder is named after the boot id.
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        self._directory.mkdir(parents=True, exist_ok=True)
        settings = self._directory / f"{driver}.conf"
        settings.write_text(
            "[storage]\n"
            f'driver = "{driver}"\n'
            f'graphroot = "{self._directory / driver}"\n'
            f'runroot = "{self._directory / "run" / boot}"\n'
        )
        return settings


def _find_current_step(lines: Sequence[str]) -> str:
    """Return the current step of the Dockerfile without its text, or the last line before the first step."""
    steps = [match[0] for line in lines if (match := STEP_PATTERN.match(line)) is not None]
    return steps[-1].lower() if steps else lines[-1]
