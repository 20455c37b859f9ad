"""The cluster that several stages share: started beside the stages before them, ended after the last."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from fixtures.sharing import STATE_DIR_VARIABLE

_PROGRAM: Final = Path(__file__).resolve().parents[1] / "shared_cluster.py"


@contextmanager
def shared_cluster(log: Path) -> Generator[Callable[[], str]]:
    """Start a cluster beside the block, for pytest processes that the block starts, and end it.

    The block calls what it is given before the first test that needs the cluster; it returns when the cluster is up,
    or says why it is not, and so do the tests that need it. One that the user names in TIDEGATE_E2E_STATE_DIR is used,
    and left running.
    """
    if os.environ.get(STATE_DIR_VARIABLE):
        yield lambda: f"== cluster: {os.environ[STATE_DIR_VARIABLE]}"
        return
    # Sockets lie in it, whose paths may have no more than about 100 characters.
    folder = Path(tempfile.mkdtemp(prefix="tidegate-e2e-"))
    log.parent.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    with log.open("w") as output:
        up = subprocess.Popen(_command("up", folder), stdout=output, stderr=subprocess.STDOUT)

    def wait_until_up() -> str:
        if up.wait() == 0:
            return f"== cluster: up after {time.monotonic() - started:.0f} s"
        return f"== cluster: not started\n{log.read_text()[-2000:]}"

    os.environ[STATE_DIR_VARIABLE] = str(folder)
    try:
        yield wait_until_up
    finally:
        del os.environ[STATE_DIR_VARIABLE]
        up.terminate()
        up.wait()
        with log.open("a") as output:
            down = subprocess.run(
                _command("down", folder), stdout=output, stderr=subprocess.STDOUT, check=False
            )
    if down.returncode != 0:
        raise RemainsError(log.read_text()[-2000:])


class RemainsError(Exception):
    """The cluster has left something on the machine."""


def _command(action: str, folder: Path) -> list[str]:
    return [sys.executable, str(_PROGRAM), action, str(folder)]
