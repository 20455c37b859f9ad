"""A lock between processes, so that nothing is built twice at once."""

import contextlib
import fcntl
import os
from collections.abc import Generator
from pathlib import Path

from tidegate_localcluster.progress import Progress


@contextlib.contextmanager
def exclusively(path: Path, *, what: str, progress: Progress) -> Generator[None]:
    """Hold the lock file `path` for a block; says which process it waits for, and that it does `what`.

    The kernel gives the lock back when its holder dies, so a left-over file locks nobody out.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            progress(f"waiting for process {file.read().strip() or '?'}, which is {what}")
            fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        file.truncate()
        file.write(str(os.getpid()))
        file.flush()
        yield
