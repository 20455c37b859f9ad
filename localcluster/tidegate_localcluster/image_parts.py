"""The parts that build contexts are made of, each with a fingerprint and a way to lay it out."""

import fnmatch
import hashlib
import json
import os
import platform
import shutil
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tidegate_localcluster.buildah import READABLE, ImageBuildError, silently
from tidegate_localcluster.progress import Progress, run_with_progress
from tidegate_localcluster.rootfs import BaseSystem

PYTHON_VERSION = "3.11"
# The C library of Debian 12.
GLIBC = "2_36"
# Folders of the context that the Dockerfiles copy into the image's site-packages.
SITE_PACKAGES = "site-packages"
SOURCE = "source"


@dataclass(frozen=True, slots=True)
class Workshop:
    """Where parts take their material from and keep what took long to make."""

    source_root: Path
    cache: Path
    base: BaseSystem
    binary: Callable[[str], Path]
    progress: Progress


class Part(Protocol):
    """One thing that a build context holds."""

    def fingerprint(self, workshop: Workshop) -> str:
        """A text that changes exactly when the content does; cheap to get."""
        ...

    def stage(self, workshop: Workshop, context: Path) -> None:
        """Lay the content out below `context`."""
        ...


@dataclass(frozen=True, slots=True)
class Packages:
    """Python packages of a hash-pinned lock, or some of the files in them.

    `picks` are (path in the installed tree, path in the context); `excludes` are patterns of paths in the
    installed tree that the image can do without, most of all tests, headers and unused shared libraries.
    """

    lock: str
    picks: tuple[tuple[str, str], ...] = ((".", SITE_PACKAGES),)
    excludes: tuple[str, ...] = ()

    def fingerprint(self, workshop: Workshop) -> str:
        """The lock, the platform and what is picked."""
        lock = (workshop.source_root / self.lock).read_text()
        return digest([lock, python_platform(), *(f"{a}={b}" for a, b in self.picks), *self.excludes])

    def stage(self, workshop: Workshop, context: Path) -> None:
        """Install once into the cache, by fingerprint, and link from there."""
        installed = workshop.cache / "packages" / self.fingerprint(workshop)[:16]
        if not installed.exists():
            partial = installed.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            self._install(workshop.source_root / self.lock, partial, workshop.progress)
            partial.rename(installed)
        os.utime(installed)
        for origin, target in self.picks:
            link_tree(installed / origin, context / target)

    def _install(self, lock: Path, target: Path, progress: Progress) -> None:
        # A lock names every package, so nothing is resolved; copied, because we change modes and delete files.
        strictly = ["--no-deps", "--require-hashes", "--only-binary=:all:", "--link-mode=copy"]
        wheels = ["--python-version", PYTHON_VERSION, "--python-platform", python_platform()]
        install = [*READABLE, find_uv(), "pip", "install", "--quiet", "--python", sys.executable]
        run_with_progress(
            [*install, *strictly, *wheels, "--target", target, "--requirement", lock],
            what=f"installing the packages of {self.lock}",
            progress=progress,
        )
        for path in sorted(target.rglob("*"), reverse=True):
            if any(
                fnmatch.fnmatch(path.relative_to(target).as_posix(), pattern) for pattern in self.excludes
            ):
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
            elif not path.is_symlink():
                make_readable(path)


@dataclass(frozen=True, slots=True)
class Sources:
    """Files and folders of the repository: (path in it, path in the context)."""

    paths: tuple[tuple[str, str], ...]

    def fingerprint(self, workshop: Workshop) -> str:
        """Names, run bits and contents of all files."""
        lines: list[str] = []
        for origin, target in self.paths:
            for file in source_files(workshop.source_root / origin):
                name = file.relative_to(workshop.source_root / origin).as_posix()
                content = hashlib.sha256(file.read_bytes()).hexdigest()
                lines.append(f"{target} {name} {is_executable(file)} {content}")
        return digest(lines)

    def stage(self, workshop: Workshop, context: Path) -> None:
        """Copy the files with plain modes."""
        for origin, target in self.paths:
            root = workshop.source_root / origin
            for file in source_files(root):
                copy = context / target / file.relative_to(root) if root.is_dir() else context / target
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, copy)
                copy.chmod(0o755 if is_executable(file) else 0o644)


