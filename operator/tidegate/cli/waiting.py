"""Waits until what is looked at is as it should be, and says on the way how far it is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final, Protocol, TypeVar

from tidegate.errors import RetryableError

LOOK_EVERY_S: Final = 1.0
STALLED_FOR_S: Final = 10.0
"""So long something has to be stalled before nobody waits for it any more: what it lacks may be applied just after it."""


class Watched(Protocol):
    """What can be waited for."""

    @property
    def settled(self) -> bool:
        """Whether there is nothing left to wait for."""
        ...

    @property
    def hopeless(self) -> bool:
        """Whether waiting alone changes nothing."""
        ...

    def headline(self) -> str:
        """Where it stands, in a line."""
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
    """What it was like at the last look: settled, stalled for a while, or as it was when patience ran out.

    `say` gets a line whenever that changes. An API server that is away for a moment is asked again.
    """
    clock = asyncio.get_running_loop()
    ends = clock.time() + patience.total_seconds()
    last: WatchedT | None = None
    told, stalled_since = "", float("inf")
    while True:
        now = clock.time()
        try:
            last = await look()
        except RetryableError as error:
            if now >= ends:
                raise
            line = str(error)
        else:
            line = last.headline()
            stalled_since = min(stalled_since, now) if last.hopeless else float("inf")
            if last.settled or now >= ends or now - stalled_since >= stalled_for_s:
                return last
        if line != told:
            told = line
            say(line)
        await asyncio.sleep(min(every_s, max(ends - clock.time(), 0.0)))
