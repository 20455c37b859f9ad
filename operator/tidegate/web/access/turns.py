"""Lets a bounded number of callers in at a time, in turn by key: who asks often waits behind those who ask seldom."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class Turns:
    """At most `at_once` together; of those who wait, one of each key after the other."""

    def __init__(self, at_once: int) -> None:
        self._free = at_once
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @asynccontextmanager
    async def turn(self, key: str) -> AsyncGenerator[None]:
        """Wait until it is the key's turn, which lasts as long as the block."""
        await self._enter(key)
        try:
            yield
        finally:
            self._pass_on()

    async def _enter(self, key: str) -> None:
        if self._free:
            self._free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # given in the same moment
                self._pass_on()
            raise

    def _pass_on(self) -> None:
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
