"""A pool's charts from what Prometheus answers: samples, gaps, how often it is asked, and why there are none."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest

from tidegate.errors import PermanentError
from tidegate.exporters.objects import OBJECTS
from tidegate.exporters.pools import POOLS
from tidegate.telemetry.prometheus_api import PrometheusError, RangeSeries
from tidegate.web.charts import GAUGE_PREFIX, GAUGES, STEPS, ChartReader, PoolCharts, Window, pool_query

NOW = datetime(2026, 6, 1, 12, 0, 7, tzinfo=UTC)
END = datetime(2026, 6, 1, 12, 0, tzinfo=UTC)
HOUR_STEP = timedelta(seconds=15)


def a_series(gauge: str, *values: tuple[float, str], **labels: str) -> RangeSeries:
    """A gauge with values at so many steps of an hour before END."""
    points = [((END - steps * HOUR_STEP).timestamp(), text) for steps, text in values]
    return {"metric": {"__name__": f"{GAUGE_PREFIX}{gauge}", **labels}, "values": points}


class World:
    """A reader, and a Prometheus that answers with `answer`; None: it does not."""

    def __init__(self, *answer: RangeSeries) -> None:
        self.answer: Sequence[RangeSeries] | None = answer
        self.asked: list[tuple[datetime, datetime, timedelta]] = []
        self.seconds = 0.0
        self.reader = ChartReader(self._query, lambda: NOW, lambda: self.seconds)

    async def _query(
        self, query: str, begin: datetime, end: datetime, step: timedelta
    ) -> Sequence[RangeSeries]:
        self.asked.append((begin, end, step))
        await asyncio.sleep(0)
        if self.answer is None:
            raise PrometheusError("it cannot be asked (TimeoutError)")
        return self.answer

    async def read(self, window: Window = "1h") -> PoolCharts:
        return await self.reader.read("cpu-a", window)


async def test_slices_and_demand_are_read_by_tier() -> None:
    world = World(
        a_series("slices", (1, "8"), (0, "8"), state="healthy"),
        a_series("slices", (1, "3"), (0, "2"), state="free"),
        a_series("tier_slices", (1, "5"), (0, "6"), tier="realtime"),
        a_series("slice_price", (0, "2.5")),
        a_series("allocatable_slices", (0, "8")),
        a_series("needed_slices", (0, "9"), tier="realtime"),
        a_series("demand_requests_per_second", (0, "250"), tier="realtime"),
        a_series("demand_requests_per_second", (0, "50"), tier="nearline"),
        a_series("servable_requests_per_second", (0, "100"), tier="realtime"),
        a_series("demand_unknown", (0, "1"), tier="nearline"),
        a_series("demand_unknown", (0, "2"), tier="offline"),
        a_series("value_per_second", (0, "90.5"), outcome="served"),
        a_series("value_per_second", (0, "9.5"), outcome="lost"),
    )

    charts = await world.read()

    assert [sample.time for sample in charts.slices] == [END - HOUR_STEP, END]
    before, now = charts.slices
    assert (before.tiers, before.free, before.price) == ({"realtime": 5, "nearline": 0, "offline": 0}, 3, 0)
    assert (now.tiers["realtime"], now.free, now.healthy, now.price) == (6, 2, 8, 2.5)
    [demand] = charts.demand
    assert (demand.allocatable, demand.tiers["realtime"]) == (8, 9)
    assert (demand.demand, demand.served, demand.unknown) == (300, 100, 3)
    assert demand.value == {"served": 90.5, "lost": 9.5}


async def test_without_measured_requests_there_is_demand_and_no_value() -> None:
    [demand] = (await World(a_series("allocatable_slices", (0, "8"))).read()).demand
    assert demand.value == {}


async def test_a_time_of_which_prometheus_knows_nothing_has_no_sample() -> None:
    values = (241, "8"), (240, "8"), (9, "NaN"), (2, "+Inf"), (1, "8"), (-1, "8")
    healthy = a_series("slices", *values, state="healthy")
    healthy["values"] += [(float("nan"), "8"), (float("inf"), "8")]

    charts = await World(healthy).read()

    assert [(END - sample.time) / HOUR_STEP for sample in charts.slices] == [240, 1]
    assert charts.demand == ()


@pytest.mark.parametrize(("window", "hours"), [("15m", 0.25), ("1h", 1), ("6h", 6), ("24h", 24)])
async def test_every_window_has_as_many_whole_steps(window: Window, hours: float) -> None:
    world = World()
    await world.read(window)
    [(begin, end, step)] = world.asked
    assert (end - begin, (end - begin) / step) == (timedelta(hours=hours), STEPS)
    assert NOW - step < end <= NOW
    assert end.timestamp() % step.total_seconds() == 0


async def test_many_pages_ask_once_in_ten_seconds() -> None:
    world = World()
    await asyncio.gather(*(world.read() for _ in range(5)))
    assert len(world.asked) == 1
    await world.read("6h")
    world.seconds += 10
    await world.read()
    assert len(world.asked) == 3


async def test_a_prometheus_that_is_silent_is_asked_again_later() -> None:
    world = World(a_series("slices", (0, "8"), state="healthy"))
    known, world.answer = world.answer, None
    for _ in range(2):
        with pytest.raises(PrometheusError, match=r"cannot be asked \(TimeoutError\).*web\.prometheusUrl"):
            await world.read()
    assert len(world.asked) == 1
    world.answer, world.seconds = known, 10
    assert len((await world.read()).slices) == 1


async def test_a_slow_prometheus_collects_no_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.web.charts._WAIT_S", 0.01)
    slow, asked = asyncio.Event(), 0

    async def query(*_: object) -> Sequence[RangeSeries]:
        nonlocal asked
        asked += 1
        await slow.wait()
        return ()

    reader = ChartReader(query, lambda: NOW, lambda: 0.0)
    pages = await asyncio.gather(
        *(reader.read_series(f"q{number}", "1h") for number in range(3)), return_exceptions=True
    )
    assert all(isinstance(page, PrometheusError) and "slow" in str(page) for page in pages)
    assert asked <= 3
    slow.set()
    assert (await reader.read_series("q0", "1h")).series == ()


async def test_what_is_no_number_is_no_answer() -> None:
    with pytest.raises(PrometheusError, match=r"web\.prometheusUrl"):
        await World(a_series("slices", (0, "many"), state="healthy")).read()


async def test_without_a_prometheus_the_setting_is_named() -> None:
    reader = ChartReader(None, lambda: NOW, lambda: 0.0)
    assert not reader.is_configured
    with pytest.raises(PermanentError, match=r"web\.prometheusUrl"):
        await reader.read("cpu-a", "1h")


def test_the_query_is_about_one_pool_and_the_gauges_are_the_controllers() -> None:
    query = pool_query("cpu-a")
    assert 'pool="cpu-a"' in query
    exported = {metric.name for metric in (*OBJECTS, *POOLS)}
    assert {f"{GAUGE_PREFIX}{gauge}" for gauge in GAUGES} <= exported
    assert all(f"{GAUGE_PREFIX}{gauge}" in query for gauge in GAUGES)
