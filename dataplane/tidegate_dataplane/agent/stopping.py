"""Run the parts of a process until SIGTERM or SIGINT."""

import asyncio
import signal
from collections.abc import Callable, Coroutine
from threading import Event
from typing import Any

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def watch_stop_signals() -> asyncio.Event:
    """Return an event of the running loop that a signal to stop sets."""
    stop = asyncio.Event()
    for name in STOP_SIGNALS:
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    return stop


def catch_stop_signals() -> Event:
    """Return an event that a signal to stop sets, for a process without a loop."""
    stop = Event()

    def request_stop(number: int, frame: object) -> None:
        del number, frame
        stop.set()

    for name in STOP_SIGNALS:
        signal.signal(name, request_stop)
    return stop


def is_task_cancelled() -> bool:
    """Return whether the current task was cancelled; a CancelledError without that is one of what the task has awaited."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def run_until(stop: asyncio.Event, *parts: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run the parts until `stop` is set; a part that fails ends the process, and what started it starts another."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_run_part(part)) for part in parts]
        await stop.wait()
        for task in tasks:
            task.cancel()


async def _run_part(part: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a part; a TaskGroup takes a CancelledError of what the part has awaited for the end of the part."""
    try:
        await part()
    except asyncio.CancelledError as error:
        if is_task_cancelled():
            raise
        raise RuntimeError(
            "a part of the process has ended with the cancellation of what it awaited"
        ) from error
