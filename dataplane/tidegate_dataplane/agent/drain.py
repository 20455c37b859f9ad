"""Draining: readiness goes first, then the agent waits until nobody asks the pod anything any more."""

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

import structlog

log = structlog.get_logger()

LOOK_EVERY_S = 0.2


class Requests(Protocol):
    """What draining needs of Triton."""

    async def request_count(self) -> int | None:
        """Return how many requests were handled so far; None without a server."""
        ...


class Drain:
    """Whether the pod is on its way out.

    As a native sidecar the agent is told to stop after Triton has ended, and then there is nobody to wait for.
    """

    def __init__(
        self,
        requests: Requests,
        *,
        quiet_s: float,
        limit_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._requests = requests
        self._quiet_s = quiet_s
        self._limit_s = limit_s
        self._clock = clock
        self.active = False

    async def run(self) -> None:
        """Turn readiness off and wait until no request has come for `quiet_s`, `limit_s` at most."""
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
        log.info("drained", requests=count, seconds=round(self._clock() - started, 1))
