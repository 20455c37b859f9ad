"""Bench runs: send requests at a rate or a concurrency for a while, and record how each ended."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable

import grpc.aio

from tidegate.planning.diagnosis.bench import LoadRun, LoadSpec
from tidegate.triton.load_generator import LoadGenerator

_GRACE_S = 30.0
"""Time to wait for answers after the last request was sent."""


async def run_bench(
    model: LoadGenerator, load: LoadSpec, monotonic: Callable[[], float] = time.monotonic
) -> LoadRun:
    """Apply `load` once to a prepared model, and return what was sent and how each request ended."""
    running = _BenchRun(model, monotonic)
    began = monotonic()
    until = began + load.seconds
    if load.rate is None:
        await running.run_closed_loop(load, until)
    else:
        await running.run_open_loop(load.rate, load.concurrency, began, until)
    return LoadRun(
        load=load,
        lasted_s=monotonic() - began,
        sent=running.sent,
        times_s=tuple(sorted(running.times)),
        errors=dict(running.errors),
        not_sent=running.not_sent,
    )


class _BenchRun:
    """State of one bench run."""

    def __init__(self, model: LoadGenerator, monotonic: Callable[[], float]) -> None:
        self._model, self._monotonic = model, monotonic
        self.sent, self.not_sent = 0, 0
        self.times: list[float] = []
        self.errors: Counter[str] = Counter()

    async def run_closed_loop(self, load: LoadSpec, until: float) -> None:
        """Send from `load.concurrency` workers, each of which waits for its last answer; stop after a few errors."""

        async def work() -> None:
            while (now := self._monotonic()) < until and self.errors.total() < load.max_errors:
                await self._send_one(now)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(load.concurrency):
                tasks.create_task(work())

    async def run_open_loop(self, rate: float, limit: int, began: float, until: float) -> None:
        """Send a request every 1/rate seconds, whatever happens to the others; at most `limit` are under way."""
        under_way = set[asyncio.Task[None]]()
        number = 0
        while (due := began + number / rate) < until:
            number += 1
            if (ahead := due - self._monotonic()) > 0:
                await asyncio.sleep(ahead)
            if len(under_way) >= limit:
                self.not_sent += 1
                # Yield, so that requests under way can finish even when this loop cannot keep up.
                await asyncio.sleep(0)
                continue
            task = asyncio.create_task(self._send_one(due))
            under_way.add(task)
            task.add_done_callback(under_way.discard)
        if under_way:
            _, late = await asyncio.wait(under_way, timeout=_GRACE_S)
            for task in late:
                task.cancel()
                self.errors["UNANSWERED"] += 1

    async def _send_one(self, due: float) -> None:
        self.sent += 1
        try:
            await self._model.send_request(self.sent)
        except grpc.aio.AioRpcError as error:
            self.errors[error.code().name] += 1
            # Pause, so that a server that rejects at once does not get ten thousand requests a second.
            await asyncio.sleep(0.01)
        else:
            self.times.append(self._monotonic() - due)
