"""Ends a process: work goes on until it is told to stop, and is then cancelled and awaited."""

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any


async def run_until(stop: Coroutine[Any, Any, None], work: Coroutine[Any, Any, None]) -> None:
    """Run `work` until `stop` returns. The first of them to fail ends both and raises."""
    stopping, working = asyncio.ensure_future(stop), asyncio.ensure_future(work)
    try:
        await asyncio.wait({stopping, working}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        failed = [task for task in (working, stopping) if task.done() and not task.cancelled()]
        for task in (working, stopping):
            task.cancel()
        await asyncio.wait({working, stopping})
    for task in failed:
        task.result()


async def wait_for_signal() -> None:
    """Wait for SIGTERM or SIGINT."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await stop.wait()
