"""Downloads programs from their projects' release pages and checks each against its published sha256.

Off unless TIDEGATE_DOWNLOAD=1: the tests cover the build, which gives the same versions.
"""

import hashlib
import platform
import shutil
import tarfile
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

from tidegate_localcluster.errors import BinaryUnavailableError
from tidegate_localcluster.programs import Program, ProgramRelease
from tidegate_localcluster.progress import REPORT_EVERY_S, Progress

TIMEOUT_S = 10.0
BLOCK_BYTES = 1 << 20
ARCHITECTURES: Mapping[str, str] = {"x86_64": "amd64", "aarch64": "arm64"}
SCHEMES = frozenset({"https"})


class Downloads:
    """A source that downloads programs into a folder per version."""

    def __init__(self, cache: Path, schemes: frozenset[str] = SCHEMES) -> None:
        """Download into folders below `cache`; `schemes` are the allowed schemes of URLs."""
        self._cache = cache
        self._schemes = schemes

    def program_path(self, program: Program) -> Path:
        """Return the path where `provide` puts `program`, whether it exists or not."""
        version = program.release.version if program.release is not None else "none"
        return self._cache / f"{program.name}-{version}-{platform.machine()}" / program.name

    def provide(self, programs: Sequence[Program], progress: Progress) -> None:
        """Download the programs that have a release; raises BinaryUnavailableError at the first failure."""
        archives: dict[str, Path] = {}
        with tempfile.TemporaryDirectory(prefix="tidegate-download-") as scratch:
            for program in programs:
                if program.release is not None:
                    url = self._fill_template(program.release.url, program.release)
                    if url not in archives:
                        archives[url] = self._fetch_archive(url, program.release, Path(scratch), progress)
                    self._place_program(program, program.release, archives[url])

    def _fill_template(self, template: str, release: ProgramRelease) -> str:
        machine = platform.machine()
        if machine not in ARCHITECTURES:
            raise BinaryUnavailableError(f"no releases for {machine}, only for {', '.join(ARCHITECTURES)}")
        return template.format(version=release.version, architecture=ARCHITECTURES[machine])

    def _fetch_archive(self, url: str, release: ProgramRelease, directory: Path, progress: Progress) -> Path:
        name = url.rsplit("/", 1)[-1]
        target = directory / hashlib.sha256(url.encode()).hexdigest()
        checksums = self._read_url(self._fill_template(release.checksums, release)).decode()
        expected = _find_checksum(checksums, name)
        target.write_bytes(self._read_url(url, name=name, progress=progress))
        actual = hashlib.sha256(target.read_bytes()).hexdigest()
        if actual != expected:
            raise BinaryUnavailableError(f"{url} has sha256 {actual}, published is {expected}")
        return target

    def _read_url(self, url: str, *, name: str = "", progress: Progress = lambda _: None) -> bytes:
        if urllib.parse.urlsplit(url).scheme not in self._schemes:
            raise BinaryUnavailableError(f"{url} is not fetched: only {', '.join(self._schemes)} is")
        started = reported = time.monotonic()
        content = bytearray()
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT_S) as response:  # noqa: S310  the scheme is checked
                while block := response.read(BLOCK_BYTES):
                    content += block
                    now = time.monotonic()
                    if now - reported >= REPORT_EVERY_S:
                        reported = now
                        progress(f"downloading {name}: {len(content) >> 20} MiB ({now - started:.0f} s)")
        except OSError as error:
            raise BinaryUnavailableError(f"{url} could not be downloaded: {error}") from error
        return bytes(content)

    def _place_program(self, program: Program, release: ProgramRelease, file: Path) -> None:
        target = self.program_path(program)
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f"{target.name}.partial")
        if release.member is None:
            shutil.copyfile(file, partial)
        else:
            _extract_member(file, self._fill_template(release.member, release), partial)
        partial.chmod(0o755)
        partial.replace(target)


def _extract_member(archive: Path, member: str, target: Path) -> None:
    try:
        with tarfile.open(archive) as opened:
            content = opened.extractfile(member)
            if content is None:
                raise BinaryUnavailableError(f"{member} in {archive.name} is no file")
            with target.open("wb") as file:
                shutil.copyfileobj(content, file)
    except (KeyError, tarfile.TarError) as error:
        raise BinaryUnavailableError(f"{member} cannot be read from the archive: {error}") from error


def _find_checksum(checksums: str, name: str) -> str:
    """Return the sha256 of `name` from a file that contains it alone, or beside file names."""
    for line in checksums.splitlines():
        fields = line.split()
        if len(fields) == 1 or (len(fields) > 1 and fields[1].lstrip("*").rsplit("/", 1)[-1] == name):
            return fields[0].lower()
    raise BinaryUnavailableError(f"no sha256 of {name} is published beside it")
