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


async def run_until(stop: asyncio.Event, *parts: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run the parts until `stop` is set; a part that fails ends the process, and what started it starts another."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(part()) for part in parts]
        await stop.wait()
        for task in tasks:
            task.cancel()
