"""Wait until what a command reads has settled, and write its progress."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final, Protocol, TypeVar

from tidegate.errors import RetryableError

POLL_INTERVAL_S: Final = 1.0
STALLED_TIMEOUT_S: Final = 10.0
"""How long an object may be stalled before waiting ends: a missing object may be applied just after it."""


class Waitable(Protocol):
    """A status to wait for."""

    @property
    def settled(self) -> bool:
        """Return whether there is nothing left to wait for."""
        ...

    @property
    def stalled(self) -> bool:
        """Return whether waiting alone changes nothing."""
        ...

    def headline(self) -> str:
        """Summarise the state in one line."""
        ...


WaitableT = TypeVar("WaitableT", bound=Waitable)


async def wait_until_settled(
    read: Callable[[], Awaitable[WaitableT]],
    max_wait: timedelta,
    write_line: Callable[[str], None],
    *,
    interval_s: float = POLL_INTERVAL_S,
    stalled_for_s: float = STALLED_TIMEOUT_S,
) -> WaitableT:
    """Read until the status settles, is stalled for `stalled_for_s`, or `max_wait` ends; return the last one.

    `write_line` gets a line whenever the headline changes. Retryable errors of the API server only delay the next read.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + max_wait.total_seconds()
    last: WaitableT | None = None
    last_line, stalled_since = "", float("inf")
    while True:
        now = loop.time()
        try:
            last = await read()
        except RetryableError as error:
            if now >= deadline:
                raise
            line = str(error)
        else:
            line = last.headline()
            stalled_since = min(stalled_since, now) if last.stalled else float("inf")
            if last.settled or now >= deadline or now - stalled_since >= stalled_for_s:
                return last
        if line != last_line:
            last_line = line
            write_line(line)
        await asyncio.sleep(min(interval_s, max(deadline - loop.time(), 0.0)))
