"""Time as a parameter: the interface that the runtime needs, and the system's clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol


class Timer(Protocol):
    """Call that is due later."""

    def cancel(self) -> None:
        """Drop the call."""
        ...


class Clock(Protocol):
    """Wall time for people, monotonic time for decisions."""

    def now(self) -> datetime:
        """Return the wall time in UTC."""
        ...

    def monotonic(self) -> float:
        """Return seconds since an arbitrary moment; they never go back."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait for `seconds`."""
        ...

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Call `callback` on the event loop after `seconds`."""
        ...


class SystemClock:
    """Clock of the machine."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        return asyncio.get_running_loop().call_later(seconds, callback)
