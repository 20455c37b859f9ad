"""How long something holds the event loop, as the processes tell Prometheus."""

from __future__ import annotations

import asyncio
import time

import pytest
from prometheus_client import CollectorRegistry

from tidegate.runtime import event_loop
from tidegate.runtime.event_loop import MEASURE_EVERY_S, measure_event_loop, waited_for_core_s

HOLD_S = 0.4


def held(registry: CollectorRegistry, bound: str) -> float:
    """How often the loop was held for no longer than `bound`."""
    return registry.get_sample_value("tidegate_event_loop_held_seconds_bucket", {"le": bound}) or 0.0


async def measured(hold: bool) -> tuple[float, float]:
    """All measurements, and those of 0.25 s at most."""
    registry = CollectorRegistry()
    async with measure_event_loop(registry):
        await asyncio.sleep(2 * MEASURE_EVERY_S)
        if hold:
            until = time.thread_time() + HOLD_S
            while time.thread_time() < until:
                pass
        await asyncio.sleep(2 * MEASURE_EVERY_S)
    return held(registry, "+Inf"), held(registry, "0.25")


async def test_a_callback_that_computes_for_long_is_seen_once() -> None:
    every, short = await measured(hold=True)
    assert every - short == 1


async def test_a_loop_that_waits_is_not_held() -> None:
    every, short = await measured(hold=False)
    assert every >= 2
    assert every == short


async def test_the_wait_for_a_core_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the kernel had kept the thread waiting for as long as the loop was late."""
    monkeypatch.setattr(event_loop, "waited_for_core_s", time.monotonic)
    every, short = await measured(hold=True)
    assert every == short


def test_the_kernel_says_how_long_this_thread_has_waited() -> None:
    before = waited_for_core_s()
    assert 0.0 <= before <= waited_for_core_s() < time.monotonic()
