"""Cancellation of tasks that may miss it."""

import asyncio
import contextlib
from collections.abc import Collection
from typing import Any, Final

import structlog

log = structlog.get_logger()

CANCEL_INTERVAL_S: Final = 0.5
CANCEL_ATTEMPTS: Final = 4


async def cancel_tasks(tasks: Collection["asyncio.Task[Any]"]) -> None:
    """Cancel until all are done, for a bounded time; results and exceptions are ignored.

    Once is not enough: `asyncio.wait_for` of Python 3.11, which the broker's client uses, drops a cancellation that comes
    together with the answer, and the task continues.
    """
    waiting = {task for task in tasks if not task.done()}
    for _ in range(CANCEL_ATTEMPTS):
        if not waiting:
            break
        for task in waiting:
            task.cancel()
        _, waiting = await asyncio.wait(waiting, timeout=CANCEL_INTERVAL_S)
    for task in tasks:
        if task in waiting:
            log.error("task_goes_on", task=task.get_name())
        else:
            with contextlib.suppress(asyncio.CancelledError):
                task.exception()  # seen, or Python complains of it later
