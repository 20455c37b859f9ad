"""A lock between processes, so that two of them never build the same thing at once."""

import contextlib
import fcntl
import os
from collections.abc import Generator
from pathlib import Path

from tidegate_localcluster.progress import Progress


@contextlib.contextmanager
def hold_lock(path: Path, *, task: str, progress: Progress) -> Generator[None]:
    """Hold the lock file `path` for a block; report the process that holds it and its `task`.

    The kernel releases the lock when its holder dies, so a leftover file blocks no process.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            progress(f"waiting for process {file.read().strip() or '?'}, which is {task}")
            fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        file.truncate()
        file.write(str(os.getpid()))
        file.flush()
        yield
