"""Draining: readiness goes first, then the agent waits until nobody asks the pod anything any more.

The agent's preStop hook sends it SIGUSR1 as soon as the pod is on its way out; Triton's waits for the file that the
agent leaves when no request has come for a while. So Triton is told to stop when its traffic has really gone, however
long the gateways took to hear of it, and after 20 s at the latest.
"""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import structlog

log = structlog.get_logger()

LOOK_EVERY_S = 0.2
DRAINED_FILE = "drained"
"""In the folder that the agent shares with Triton's container."""


class Requests(Protocol):
    """What draining needs of Triton."""

    async def request_count(self) -> int | None:
        """Return how many requests were handled so far; None without a server."""
        ...


class Drain:
    """Whether the pod is on its way out, and whether its traffic has gone."""

    def __init__(
        self,
        requests: Requests,
        *,
        quiet_s: float,
        limit_s: float,
        done: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._requests = requests
        self._quiet_s = quiet_s
        self._limit_s = limit_s
        self._clock = clock
        self._done = done
        self.active = False
        if done is not None:
            done.unlink(missing_ok=True)

    async def run(self) -> None:
        """Turn readiness off and wait until no request has come for `quiet_s`, `limit_s` at most; once only.

        As a native sidecar the agent is told to stop after Triton has ended, and then there is nobody to wait for.
        """
        if self.active:
            return
        self.active = True
        started = quiet_since = self._clock()
        count = await self._requests.request_count()
        while count is not None and self._clock() - started < self._limit_s:
            await asyncio.sleep(LOOK_EVERY_S)
            latest = await self._requests.request_count()
            if latest is None:
                break
            if latest != count:
                count, quiet_since = latest, self._clock()
            elif self._clock() - quiet_since >= self._quiet_s:
                break
        if self._done is not None:
            self._done.touch()
        log.info("drained", requests=count, seconds=round(self._clock() - started, 1))
