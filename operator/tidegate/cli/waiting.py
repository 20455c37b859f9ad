"""Wait until what a command reads has settled, and write its progress."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final, Protocol, TypeVar

from tidegate.errors import RetryableError

LOOK_EVERY_S: Final = 1.0
STALLED_FOR_S: Final = 10.0
"""How long an object may be stalled before waiting ends: a missing object may be applied just after it."""


class Watched(Protocol):
    """A status to wait for."""

    @property
    def settled(self) -> bool:
        """Return whether there is nothing left to wait for."""
        ...

    @property
    def hopeless(self) -> bool:
        """Return whether waiting alone changes nothing."""
        ...

    def headline(self) -> str:
        """Summarise the state in one line."""
        ...


WatchedT = TypeVar("WatchedT", bound=Watched)


async def settled(
    look: Callable[[], Awaitable[WatchedT]],
    patience: timedelta,
    say: Callable[[str], None],
    *,
    every_s: float = LOOK_EVERY_S,
    stalled_for_s: float = STALLED_FOR_S,
) -> WatchedT:
    """Read until the status settles, is stalled for `stalled_for_s`, or `patience` runs out; return the last one.

    `say` gets a line whenever the headline changes. Retryable errors of the API server only delay the next read.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience.total_seconds()
    last: WatchedT | None = None
    last_line, stalled_since = "", float("inf")
    while True:
        now = loop.time()
        try:
            last = await look()
        except RetryableError as error:
            if now >= deadline:
                raise
            line = str(error)
        else:
            line = last.headline()
            stalled_since = min(stalled_since, now) if last.hopeless else float("inf")
            if last.settled or now >= deadline or now - stalled_since >= stalled_for_s:
                return last
        if line != last_line:
            last_line = line
            say(line)
        await asyncio.sleep(min(every_s, max(deadline - loop.time(), 0.0)))
