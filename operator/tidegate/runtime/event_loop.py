"""Metric of how long the event loop is blocked: meanwhile a process answers no probe and renews no lease."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Final

from prometheus_client import CollectorRegistry, Histogram

from tidegate_dataplane.contract.metrics import MetricCatalog

MEASURE_EVERY_S: Final = 0.05
_SECONDS: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_SCHEDULER_STATISTICS: Final = "/proc/thread-self/schedstat"
_LONGEST_STATISTICS: Final = 128

EVENT_LOOP: Final = MetricCatalog("tidegate_event_loop_")
BLOCKED: Final = EVENT_LOOP.add_histogram(
    "held_seconds",
    "Delay of a timer of the event loop that is due every 50 ms, less the time that its thread waited for a core.",
    buckets=_SECONDS,
)


@asynccontextmanager
async def measure_event_loop(registry: CollectorRegistry) -> AsyncGenerator[None]:
    """Measure the running event loop while the block runs."""
    task = asyncio.create_task(_measure_delays(BLOCKED.register(registry), waited_for_core_s))
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def waited_for_core_s() -> float:
    """Return the seconds that this thread was ready to run and had no core.

    They come from the second field of the kernel's schedstat, in nanoseconds; 0 where there is no such file.
    """
    try:
        # Without the buffers and the decoder of a text file: this is a third of what an idle process does.
        statistics = os.open(_SCHEDULER_STATISTICS, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0.0
    try:
        return int(os.read(statistics, _LONGEST_STATISTICS).split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0
    finally:
        os.close(statistics)


async def _measure_delays(histogram: Histogram, waited_s: Callable[[], float]) -> None:
    loop = asyncio.get_running_loop()
    waited = waited_s()
    while True:
        due = loop.time() + MEASURE_EVERY_S
        await asyncio.sleep(MEASURE_EVERY_S)
        delay = loop.time() - due
        before, waited = waited, waited_s()
        histogram.observe(max(delay - (waited - before), 0.0))
