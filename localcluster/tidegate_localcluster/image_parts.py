"""The parts of build contexts: each has a fingerprint and stages its files into the context."""

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

from tidegate_localcluster.buildah import WITH_READABLE_UMASK, ImageBuildError, ignore_progress
from tidegate_localcluster.progress import Progress, run_with_progress
from tidegate_localcluster.rootfs import BaseSystem

PYTHON_VERSION = "3.11"
# The C library of Debian 12.
GLIBC = "2_36"
# The image contains all packages in a folder of this name; from other folders it copies a program.
SITE_PACKAGES = "site-packages"


@dataclass(frozen=True, slots=True)
class BuildInputs:
    """The sources, programs and caches from which parts stage their files."""

    source_root: Path
    cache: Path
    base: BaseSystem
    find_binary: Callable[[str], Path]
    progress: Progress


class ContextPart(Protocol):
    """One part of a build context."""

    def compute_fingerprint(self, inputs: BuildInputs) -> str:
        """Return a text that changes exactly when the content does; must be fast."""
        ...

    def stage(self, inputs: BuildInputs, context: Path) -> None:
        """Write the content below `context`."""
        ...


@dataclass(frozen=True, slots=True)
class PythonPackages:
    """The Python packages of a hash-pinned lock, installed beside it as the Dockerfile would do without them."""

    lock: str
    folder: str = SITE_PACKAGES

    def compute_fingerprint(self, inputs: BuildInputs) -> str:
        """Hash the lock and the platform."""
        lock = (inputs.source_root / self.lock).read_text()
        return hash_lines([lock, python_platform()])

    def stage(self, inputs: BuildInputs, context: Path) -> None:
        """Copy the lock, and link the packages from the cache."""
        lock = context / self.lock
        lock.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(inputs.source_root / self.lock, lock)
        lock.chmod(0o644)
        link_tree(self.ensure_installed(inputs), lock.with_name(self.folder))

    def ensure_installed(self, inputs: BuildInputs) -> Path:
        """Install the packages into the cache unless they are there; return their folder."""
        installed = self.installed_folder(inputs)
        if not installed.exists():
            partial = installed.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            self._install_packages(inputs.source_root / self.lock, partial, inputs.progress)
            partial.rename(installed)
        os.utime(installed)
        return installed

    def installed_folder(self, inputs: BuildInputs) -> Path:
        """Return the folder into which `ensure_installed` installs, whether it exists or not."""
        return inputs.cache / "packages" / self.compute_fingerprint(inputs)[:16]

    def _install_packages(self, lock: Path, target: Path, progress: Progress) -> None:
        # A lock names every package, so uv resolves none. Copied, not linked, since we change modes.
        as_locked = ["--no-deps", "--require-hashes", "--only-binary=:all:", "--link-mode=copy"]
        wheels = ["--python-version", PYTHON_VERSION, "--python-platform", python_platform()]
        install = [*WITH_READABLE_UMASK, find_uv(), "pip", "install", "--quiet", "--python", sys.executable]
        run_with_progress(
            [*install, *as_locked, *wheels, "--target", target, "--requirement", lock],
            task=f"installing the packages of {self.lock}",
            progress=progress,
        )
        for path in target.rglob("*"):
            if not path.is_symlink():
                make_readable(path)


@dataclass(frozen=True, slots=True)
class SourceFiles:
    """Files and folders of the repository, at the same paths in the context."""

    paths: tuple[str, ...]

    def compute_fingerprint(self, inputs: BuildInputs) -> str:
        """Hash names, run bits and contents of all files."""
        lines: list[str] = []
        for file in self._list_files(inputs.source_root):
            name = file.relative_to(inputs.source_root).as_posix()
            lines.append(f"{name} {is_executable(file)} {hashlib.sha256(file.read_bytes()).hexdigest()}")
        return hash_lines(lines)

    def stage(self, inputs: BuildInputs, context: Path) -> None:
        """Copy the files with plain modes."""
        for file in self._list_files(inputs.source_root):
            copy = context / file.relative_to(inputs.source_root)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)
            copy.chmod(0o755 if is_executable(file) else 0o644)

    def _list_files(self, root: Path) -> Iterator[Path]:
        for path in self.paths:
            yield from list_source_files(root / path)


@dataclass(frozen=True, slots=True)
class StaticBinary:
    """A static program from `Binaries`."""

    name: str
    target: str

    def compute_fingerprint(self, inputs: BuildInputs) -> str:
        """Hash the program, whose builds are reproducible."""
        with inputs.find_binary(self.name).open("rb") as program:
            return hashlib.file_digest(program, "sha256").hexdigest()

    def stage(self, inputs: BuildInputs, context: Path) -> None:
        """Copy the program with its run bit."""
        target = context / self.target
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(inputs.find_binary(self.name), target)
        target.chmod(0o755)


@dataclass(frozen=True, slots=True)
class DebianFiles:
    """Some files of a Debian package that is downloaded together with the base system."""

    package: str
    paths: tuple[str, ...]

    def compute_fingerprint(self, inputs: BuildInputs) -> str:
        """Hash the names and the base system, which decides the version of the package."""
        return hash_lines([inputs.base.inputs_key, self.package, *self.paths])

    def stage(self, inputs: BuildInputs, context: Path) -> None:
        """Unpack the package and move `paths` to the same paths in the context."""
        unpacked = context / "unpacked"
        run_with_progress(
            ["dpkg-deb", "--extract", inputs.base.package_path(self.package), unpacked],
            task=f"unpacking Debian's {self.package}",
            progress=ignore_progress,
        )
        for path in self.paths:
            target = context / path
            target.parent.mkdir(parents=True, exist_ok=True)
            (unpacked / path).rename(target)
        shutil.rmtree(unpacked)


def find_uv() -> str:
    """Return the path of uv, on PATH or beside our Python; raises ImageBuildError without it."""
    uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
    if uv is None:
        raise ImageBuildError("uv, which fetches the Python packages, is not on PATH: pip install uv")
    return uv


def python_platform() -> str:
    """Return uv's name of the platform whose wheels run on the base system on this machine."""
    return f"{platform.machine()}-manylinux_{GLIBC}"


def read_project_version(source_root: Path) -> str:
    """Return the version in pyproject.toml."""
    version: str = tomllib.loads((source_root / "pyproject.toml").read_text())["project"]["version"]
    return version


def list_source_files(path: Path) -> Iterator[Path]:
    """Yield the files below `path` (or `path` itself) in a fixed order, without byte code."""
    if path.is_file():
        yield path
        return
    for file in sorted(path.rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts and file.suffix != ".pyc":
            yield file


def is_executable(file: Path) -> bool:
    """Return whether the owner may run `file`."""
    return bool(file.stat().st_mode & 0o100)


def make_readable(path: Path) -> None:
    """Let all users read `path`, and run it if its owner may, whatever umask it was written under."""
    mode = path.stat().st_mode
    readable = mode | 0o644 | (0o111 if mode & 0o100 else 0)
    if readable != mode:
        path.chmod(readable)


def link_tree(origin: Path, target: Path) -> None:
    """Hard-link a file or a tree; copy it if the file systems differ."""
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


def hash_lines(lines: Iterable[str]) -> str:
    """Return one SHA-256 over several texts, in hex."""
    return hashlib.sha256(json.dumps(list(lines)).encode()).hexdigest()
