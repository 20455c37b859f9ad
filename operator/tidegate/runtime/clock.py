"""Time, passed in: what the runtime asks of a clock, and the real one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol


class Timer(Protocol):
    """A call that is due later."""

    def cancel(self) -> None:
        """It will not happen."""
        ...


class Clock(Protocol):
    """Wall time for people, monotonic time for decisions."""

    def now(self) -> datetime:
        """The wall time, in UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds since some moment in the past; never set back."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Waits that long."""
        ...

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Calls `callback` on the event loop after that long."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now(self) -> datetime:
        """See Clock."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """See Clock."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """See Clock."""
        await asyncio.sleep(seconds)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """See Clock."""
        return asyncio.get_running_loop().call_later(seconds, callback)
