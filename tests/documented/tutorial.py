"""Does what a tutorial says: saves its files, types its commands in one shell, and looks for what it says is printed."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from documented.pages import ROOT, Block, blocks_of
from documented.shell import lines

PAGE = ROOT / "docs" / "tutorial" / "first-model.md"
_MARK = "\n== step\n"
_START = "set -euo pipefail\nshopt -s expand_aliases\n"


class MismatchError(AssertionError):
    """A step fails, or does not print what the page says."""


def steps(text: str, page: str) -> list[Block]:
    """What the reader saves and types, in order."""
    return [block for block in blocks_of(text, page) if block.file or block.language == "console"]


def run(of: Sequence[Block], folder: Path, environment: Mapping[str, str], *, timeout_s: float) -> list[str]:
    """What each block of commands printed, in `folder`. Raises MismatchError at the first that is not as the page says."""
    typed = []
    for block in of:
        if block.file:
            (folder / block.file).write_text(block.text)
        else:
            typed.append(block)
    script = _START + "".join(
        f"printf %s {shlex.quote(_MARK)}\n" + "\n".join(lines(each)) + "\n" for each in typed
    )
    code, said, complaints = _bash(script, folder, environment, timeout_s)
    printed = said.split(_MARK)[1:]
    if code != 0:
        outcome = f"is not done after {timeout_s:.0f} s" if code is None else "failed"
        raise MismatchError(
            f"{typed[len(printed) - 1].where} {outcome}: {printed[-1][-2000:]}\n{complaints[-2000:]}"
        )
    for block, output in zip(typed, printed, strict=True):
        missing = [line for line in _promised(block) if line not in output.splitlines()]
        if missing:
            raise MismatchError(f"{block.where} does not print {missing}, but: {output}")
    return printed


def _promised(block: Block) -> list[str]:
    """What the page says is printed: lines that are typed in nobody's name."""
    found, goes_on = [], False
    for line in block.text.splitlines():
        if not (line.startswith("$ ") or goes_on):
            found.append(line)
        goes_on = line.endswith("\\") and (line.startswith("$ ") or goes_on)
    return found


def _bash(
    script: str, folder: Path, environment: Mapping[str, str], timeout_s: float
) -> tuple[int | None, str, str]:
    """Its exit status, what it printed and what it complained of; it and all that it started end with the time.

    The status is None if the time has ended it.
    """
    with subprocess.Popen(
        ["bash", "-c", script],
        cwd=folder,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as shell:
        try:
            said, complaints = shell.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(shell.pid, signal.SIGTERM)
            return None, *shell.communicate()
        if shell.returncode:
            # What it left in the background is of no use to anybody.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGTERM)
        return shell.returncode, said, complaints
