"""The forecasts of all pools: their history is read in the background, and forgotten with them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import pytest
import structlog

from builders.allocator import a_member, observed
from builders.fake_clock import FakeClock
from tidegate.api.meta import ObjectKey
from tidegate.planning.allocator.forecasts import DemandForecasts, RateHistory
from tidegate.planning.allocator.signals import Signals
from tidegate_controllers.allocator.forecasts import AllocationForecasts

CTR, CVR = ObjectKey("ads", "ctr"), ObjectKey("ads", "cvr")
FORECAST = {"forecast": {}}


@dataclass
class History:
    """A Prometheus that answers when a test lets it."""

    problem: str = ""
    asked: list[frozenset[ObjectKey]] = field(default_factory=list)
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)

    async def read_history(
        self, keys: frozenset[ObjectKey], now: datetime, length: timedelta = timedelta(days=28)
    ) -> RateHistory:
        self.asked.append(keys)
        await self.may_answer.wait()
        rates = {} if self.problem else dict.fromkeys(keys, [100.0] * 288)
        return RateHistory(now - timedelta(days=1), rates, self.problem)


@asynccontextmanager
async def running(forecasts: AllocationForecasts) -> AsyncGenerator[None]:
    task = asyncio.create_task(forecasts.read_histories())
    yield
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def tick(forecasts: AllocationForecasts, clock: FakeClock, *names: str) -> DemandForecasts:
    members = (a_member(name) for name in names or ("ctr",))
    seen = observed(*members, policy=FORECAST, now=clock.now(), signals=Signals(problem=""))
    found = await forecasts.forecast_pool(seen)
    assert found is not None
    # Let the background read begin and end.
    for _ in range(5):
        await asyncio.sleep(0)
    return found


async def test_history_is_read_in_the_background_and_once() -> None:
    history, clock = History(), FakeClock()
    forecasts = AllocationForecasts(history, clock)
    async with running(forecasts):
        for _ in range(3):
            assert await tick(forecasts, clock) == DemandForecasts({}, frozenset({CTR}), is_pending=True)
        history.may_answer.set()
        await tick(forecasts, clock)
        found = await tick(forecasts, clock)
        assert found == DemandForecasts({CTR: found.peaks[CTR]})
        assert found.peaks[CTR] == pytest.approx(100.0)
        await clock.advance(3600)
        assert (await tick(forecasts, clock)).peaks.keys() == {CTR}
    assert history.asked == [{CTR}]


async def test_an_inference_that_joins_has_its_history_read_after_ten_minutes() -> None:
    history, clock = History(), FakeClock()
    history.may_answer.set()
    forecasts = AllocationForecasts(history, clock)
    async with running(forecasts):
        await tick(forecasts, clock)
        await tick(forecasts, clock)
        assert (await tick(forecasts, clock, "ctr", "cvr")).short == {CVR}
        await clock.advance(601)
        assert (await tick(forecasts, clock, "ctr", "cvr")).is_pending
        found = await tick(forecasts, clock, "ctr", "cvr")
        assert found.peaks.keys() == {CTR, CVR}
    assert history.asked == [{CTR}, {CVR}]


async def test_a_failure_is_logged_once_shown_and_tried_again() -> None:
    history, clock = History("earlier rates cannot be read"), FakeClock()
    history.may_answer.set()
    forecasts = AllocationForecasts(history, clock)
    with structlog.testing.capture_logs() as logs:
        async with running(forecasts):
            for _ in range(3):
                await tick(forecasts, clock)
                found = await tick(forecasts, clock)
                assert found == DemandForecasts(
                    {}, frozenset({CTR}), history_problem="earlier rates cannot be read"
                )
                await clock.advance(601)
            history.problem = ""
            await tick(forecasts, clock)
            found = await tick(forecasts, clock)
            assert (found.peaks.keys(), found.history_problem) == ({CTR}, "")
    assert [log["event"] for log in logs] == ["history_unreadable"]
    assert len(history.asked) == 4


async def test_without_prometheus_nothing_is_pending() -> None:
    clock = FakeClock()
    forecasts = AllocationForecasts(None, clock)
    await forecasts.read_histories()
    assert await tick(forecasts, clock) == DemandForecasts({}, frozenset({CTR}))


async def test_a_pool_without_the_policy_is_forgotten() -> None:
    history, clock = History(), FakeClock()
    history.may_answer.set()
    forecasts = AllocationForecasts(history, clock)
    async with running(forecasts):
        await tick(forecasts, clock)
        await tick(forecasts, clock)
        seen = observed(a_member(), now=clock.now())
        assert await forecasts.forecast_pool(replace(seen)) is None
        assert (await tick(forecasts, clock)).short == {CTR}
    assert history.asked == [{CTR}, {CTR}]
