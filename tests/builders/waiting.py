"""Waits for a condition with a deadline, instead of sleeping a fixed time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], bool], *, what: str, timeout_s: float = 60.0) -> None:
    """Returns as soon as `condition` holds; fails the test with `what` when it does not in time."""
    try:
        async with asyncio.timeout(timeout_s):
            while not condition():  # noqa: ASYNC110 - the world does not set an Event
                await asyncio.sleep(0.005)
    except TimeoutError:
        message = f"not within {timeout_s} s: {what}"
        raise AssertionError(message) from None
