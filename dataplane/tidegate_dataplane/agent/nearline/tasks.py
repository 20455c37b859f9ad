"""Tasks that must end when they are told to."""

import asyncio
import contextlib
from collections.abc import Collection
from typing import Any, Final

import structlog

log = structlog.get_logger()

TOLD_EVERY_S: Final = 0.5
TOLD_TIMES: Final = 4


async def ended(tasks: Collection["asyncio.Task[Any]"]) -> None:
    """Cancel until all are done, for TOLD_EVERY_S * TOLD_TIMES at most; how they ended is not looked at.

    Once is not enough: `asyncio.wait_for` of Python 3.11, which the broker's client waits with, drops a cancellation
    that comes together with the answer, and the task goes on as if nobody had told it anything.
    """
    waiting = {task for task in tasks if not task.done()}
    for _ in range(TOLD_TIMES):
        if not waiting:
            break
        for task in waiting:
            task.cancel()
        _, waiting = await asyncio.wait(waiting, timeout=TOLD_EVERY_S)
    for task in tasks:
        if task in waiting:
            log.error("task_goes_on", task=task.get_name())
        else:
            with contextlib.suppress(asyncio.CancelledError):
                task.exception()  # seen, or Python complains of it later
