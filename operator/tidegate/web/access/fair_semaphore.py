"""A semaphore that is fair between keys: a key with many waiters does not delay the others."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class FairSemaphore:
    """Semaphore with `at_once` slots; waiting keys get a slot in turn."""

    def __init__(self, slots: int) -> None:
        self._free = slots
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @asynccontextmanager
    async def hold_slot(self, key: str) -> AsyncGenerator[None]:
        """Wait for a slot, and hold it for the block."""
        await self._acquire_slot(key)
        try:
            yield
        finally:
            self._release_slot()

    async def _acquire_slot(self, key: str) -> None:
        if self._free:
            self._free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # the slot was assigned at the same moment
                self._release_slot()
            raise

    def _release_slot(self) -> None:
        while self._waiting:
            key, turns = next(iter(self._waiting.items()))
            turn = turns.popleft()
            if turns:
                self._waiting.move_to_end(key)
            else:
                del self._waiting[key]
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
