"""A clock that stands still until a test moves it."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import count


class FakeTimer:
    """A call that is due at a moment of the fake clock."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback: Callable[[], None] | None = callback

    @property
    def cancelled(self) -> bool:
        return self._callback is None

    def cancel(self) -> None:
        self._callback = None

    def fire(self) -> None:
        if self._callback is not None:
            self._callback()


class FakeClock:
    """Implements tidegate.runtime.clock.Clock; `advance` moves both times and lets what is due happen in order."""

    def __init__(self) -> None:
        self._now = datetime(2026, 6, 1, tzinfo=UTC)
        self._monotonic = 1_000.0
        self._timers: list[tuple[float, int, FakeTimer]] = []
        self._order = count()

    @property
    def pending(self) -> int:
        """Number of calls and sleeps that are due later."""
        return sum(not timer.cancelled for _, _, timer in self._timers)

    def now(self) -> datetime:
        return self._now

    def monotonic(self) -> float:
        return self._monotonic

    def call_later(self, seconds: float, callback: Callable[[], None]) -> FakeTimer:
        timer = FakeTimer(callback)
        heapq.heappush(self._timers, (self._monotonic + seconds, next(self._order), timer))
        return timer

    async def sleep(self, seconds: float) -> None:
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = self.call_later(seconds, lambda: None if woken.done() else woken.set_result(None))
        try:
            await woken
        finally:
            timer.cancel()

    async def advance(self, seconds: float) -> None:
        """Moves on by that much, stopping at each timer, and lets everything that wakes up get on with it."""
        end = self._monotonic + seconds
        await settle()
        while self._timers and self._timers[0][0] <= end:
            due, _, timer = heapq.heappop(self._timers)
            self._move_to(max(due, self._monotonic))
            timer.fire()
            await settle()
        self._move_to(end)
        await settle()

    def _move_to(self, monotonic: float) -> None:
        self._now += timedelta(seconds=monotonic - self._monotonic)
        self._monotonic = monotonic


async def settle() -> None:
    """Lets every task run until all wait for something outside; deep enough for our chains of awaits."""
    for _ in range(50):
        await asyncio.sleep(0)
