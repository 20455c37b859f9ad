"""Waits for a condition with a deadline, instead of sleeping a fixed time."""

from __future__ import annotations

import asyncio
import time
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


def at_rest(read: Callable[[], int], *, what: str, for_s: float = 2.0, timeout_s: float = 30.0) -> int:
    """A count once it has not moved for a while, as the base of a difference: a Triton answers before it counts."""
    found, since = read(), time.monotonic()
    deadline = since + timeout_s
    while time.monotonic() - since < for_s:
        if time.monotonic() > deadline:
            message = f"does not rest within {timeout_s} s: {what}, now {found}"
            raise AssertionError(message)
        time.sleep(0.1)
        now = read()
        if now != found:
            found, since = now, time.monotonic()
    return found
