"""Unpacks programs from Debian packages into the cache, without installing them."""

import hashlib
import os
import platform
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tidegate_localcluster.errors import BinaryUnavailableError
from tidegate_localcluster.programs import SCRATCH_PREFIX, Program
from tidegate_localcluster.progress import CommandFailedError, Progress, run_with_progress

ROOT_USER = 0


class DebianPackages:
    """A source that unpacks packages with `apt-get download` and `dpkg-deb`; apt checks their signatures.

    A program with libraries of its own is started by a two-line script that points the loader at them.
    """

    def __init__(self, cache: Path) -> None:
        """Unpack into folders below `cache`."""
        self._cache = cache

    def program_path(self, program: Program) -> Path:
        """Return the path where `provide` puts `program`, whether it exists or not."""
        contents = f"{platform.machine()} {program.debian_path} {' '.join(program.debian_packages)}"
        return self._cache / hashlib.sha256(contents.encode()).hexdigest()[:12] / program.name

    def provide(self, programs: Sequence[Program], progress: Progress) -> None:
        """Unpack the programs that Debian has; raises BinaryUnavailableError or CommandFailedError."""
        for program in programs:
            if program.debian_packages:
                self._unpack_program(program, progress)

    def _unpack_program(self, program: Program, progress: Progress) -> None:
        for tool in ("apt-get", "dpkg-deb"):
            if shutil.which(tool) is None:
                raise BinaryUnavailableError(f"{tool} is not on PATH: this is no Debian")
        target = self.program_path(program)
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self._cache, prefix=SCRATCH_PREFIX) as scratch:
            packages = Path(scratch, "packages")
            packages.mkdir()
            self._download_packages(program, packages, progress)
            root = target.parent / "root"
            shutil.rmtree(root, ignore_errors=True)
            for package in sorted(packages.glob("*.deb")):
                run_with_progress(
                    ["dpkg-deb", "--extract", package, root],
                    task=f"unpacking {package.name}",
                    progress=lambda _: None,
                )
            executable = root / program.debian_path
            if not executable.exists():
                raise BinaryUnavailableError(
                    f"/{program.debian_path} is not in {', '.join(program.debian_packages)}"
                )
            start = Path(scratch, program.name)
            if len(program.debian_packages) == 1:
                start.symlink_to(executable)
            else:
                start.write_text(_render_launcher(root, executable))
                start.chmod(0o755)
            start.replace(target)

    def _download_packages(self, program: Program, directory: Path, progress: Progress) -> None:
        def run_download() -> None:
            run_with_progress(
                ["apt-get", "-q", "download", *program.debian_packages],
                task=f"downloading Debian's {program.name}",
                progress=progress,
                directory=directory,
            )

        try:
            run_download()
        except CommandFailedError:
            if os.geteuid() != ROOT_USER:
                raise
            run_with_progress(
                ["apt-get", "-q", "update"], task="updating apt's package lists", progress=progress
            )
            run_download()


def _render_launcher(root: Path, executable: Path) -> str:
    folders = sorted({str(path.parent) for path in root.rglob("*.so*") if path.is_file()})
    return f'#!/bin/sh\nLD_LIBRARY_PATH="{":".join(folders)}" exec "{executable}" "$@"\n'
