"""Cancel work whose order is no longer the newest."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


async def run_unless(changed: asyncio.Event, work: Coroutine[Any, Any, Result]) -> Result | None:
    """Await the work, or cancel it and return None when the event is set first."""
    task = asyncio.ensure_future(work)
    change = asyncio.ensure_future(changed.wait())
    try:
        await asyncio.wait({task, change}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        change.cancel()
        if not task.done():
            task.cancel()
        await asyncio.gather(task, change, return_exceptions=True)
    return None if task.cancelled() else task.result()
