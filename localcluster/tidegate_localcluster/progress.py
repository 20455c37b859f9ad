"""Runs long commands and reports their progress line by line."""

import os
import select
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from tidegate_localcluster.errors import LocalClusterError

Progress = Callable[[str], None]
"""A function that shows one line to the user who waits."""

REPORT_EVERY_S = 5.0
LAST_LINES = 8


class CommandFailedError(LocalClusterError):
    """A command failed; the message contains the end of its output."""


def run_with_progress(
    command: Sequence[str | Path],
    *,
    task: str,
    progress: Progress,
    reason: str = "",
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
    describe: Callable[[Sequence[str]], str] = lambda lines: lines[-1],
) -> Sequence[str]:
    """Run `command` and return the lines that it wrote to stdout and stderr.

    `progress` gets `task` and `reason` at once, then every few seconds `task`, the elapsed seconds and, once there is
    output, `describe(lines)`. `environment` replaces ours when given. Raises CommandFailedError.
    """
    started = time.monotonic()
    lines: list[str] = []
    progress(f"{task} ({reason})" if reason else task)
    try:
        child = subprocess.Popen(
            [str(argument) for argument in command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=directory,
        )
    except OSError as error:
        raise CommandFailedError(f"{task}: {command[0]} could not be run: {error}") from error
    with child:
        try:
            assert child.stdout is not None  # noqa: S101  PIPE above; narrows for the type checkers
            reported = started
            for line in _read_lines(child.stdout, REPORT_EVERY_S):
                if line is not None:
                    lines.append(line)
                now = time.monotonic()
                if now - reported >= REPORT_EVERY_S:
                    reported = now
                    progress(f"{task}: {now - started:.0f} s {describe(lines) if lines else ''}".rstrip())
        except BaseException:
            child.terminate()
            raise
    if child.returncode != 0:
        output = "\n".join(f"    {line}" for line in lines[-LAST_LINES:])
        raise CommandFailedError(f"{task}: {command[0]} ended with exit status {child.returncode}\n{output}")
    progress(f"{task}: done in {time.monotonic() - started:.0f} s")
    return tuple(lines)


def _read_lines(stream: IO[bytes], timeout_s: float) -> Iterator[str | None]:
    """Yield every line of `stream`, and None after each `timeout_s` without output."""
    rest = b""
    while True:
        if not select.select([stream], [], [], timeout_s)[0]:
            yield None
            continue
        block = os.read(stream.fileno(), 65536)
        if not block:
            break
        *complete, rest = (rest + block).split(b"\n")
        for line in complete:
            yield line.decode(errors="replace")
    if rest:
        yield rest.decode(errors="replace")
