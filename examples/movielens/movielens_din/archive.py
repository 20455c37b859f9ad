"""Gets MovieLens-100k: finds, downloads and checks the recbole wheel that carries it.

The ratings belong to GroupLens and are licensed for research; they are read from the wheel, never copied into
this repository, and must not be redistributed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

REQUIREMENT: Final = "recbole==1.2.1"
WHEEL: Final = "recbole-1.2.1-py3-none-any.whl"
WHEEL_SHA256: Final = "9c9948202011f37eb0a7c6768129313f00d6403ad221ec940d5e2d5d5f33a407"
DOWNLOAD_TIMEOUT_S: Final = 300.0


class ArchiveError(RuntimeError):
    """The wheel could not be had, or is not the one that was pinned."""


@dataclass(frozen=True, slots=True)
class Downloader:
    """A pip that this machine has, and the command that runs it."""

    name: str
    command: tuple[str, ...]


def cache_root() -> Path:
    """The cache folder that every part of Tidegate shares: TIDEGATE_HOME, else ~/.cache/tidegate."""
    return Path(os.environ.get("TIDEGATE_HOME") or Path.home() / ".cache" / "tidegate")


def sha256_of(path: Path) -> str:
    """Hex digest of a file's content."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def downloaders() -> tuple[Downloader, ...]:
    """Every way to run `pip download` here, best first; a uv environment has no pip of its own."""
    found: list[Downloader] = []
    if importlib.util.find_spec("pip") is not None:
        found.append(Downloader("pip of this Python", (sys.executable, "-m", "pip")))
    uv = shutil.which("uv")
    if uv is not None:
        found.append(Downloader("pip through uv", (uv, "tool", "run", "--quiet", "pip")))
    found.extend(
        Downloader(path, (path,)) for name in ("pip3", "pip") if (path := shutil.which(name)) is not None
    )
    return tuple(found)


def fetch_wheel(home: Path) -> Path:
    """The pinned wheel in the cache, downloaded if it is not there yet (2 MB).

    Raises ArchiveError naming what was tried when it cannot be had or its checksum is another one.
    """
    target = home / "downloads" / WHEEL
    if target.exists() and sha256_of(target) == WHEEL_SHA256:
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    tried: list[str] = []
    for downloader in downloaders():
        refusal = _download(downloader, target)
        if refusal is None:
            return target
        tried.append(f"{downloader.name}: {refusal}")
    raise ArchiveError(
        f"{REQUIREMENT} carries the MovieLens ratings and could not be downloaded; tried "
        f"{'; '.join(tried) or 'nothing: neither pip nor uv was found on PATH'}. "
        f"Put {WHEEL} (sha256 {WHEEL_SHA256}) into {target.parent} to go on without a network."
    )


def _download(downloader: Downloader, target: Path) -> str | None:
    """Fetches the wheel beside its target and moves it there when its checksum is right; else says why not."""
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        command = [*downloader.command, "download", "--quiet", "--no-deps", "--dest", folder, REQUIREMENT]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        if done.returncode != 0:
            return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        wheel = Path(folder) / WHEEL
        if not wheel.exists():
            return f"it left no {WHEEL}"
        found = sha256_of(wheel)
        if found != WHEEL_SHA256:
            return f"sha256 is {found}, pinned is {WHEEL_SHA256}"
        wheel.replace(target)
        return None
