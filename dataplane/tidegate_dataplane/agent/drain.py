"""Draining: turn readiness off, then wait until the pod receives no more requests.

The agent's preStop hook sends it SIGUSR1 when the pod begins to terminate; Triton's hook waits for the file that the
agent creates after the last request. So Triton stops only after its traffic has ended: after 5 s at the earliest, since
a pod with a request every few seconds is often quiet, and after 20 s at the latest.
A hook that runs because Triton failed a probe finds no sign of a terminating pod, and returns.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

import structlog

log = structlog.get_logger()

POLL_INTERVAL_S = 0.2
LEAVING_FILE, DRAINED_FILE = "leaving", "drained"
"""In the folder that the agent shares with Triton's container."""
WORK_LIMIT_S = 10.0
"""Limit for the pod's own work once its requests have ended, since Triton waits for the file."""
MAX_MISSED_ANSWERS = 3
"""After this many missed answers in a row Triton has ended; after fewer it may only be busy."""


class RequestCounter(Protocol):
    """Interface of Triton that draining needs."""

    async def request_count(self) -> int | None:
        """Return how many requests were handled so far; None without a server."""
        ...


class Drain:
    """Drain sequence of one pod, and whether it has begun."""

    def __init__(
        self,
        requests: RequestCounter,
        *,
        quiet_s: float,
        limit_s: float,
        least_s: float = 0.0,
        folder: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
        finish_work: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`finish_work` ends the work that the pod takes by itself; it is waited for, for WORK_LIMIT_S at most."""
        self._finish_work = finish_work
        self._requests = requests
        self._quiet_s = quiet_s
        self._limit_s = limit_s
        self._clock = clock
        self._least_s = least_s
        self._folder = folder
        self.active = False
        if folder is not None:
            for name in (LEAVING_FILE, DRAINED_FILE):
                (folder / name).unlink(missing_ok=True)

    async def run(self) -> None:
        """Turn readiness off and wait until no request has come for `quiet_s`, at most `limit_s`; do so only once.

        As a native sidecar the agent gets its SIGTERM after Triton has ended, and then there is nothing to wait for.
        """
        if self.active:
            return
        self.active = True
        self._touch_marker(LEAVING_FILE)
        work = asyncio.ensure_future(self._finish_work()) if self._finish_work is not None else None
        started = quiet_since = self._clock()
        count, silences = await self._requests.request_count(), 0
        while count is not None and self._clock() - started < self._limit_s:
            await asyncio.sleep(POLL_INTERVAL_S)
            latest, now = await self._requests.request_count(), self._clock()
            silences = silences + 1 if latest is None else 0
            if latest is None:
                if silences >= MAX_MISSED_ANSWERS:
                    break
            elif latest != count:
                count, quiet_since = latest, now
            elif now - quiet_since >= self._quiet_s and now - started >= self._least_s:
                break
        if work is not None:
            await self._wait_for_work(work)
        self._touch_marker(DRAINED_FILE)
        log.info("drained", requests=count, seconds=round(self._clock() - started, 1))

    async def _wait_for_work(self, work: "asyncio.Future[None]") -> None:
        await asyncio.wait((work,), timeout=WORK_LIMIT_S)
        if not work.done():
            log.error("work_not_finished", limit_s=WORK_LIMIT_S)
        elif not work.cancelled() and (error := work.exception()) is not None:
            log.error("work_not_finished", exc_info=error)

    def _touch_marker(self, name: str) -> None:
        if self._folder is not None:
            (self._folder / name).touch()