@dataclass(frozen=True, slots=True)
class OwnMetadata:
    """The metadata of our own distribution, so that `importlib.metadata` knows our version in the image."""

    def fingerprint(self, workshop: Workshop) -> str:
        """Name and version."""
        return digest(project_name_and_version(workshop.source_root))

    def stage(self, workshop: Workshop, context: Path) -> None:
        """Write the folder that an installer would have written."""
        name, version = project_name_and_version(workshop.source_root)
        folder = context / SOURCE / f"{name}-{version}.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


@dataclass(frozen=True, slots=True)
class Binary:
    """A static program that `binaries.Binaries` provides."""

    name: str
    target: str

    def fingerprint(self, workshop: Workshop) -> str:
        """The content of the program: builds are reproducible."""
        with workshop.binary(self.name).open("rb") as program:
            return hashlib.file_digest(program, "sha256").hexdigest()

    def stage(self, workshop: Workshop, context: Path) -> None:
        """Copy it with its run bit."""
        target = context / self.target
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(workshop.binary(self.name), target)
        target.chmod(0o755)


@dataclass(frozen=True, slots=True)
class DebianFiles:
    """Some files of a Debian package that the base system was downloaded with."""

    package: str
    paths: tuple[str, ...]

    def fingerprint(self, workshop: Workshop) -> str:
        """The base decides the version of the package."""
        return digest([workshop.base.key, self.package, *self.paths])

    def stage(self, workshop: Workshop, context: Path) -> None:
        """Unpack the package and keep the named files, at the same paths."""
        unpacked = context / "unpacked"
        run_with_progress(
            ["dpkg-deb", "--extract", workshop.base.package(self.package), unpacked],
            what=f"unpacking Debian's {self.package}",
            progress=silently,
        )
        for path in self.paths:
            target = context / path
            target.parent.mkdir(parents=True, exist_ok=True)
            (unpacked / path).rename(target)
        shutil.rmtree(unpacked)


def find_uv() -> str:
    """The program uv: on PATH or beside our Python; raises ImageBuildError without it."""
    uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
    if uv is None:
        raise ImageBuildError(
            "staging Python packages for images needs uv, and it is not on PATH: pip install uv"
        )
    return uv


def python_platform() -> str:
    """The platform whose wheels run on the base system on this machine, in uv's words."""
    return f"{platform.machine()}-manylinux_{GLIBC}"


def project_name_and_version(source_root: Path) -> tuple[str, str]:
    """What pyproject.toml says our distribution is called."""
    project = tomllib.loads((source_root / "pyproject.toml").read_text())["project"]
    return project["name"], project["version"]


def source_files(path: Path) -> Iterator[Path]:
    """The files below `path` (or `path` itself) in a fixed order, without byte code."""
    if path.is_file():
        yield path
        return
    for file in sorted(path.rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts and file.suffix != ".pyc":
            yield file


def is_executable(file: Path) -> bool:
    """Whether the owner may run it."""
    return bool(file.stat().st_mode & 0o100)


def make_readable(path: Path) -> None:
    """Let everybody read, and run what the owner may run, whatever umask the file was written under."""
    mode = path.stat().st_mode
    wanted = mode | 0o644 | (0o111 if mode & 0o100 else 0)
    if wanted != mode:
        path.chmod(wanted)


def link_tree(origin: Path, target: Path) -> None:
    """Hard-link a file or a tree, which costs nothing; copy where the file systems differ."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if origin.is_dir():
        shutil.copytree(origin, target, copy_function=_link_or_copy, symlinks=True, dirs_exist_ok=True)
    else:
        _link_or_copy(str(origin), str(target))


def _link_or_copy(origin: str, target: str) -> None:
    try:
        os.link(origin, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(origin, target, follow_symlinks=False)


def digest(lines: Iterable[str]) -> str:
    """One SHA-256 over several texts, in hex."""
    return hashlib.sha256(json.dumps(list(lines)).encode()).hexdigest()
