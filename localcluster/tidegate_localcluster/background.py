"""Runs one piece of long work beside another, and ends it early when the other fails."""

import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from tidegate_localcluster.errors import LocalClusterError
from tidegate_localcluster.progress import Progress

Result = TypeVar("Result")


class BackgroundWorkStoppedError(LocalClusterError):
    """Background work was stopped because the work beside it failed or was interrupted."""


@contextmanager
def run_beside(work: Callable[[Progress], Result], progress: Progress) -> Generator[Future[Result]]:
    """Run `work` in a thread during the block, and wait for it at the end of the block.

    If the block raises, the next line of progress of `work` raises BackgroundWorkStoppedError there. Commands of
    `run_with_progress` report every few seconds and end their process then. What `work` raises comes from
    `result` of the future, and at the end of the block unless that raises itself.
    """
    stopped = threading.Event()

    def report_line(line: str) -> None:
        if stopped.is_set():
            raise BackgroundWorkStoppedError("stopped, since the work beside it failed")
        progress(line)

    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="beside") as executor:
        future = executor.submit(work, report_line)
        try:
            yield future
        except BaseException:
            stopped.set()
            raise
        future.result()
