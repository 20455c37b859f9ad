"""The cluster that several stages share: started at the beginning of the run, ended after the last of them."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from fixtures.sharing import STATE_DIR_VARIABLE

NOT_HERE: Final = 3
"""Exit code where this machine cannot have a cluster: tests on it are skipped with the reason."""
SPENT: Final = "cluster-processor.json"
"""Among the results: processor seconds by program of the cluster, written when it ends."""
_PROGRAM: Final = Path(__file__).resolve().parents[1] / "shared_cluster.py"


@dataclass(slots=True)
class SharedCluster:
    """The cluster as `tests/run.py` sees it."""

    wait_until_up: Callable[[], tuple[bool, str]] = lambda: (True, "")
    """Once that is known, returns a line for the user, and False where the cluster should be up and is not."""
    give_up: Callable[[], None] = lambda: None
    """Ends the start of the cluster, where it is not up yet."""
    find_end: Callable[[], str] = lambda: ""
    """Returns why it has ended before it was told to; empty while it runs."""
    end: Callable[[], None] = lambda: None
    """Ends it, before the block does: an idle cluster takes a third of a core from the stages that go on."""
    remains: str = ""
    """What it has left on the machine; known when it has ended."""


@contextmanager
def shared_cluster(log: Path) -> Generator[SharedCluster]:
    """Start a cluster beside the block, for pytest processes that the block starts, and end it.

    The block waits for it before the first test that needs it. One that the user names in TIDEGATE_E2E_STATE_DIR is
    used, and left running; the tests start it where it does not run.
    """
    if os.environ.get(STATE_DIR_VARIABLE):
        yield SharedCluster(lambda: (True, f"== cluster: {os.environ[STATE_DIR_VARIABLE]}"))
        return
    # Sockets lie in it, whose paths may have no more than about 100 characters.
    folder = Path(tempfile.mkdtemp(prefix="tidegate-e2e-"))
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("")
    up = _run_logged("up", folder, log)

    def wait_until_up() -> tuple[bool, str]:
        if up.wait() == 0:
            return True, "== cluster: up"
        return up.returncode == NOT_HERE, f"== cluster: not started\n{log.read_text()[-2000:]}"

    def find_end() -> str:
        if up.poll() != 0:  # it never ran: its tests were skipped, or their stage has failed for that
            return ""
        with tempfile.TemporaryFile("w+") as said:
            if _run("check", folder, said).wait() == 0:
                return ""
            said.seek(0)
            return said.read().strip() or "its supervisor has written nothing"

    has_ended = False

    def end() -> None:
        nonlocal has_ended
        if has_ended:
            return
        has_ended = True
        up.terminate()
        up.wait()
        if _run_logged("down", folder, log).wait() != 0:
            shared.remains = log.read_text()[-2000:]

    shared = SharedCluster(wait_until_up, give_up=up.terminate, find_end=find_end, end=end)
    os.environ[STATE_DIR_VARIABLE] = str(folder)
    try:
        yield shared
    finally:
        end()
        # Not before: the other lane copies the environment for each of its processes.
        del os.environ[STATE_DIR_VARIABLE]


def _run_logged(action: str, folder: Path, log: Path) -> subprocess.Popen[bytes]:
    with log.open("a") as output:
        return _run(action, folder, output)


def _run(action: str, folder: Path, output: IO[str]) -> subprocess.Popen[bytes]:
    """Start the program in a session of its own: an impatient Ctrl-C must not end it halfway."""
    command = [sys.executable, str(_PROGRAM), action, str(folder)]
    return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
