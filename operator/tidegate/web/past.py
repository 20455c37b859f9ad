"""Fills the charts' time before this process from Prometheus, in the background: no page waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Final, TypeAlias

from tidegate.api.meta import ObjectKey
from tidegate.telemetry.pool_series import Moment
from tidegate.web.history import WINDOW, History

STEP: Final = timedelta(minutes=1)
"""From one value to the next: 240 of each series at most."""
EVERY_S: Final = 30.0
_UNTIL_LOOKED_S: Final = 1.0
"""How soon to look again while no pool is known."""
_OVERLAP: Final = 3 * STEP
"""Asked for again each time: what is a minute old may have been scraped only since."""

PastSource: TypeAlias = Callable[[str, datetime, datetime, timedelta], Awaitable[Sequence[Moment] | None]]
"""What was known of the pool of that name every step from a time to a time; None where nobody answers."""


class Past:
    """Asks `source` about each pool: for the whole window at first, and then for what came since."""

    def __init__(self, history: History, source: PastSource | None, now: Callable[[], datetime]) -> None:
        self._history = history
        self._source = source
        self._now = now

    @property
    def known(self) -> bool:
        """Whether anybody is asked at all."""
        return self._source is not None

    async def keep(self) -> None:
        """Asks again and again; a task of the process."""
        while True:
            await self.ask()
            await asyncio.sleep(EVERY_S if self._history.pools() else _UNTIL_LOOKED_S)

    async def ask(self) -> None:
        """Asks once about each pool, one after the other. Who does not answer is asked nothing more this time."""
        if self._source is None:
            return
        pools, answers = self._history.pools(), True
        for pool in pools:
            answers = answers and await self._ask(pool, self._source)
            if not answers:
                self._history.silent(pool)

    async def _ask(self, pool: ObjectKey, source: PastSource) -> bool:
        end = _whole_steps(self._now())
        begin = max(self._history.told_until(pool) or end - WINDOW, end - WINDOW)
        found = await source(pool.name, begin, end, STEP)
        if found is None:
            return False
        self._history.told(pool, found, end - _OVERLAP)
        return True


def _whole_steps(at: datetime) -> datetime:
    """Rounded down, so that the same times are asked for again."""
    seconds = STEP.total_seconds()
    return datetime.fromtimestamp(at.timestamp() // seconds * seconds, at.tzinfo)
