"""Finds the programs of the local cluster on this machine, or downloads, builds or unpacks them."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tidegate_localcluster.debian import DebianPackages
from tidegate_localcluster.downloads import Downloads
from tidegate_localcluster.errors import BinaryUnavailableError, LocalClusterError
from tidegate_localcluster.go_build import GoBuild
from tidegate_localcluster.locks import hold_lock
from tidegate_localcluster.programs import PROGRAMS, SCRATCH_PREFIX, Program
from tidegate_localcluster.progress import Progress

VERSION_TIMEOUT_S = 10.0


def default_home() -> Path:
    """Return the cache folder: TIDEGATE_HOME, else ~/.cache/tidegate."""
    return Path(os.environ.get("TIDEGATE_HOME") or Path.home() / ".cache" / "tidegate").absolute()


class ProgramSource(Protocol):
    """A way to get programs into the cache."""

    def program_path(self, program: Program) -> Path:
        """Return the path where `provide` puts `program`, whether it exists or not."""
        ...

    def provide(self, programs: Sequence[Program], progress: Progress) -> None:
        """Put the programs that this source has into the cache; raises LocalClusterError."""
        ...


@dataclass(frozen=True, slots=True)
class SourceOption:
    """A source, its name in messages, and why it is off (None: it is on)."""

    name: str
    source: ProgramSource
    disabled_reason: str | None = None


class Binaries:
    """Paths of programs, found in TIDEGATE_BIN, KUBEBUILDER_ASSETS, PATH or the cache, else made by a source.

    Programs in TIDEGATE_BIN are used without a check; in the other folders they must have the pinned version.
    """

    def __init__(
        self,
        home: Path | None = None,
        environment: Mapping[str, str] | None = None,
        options: Sequence[SourceOption] | None = None,
    ) -> None:
        """Use the cache folder `home` and the variables of `environment`; by default the user's own."""
        self.home = (home or default_home()).absolute()
        self._environment = os.environ if environment is None else environment
        self._options = tuple(options) if options is not None else self._default_options()

    def find(self, names: Iterable[str]) -> Mapping[str, Path]:
        """Return the paths of the programs that exist already, by name; get none."""
        located = {name: self._find_program(_look_up_program(name))[0] for name in names}
        return {name: path for name, path in located.items() if path is not None}

    def ensure(self, names: Iterable[str], progress: Progress) -> Mapping[str, Path]:
        """Return a path for each of `names`; get what is missing, which takes minutes the first time.

        Raises BinaryUnavailableError, which names every source that was tried and why it failed.
        """
        requested = tuple(dict.fromkeys(names))
        paths = dict(self.find(requested))
        if len(paths) == len(requested):
            return paths
        with hold_lock(self.home / "binaries.lock", task="getting programs", progress=progress):
            for leftover in self.home.glob(f"*/{SCRATCH_PREFIX}*"):
                shutil.rmtree(leftover, ignore_errors=True)
            failures: list[str] = []
            for option in self._options:
                paths = dict(self.find(requested))
                missing = [_look_up_program(name) for name in requested if name not in paths]
                if missing and option.disabled_reason is not None:
                    failures.append(f"{option.name}: {option.disabled_reason}")
                elif missing:
                    try:
                        option.source.provide(missing, progress)
                    except (LocalClusterError, OSError) as error:
                        failures.append(f"{option.name}: {error}")
            paths = dict(self.find(requested))
        missing = [_look_up_program(name) for name in requested if name not in paths]
        if missing:
            raise BinaryUnavailableError(self._explain_missing(missing, failures))
        return paths

    def _default_options(self) -> Sequence[SourceOption]:
        downloads = Downloads(self.home / "downloads")
        enabled = self._environment.get("TIDEGATE_DOWNLOAD") == "1"
        return (
            SourceOption(
                "download", downloads, None if enabled else "off; TIDEGATE_DOWNLOAD=1 switches it on"
            ),
            SourceOption("build", GoBuild(self.home / "bin", self.home / "go")),
            SourceOption("Debian packages", DebianPackages(self.home / "debian")),
        )

    def _find_program(self, program: Program) -> tuple[Path | None, Sequence[str]]:
        """Return the path of `program` (None if there is none), and why each earlier place was passed over."""
        reasons: list[str] = []
        for variable in ("TIDEGATE_BIN", "KUBEBUILDER_ASSETS", "PATH"):
            folders = self._environment.get(variable)
            if not folders:
                reasons.append(f"{variable} is not set")
            elif (candidate := shutil.which(program.name, path=folders)) is None:
                reasons.append(f"{variable} does not have it")
            elif variable == "TIDEGATE_BIN" or (reason := _find_mismatch(program, Path(candidate))) is None:
                return Path(candidate).absolute(), reasons
            else:
                reasons.append(f"{variable}: {reason}")
        for option in self._options:
            cached = option.source.program_path(program)
            if cached.exists():
                return cached, reasons
        reasons.append(f"{self.home} does not have it")
        return None, reasons

    def _explain_missing(self, missing: Sequence[Program], failures: Sequence[str]) -> str:
        lines = [f"no way to get {', '.join(map(str, missing))}:"]
        lines += [f"  {program}: {'; '.join(self._find_program(program)[1])}" for program in missing]
        lines += [f"  {failure}" for failure in failures]
        lines.append("Put the programs into a folder and name it with TIDEGATE_BIN.")
        return "\n".join(lines)


def _look_up_program(name: str) -> Program:
    try:
        return PROGRAMS[name]
    except KeyError:
        raise BinaryUnavailableError(f"no program {name!r}; there are {', '.join(PROGRAMS)}") from None


def _find_mismatch(program: Program, path: Path) -> str | None:
    """Return why the program at `path` does not have the accepted version; None when it does."""
    if program.accepted_version is None:
        return f"{path} may be another program of that name"
    if program.accepted_version == "":
        return None
    try:
        result = subprocess.run(
            [path, *program.version_arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=VERSION_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{path} does not run: {error}"
    end = "" if program.accepted_version.endswith(".") else r"(?![\w.-])"
    if re.search(rf"(?<![\d.]){re.escape(program.accepted_version)}{end}", result.stdout) is not None:
        return None
    first_line = (result.stdout or result.stderr).strip().partition("\n")[0]
    return f"{path} says {first_line!r}, {program.accepted_version} is needed"
