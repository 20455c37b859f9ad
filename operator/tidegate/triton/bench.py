"""Sends inference requests for a while, at a rate or so many at once, and takes down how each ended."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable

import grpc.aio

from tidegate.planning.bench import Load, Run
from tidegate.triton.load import ModelLoad

_GRACE_S = 30.0
"""How long answers are waited for once nothing is sent any more."""


async def run(load: ModelLoad, wanted: Load, monotonic: Callable[[], float] = time.monotonic) -> Run:
    """One run with the requests of a load that was prepared."""
    running = _Running(load, monotonic)
    began = monotonic()
    until = began + wanted.seconds
    if wanted.rate is None:
        await running.closed(wanted, until)
    else:
        await running.open(wanted.rate, wanted.concurrency, began, until)
    return Run(
        load=wanted,
        lasted_s=monotonic() - began,
        sent=running.sent,
        times_s=tuple(sorted(running.times)),
        errors=dict(running.errors),
        not_sent=running.not_sent,
    )


class _Running:
    def __init__(self, load: ModelLoad, monotonic: Callable[[], float]) -> None:
        self._load, self._monotonic = load, monotonic
        self.sent, self.not_sent = 0, 0
        self.times: list[float] = []
        self.errors: Counter[str] = Counter()

    async def closed(self, wanted: Load, until: float) -> None:
        """Each worker sends its next request when its last one was answered."""

        async def work() -> None:
            while (now := self._monotonic()) < until and self.errors.total() < wanted.most_errors:
                await self._one(now)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(wanted.concurrency):
                tasks.create_task(work())

    async def open(self, rate: float, most: int, began: float, until: float) -> None:
        """A request each 1/rate seconds, whatever became of the others."""
        under_way = set[asyncio.Task[None]]()
        number = 0
        while (due := began + number / rate) < until:
            number += 1
            if (ahead := due - self._monotonic()) > 0:
                await asyncio.sleep(ahead)
            if len(under_way) >= most:
                self.not_sent += 1
                # Where it cannot keep up at all, those that are under way still have to be heard.
                await asyncio.sleep(0)
                continue
            task = asyncio.create_task(self._one(due))
            under_way.add(task)
            task.add_done_callback(under_way.discard)
        if under_way:
            _, late = await asyncio.wait(under_way, timeout=_GRACE_S)
            for task in late:
                task.cancel()
                self.errors["UNANSWERED"] += 1

    async def _one(self, due: float) -> None:
        self.sent += 1
        try:
            await self._load.ask(self.sent)
        except grpc.aio.AioRpcError as error:
            self.errors[error.code().name] += 1
            # A server that refuses at once is not to be asked ten thousand times a second.
            await asyncio.sleep(0.01)
        else:
            self.times.append(self._monotonic() - due)
