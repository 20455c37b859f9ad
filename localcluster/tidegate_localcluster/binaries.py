"""Finds the programs of the local cluster on this machine, or gets them."""

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
from tidegate_localcluster.locks import exclusively
from tidegate_localcluster.programs import PROGRAMS, SCRATCH_PREFIX, Program
from tidegate_localcluster.progress import Progress

VERSION_TIMEOUT_S = 10.0


def default_home() -> Path:
    """The cache folder: TIDEGATE_HOME, else ~/.cache/tidegate."""
    return Path(os.environ.get("TIDEGATE_HOME") or Path.home() / ".cache" / "tidegate").absolute()


class Source(Protocol):
    """A way to get programs into the cache."""

    def path(self, program: Program) -> Path:
        """Where it puts `program`; it may not be there yet."""
        ...

    def provide(self, programs: Sequence[Program], progress: Progress) -> None:
        """Put those of `programs` that it has there; raises LocalClusterError."""
        ...


@dataclass(frozen=True, slots=True)
class Way:
    """A source, its name in messages, and why it is not used (None when it is)."""

    name: str
    source: Source
    off: str | None = None


class Binaries:
    """Looks in TIDEGATE_BIN, KUBEBUILDER_ASSETS, PATH and the cache; else downloads, builds or unpacks.

    A folder named by TIDEGATE_BIN is trusted as it is; elsewhere a program must have the pinned version.
    """

    def __init__(
        self,
        home: Path | None = None,
        environment: Mapping[str, str] | None = None,
        ways: Sequence[Way] | None = None,
    ) -> None:
        """Use the cache folder `home` and the variables of `environment`; by default the user's own."""
        self.home = (home or default_home()).absolute()
        self._environment = os.environ if environment is None else environment
        self._ways = tuple(ways) if ways is not None else self._usual_ways()

    def find(self, names: Iterable[str]) -> Mapping[str, Path]:
        """Those of `names` that are here already, without getting any."""
        places = {name: self._look(_program(name)) for name in names}
        return {name: found for name, (found, _) in places.items() if found is not None}

    def ensure(self, names: Iterable[str], progress: Progress) -> Mapping[str, Path]:
        """A path for each of `names`; gets what is missing, which takes minutes the first time.

        Raises BinaryUnavailableError, which names every way that was tried and why it failed.
        """
        wanted = tuple(dict.fromkeys(names))
        found = dict(self.find(wanted))
        if len(found) == len(wanted):
            return found
        with exclusively(self.home / "binaries.lock", what="getting programs", progress=progress):
            for leftover in self.home.glob(f"*/{SCRATCH_PREFIX}*"):
                shutil.rmtree(leftover, ignore_errors=True)
            failures: list[str] = []
            for way in self._ways:
                found = dict(self.find(wanted))
                missing = [_program(name) for name in wanted if name not in found]
                if missing and way.off is not None:
                    failures.append(f"{way.name}: {way.off}")
                elif missing:
                    try:
                        way.source.provide(missing, progress)
                    except (LocalClusterError, OSError) as error:
                        failures.append(f"{way.name}: {error}")
            found = dict(self.find(wanted))
        missing = [_program(name) for name in wanted if name not in found]
        if missing:
            raise BinaryUnavailableError(self._explain(missing, failures))
        return found

    def _usual_ways(self) -> Sequence[Way]:
        downloads = Downloads(self.home / "downloads")
        wished = self._environment.get("TIDEGATE_DOWNLOAD") == "1"
        return (
            Way("download", downloads, None if wished else "off; TIDEGATE_DOWNLOAD=1 switches it on"),
            Way("build", GoBuild(self.home / "bin", self.home / "go")),
            Way("Debian packages", DebianPackages(self.home / "debian")),
        )

    def _look(self, program: Program) -> tuple[Path | None, Sequence[str]]:
        """Where `program` is, and why it is not in the places before."""
        refusals: list[str] = []
        for variable in ("TIDEGATE_BIN", "KUBEBUILDER_ASSETS", "PATH"):
            folders = self._environment.get(variable)
            if not folders:
                refusals.append(f"{variable} is not set")
            elif (there := shutil.which(program.name, path=folders)) is None:
                refusals.append(f"{variable} does not have it")
            elif variable == "TIDEGATE_BIN" or (refusal := _refusal(program, Path(there))) is None:
                return Path(there).absolute(), refusals
            else:
                refusals.append(f"{variable}: {refusal}")
        for way in self._ways:
            cached = way.source.path(program)
            if cached.exists():
                return cached, refusals
        refusals.append(f"{self.home} does not have it")
        return None, refusals

    def _explain(self, missing: Sequence[Program], failures: Sequence[str]) -> str:
        lines = [f"no way to get {', '.join(map(str, missing))}:"]
        lines += [f"  {program}: {'; '.join(self._look(program)[1])}" for program in missing]
        lines += [f"  {failure}" for failure in failures]
        lines.append("Put the programs into a folder and name it with TIDEGATE_BIN.")
        return "\n".join(lines)


def _program(name: str) -> Program:
    try:
        return PROGRAMS[name]
    except KeyError:
        raise BinaryUnavailableError(f"no program {name!r}; there are {', '.join(PROGRAMS)}") from None


def _refusal(program: Program, path: Path) -> str | None:
    """Why the program at `path` is not the one we need; None when it is."""
    if program.accepted is None:
        return f"{path} may be another {program.name}"
    if program.accepted == "":
        return None
    try:
        answer = subprocess.run(
            [path, *program.version_arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=VERSION_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{path} does not run: {error}"
    end = "" if program.accepted.endswith(".") else r"(?![\w.-])"
    if re.search(rf"(?<![\d.]){re.escape(program.accepted)}{end}", answer.stdout) is not None:
        return None
    said = (answer.stdout or answer.stderr).strip().partition("\n")[0]
    return f"{path} says {said!r}, {program.accepted} is needed"
