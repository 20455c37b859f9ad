"""What a fault does to the lines of one watch: drops, delays, repeats, reorders, cuts, says 410, falls silent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import aiohttp

from faults.injections import WatchDeed, WatchFault

Send = Callable[[bytes], Awaitable[None]]

GONE: Final = {
    "type": "ERROR",
    "object": {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": "too old resource version: the sweep said so",
        "reason": "Expired",
        "code": 410,
    },
}


class CutError(Exception):
    """The connection is to end now, without the end of the stream being said."""


@dataclass(slots=True)
class ArmedWatch:
    """A watch fault and how many events of its resource this run has brought so far, over all connections."""

    fault: WatchFault
    seen: int = 0
    fired: bool = False

    def strikes(self, resource: str, line: bytes) -> bool:
        """Whether this is the event; bookmarks are none."""
        if self.fired or resource != self.fault.resource or b'"type":"BOOKMARK"' in line[:40]:
            return False
        self.seen += 1
        self.fired = self.seen == self.fault.at
        return self.fired


class WatchPump:
    """Sends the lines of one watch on, until they end or the fault ends them."""

    def __init__(self, resource: str, send: Send, armed: Callable[[], ArmedWatch | None]) -> None:
        self._resource = resource
        self._send = send
        self._armed = armed
        self._lines: asyncio.Queue[bytes | None] = asyncio.Queue()

    async def run(self, lines: AsyncIterator[bytes]) -> None:
        """Returns when the server has ended the watch. Raises CutError where the fault breaks the connection off."""
        reading = asyncio.create_task(self._read(lines))
        try:
            while (line := await self._lines.get()) is not None:
                armed = self._armed()
                if armed is not None and armed.strikes(self._resource, line):
                    await self._strike(armed.fault, line)
                else:
                    await self._send(line)
        finally:
            reading.cancel()

    async def _read(self, lines: AsyncIterator[bytes]) -> None:
        try:
            async for line in lines:
                self._lines.put_nowait(line)
        except (aiohttp.ClientError, OSError):
            pass  # the API server went away: to the operator that is the end of the stream
        finally:
            self._lines.put_nowait(None)

    async def _strike(self, fault: WatchFault, line: bytes) -> None:
        match fault.deed:
            case WatchDeed.DROP:
                await self._pass_on_for(fault.hold_s)
                await self._gone()
            case WatchDeed.DELAY:
                await asyncio.sleep(fault.hold_s)
                await self._send(line)
            case WatchDeed.DUPLICATE:
                await self._send(line)
                await self._send(line)
            case WatchDeed.REORDER:
                await self._behind_the_next(fault, line)
            case WatchDeed.CUT:
                await self._send(line[: len(line) // 2])
                raise CutError
            case WatchDeed.GONE:
                await self._gone()
            case WatchDeed.STALL:
                await asyncio.sleep(fault.hold_s)
                raise CutError
            case WatchDeed.BLIND:
                await asyncio.sleep(fault.hold_s)
                await self._gone()

    async def _behind_the_next(self, fault: WatchFault, line: bytes) -> None:
        try:
            following = await asyncio.wait_for(self._lines.get(), fault.hold_s)
        except TimeoutError:
            following = b""
        if following is None:
            self._lines.put_nowait(None)
        elif following:
            await self._send(following)
        await self._send(line)

    async def _pass_on_for(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                while (line := await self._lines.get()) is not None:
                    await self._send(line)
        except TimeoutError:
            return

    async def _gone(self) -> None:
        await self._send(json.dumps(GONE).encode() + b"\n")
        raise CutError
