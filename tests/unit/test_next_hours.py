"""The next hours of a pool: the demand that is forecast, the events, and what the allocator plans."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from builders.compute_pool import a_compute_pool
from builders.inference import an_inference
from tidegate.allocation.solver import Solver
from tidegate.api.inference import Tier
from tidegate.reports.next_hours import NextHoursReport
from tidegate.simulation.changes import SimulatedDay
from tidegate.simulation.next_hours import MAX_FORECASTS, STEP, plan_next_hours, select_largest
from tidegate.simulation.trace import DemandTrace

NOW = datetime(2026, 11, 27, 18, tzinfo=UTC)
SALE = {"name": "sale", "at": "2026-11-27T20:00:00Z", "duration": "1h", "factor": "3"}
STEPS_OF_AN_HOUR = timedelta(hours=1) // STEP


def wave(time: datetime) -> float:
    """The demand of a day: 300/s at 20:00, 100/s at 8:00, and an odd day is 10 % higher."""
    hours = (time - NOW) / timedelta(hours=1)
    return (200 + 100 * math.cos((hours - 2) / 24 * 2 * math.pi)) * (1.0 + 0.1 * (time.day % 2))


def a_day(days: int, **policy: Any) -> SimulatedDay:
    count = timedelta(days=days) // STEP
    times = [NOW - (count - number) * STEP for number in range(count)]
    placed: dict[str, Any] = {"placement": {"pool": "cpu-a"}, "replicas": None}
    pool = a_compute_pool(
        "cpu-a", policy=policy, metadata={"annotations": {"tidegate.io/recorded-slices": "12"}}
    )
    ctr = an_inference(
        "ctr", tier="realtime", capacity={"requestsPerSecond": "100"}, slo={"latencyP99": "30ms"},
        scaling={"minReplicas": 1, "maxReplicas": 10}, **placed,
    )  # fmt: skip
    embed = an_inference("embed", tier="offline", scaling={"minReplicas": 0, "maxReplicas": 12}, **placed)
    trace = DemandTrace(tuple(at.timestamp() for at in times), {"ads/ctr": tuple(wave(at) for at in times)})
    return SimulatedDay(pool, (ctr, embed), trace)


def plan(day: SimulatedDay) -> NextHoursReport:
    """Plan as the dashboard does: the last hour of all, and the long history of the largest."""
    rates = {name: values[-STEPS_OF_AN_HOUR:] for name, values in day.trace.rates.items()}
    hour = replace(day, trace=DemandTrace(day.trace.times[-STEPS_OF_AN_HOUR:], rates))
    histories = {name: day.trace.rates[name] for name in select_largest(hour)}
    planned = plan_next_hours(hour, histories, 4, Solver(time.monotonic).solve, lambda stage, share: None)
    return NextHoursReport.from_plan(planned)


def test_slices_follow_the_demand_that_is_forecast() -> None:
    report = plan(a_day(14, forecast={"horizon": "15m", "quantile": "0.9"}))
    ctr = next(course for course in report.inferences if course.inference == "ads/ctr")

    assert report.begin == NOW
    assert (len(ctr.median), len(ctr.slices), ctr.forecast) == (16, 16, True)
    for number, (median, upper) in enumerate(zip(ctr.median, ctr.upper, strict=True)):
        actual = wave(NOW + number * STEP)
        assert abs(median - actual) < 0.15 * actual
        assert median <= upper < 1.3 * actual
    assert max(ctr.slices) >= math.ceil(max(ctr.median) / 100)
    assert [sum(row) for row in zip(*map(report.count_slices, Tier), strict=True)] == [12] * 16


@pytest.mark.parametrize(
    ("zone", "steps"),
    [
        ("Europe/Berlin", [500.0] * 8 + [100.0] * 8),
        # By the hours of UTC, the days before had their peak from 17:00 on.
        ("UTC", [100.0] * 4 + [500.0] * 8 + [100.0] * 4),
    ],
)
def test_the_next_hours_follow_the_hours_of_the_pool_after_clocks_are_changed(
    zone: str, steps: Sequence[float]
) -> None:
    """In Berlin it is 18:00, and the demand is 500/s until 20:00, as on each day."""
    now, berlin, count = datetime(2026, 3, 29, 16, tzinfo=UTC), ZoneInfo("Europe/Berlin"), 14 * 96

    def rate(number: int) -> float:
        return 500.0 if (now + number * STEP).astimezone(berlin).hour in {18, 19} else 100.0

    times = tuple((now + number * STEP).timestamp() for number in range(-count, 0))
    rates = {"ads/ctr": tuple(rate(number) for number in range(-count, 0))}
    day = replace(a_day(1, forecast={"timeZone": zone}), trace=DemandTrace(times, rates))
    ctr = next(course for course in plan(day).inferences if course.inference == "ads/ctr")
    assert list(ctr.median) == pytest.approx(steps)


def test_an_event_multiplies_the_demand_and_is_marked() -> None:
    before = plan(a_day(14)).inferences[1]
    sale = plan(a_day(14, events=[SALE]))
    after = next(course for course in sale.inferences if course.inference == "ads/ctr")
    running = slice(2 * STEPS_OF_AN_HOUR, 3 * STEPS_OF_AN_HOUR)

    assert before.inference == "ads/ctr"
    assert [(mark.seconds, mark.label) for mark in sale.marks] == [(7200, "sale: 3 x for 1h")]
    assert after.median[running] == pytest.approx([3 * rate for rate in before.median[running]], rel=1e-5)
    assert after.median[: running.start] == before.median[: running.start]
    assert min(after.slices[running]) > max(before.slices)


@pytest.mark.parametrize("horizon", ["45m", "1h"])
def test_an_event_that_comes_again_soon_multiplies_the_demand_until_it_ends(horizon: str) -> None:
    hourly = {"name": "hourly", "schedule": "0 * * * *", "duration": "30m", "factor": "3"}
    day = a_day(1)
    rates = dict.fromkeys(day.trace.rates, (100.0,) * 8)
    pool = a_day(1, events=[hourly], forecast={"horizon": horizon}).pool
    report = plan(SimulatedDay(pool, day.inferences, DemandTrace(day.trace.times[-8:], rates)))
    ctr = next(course for course in report.inferences if course.inference == "ads/ctr")

    assert ctr.median == (300.0, 300.0, 100.0, 100.0) * 4


def test_without_a_day_of_history_the_present_rate_counts() -> None:
    day = a_day(1)
    rates = {name: values[-8:] for name, values in day.trace.rates.items()}
    report = plan(SimulatedDay(day.pool, day.inferences, DemandTrace(day.trace.times[-8:], rates)))
    ctr = next(course for course in report.inferences if course.inference == "ads/ctr")

    assert (ctr.forecast, report.unforecast_count) == (False, 1)
    assert set(ctr.median) == set(ctr.upper) == {round(rates["ads/ctr"][-1] or 0, 3)}


def test_an_inference_that_went_silent_has_no_demand() -> None:
    day = a_day(14, forecast={"horizon": "15m"})
    silent = (*day.trace.rates["ads/ctr"][:-STEPS_OF_AN_HOUR], *[None] * STEPS_OF_AN_HOUR)
    report = plan(replace(day, trace=replace(day.trace, rates={"ads/ctr": silent})))
    ctr = next(course for course in report.inferences if course.inference == "ads/ctr")

    assert (ctr.forecast, set(ctr.median), set(ctr.upper)) == (False, {0.0}, {0.0})
    assert set(ctr.slices) == {1}


def test_the_largest_are_forecast() -> None:
    day = a_day(1)
    rates = {f"ads/n{number}": (100.0 * number,) * 4 for number in range(MAX_FORECASTS + 2)}
    inferences = [
        an_inference(
            name.removeprefix("ads/"), tier="realtime", capacity={"requestsPerSecond": "10"}, slo={"latencyP99": "30ms"},
            placement={"pool": "cpu-a"}, replicas=None, scaling={"minReplicas": 1, "maxReplicas": 1000},
        )
        for name in rates
    ]  # fmt: skip
    largest = select_largest(SimulatedDay(day.pool, inferences, DemandTrace(day.trace.times[-4:], rates)))

    assert list(largest) == [f"ads/n{number}" for number in range(MAX_FORECASTS + 1, 1, -1)]


def test_charts_have_the_band_and_the_slices_of_each_inference() -> None:
    text = plan(a_day(14, events=[SALE])).render_charts()

    assert text.count("<svg") == 3
    assert text.count('class="area band t-realtime"') == 1
    assert text.count('class="line t-realtime"') == 1
    assert text.count("sale: 3 x for 1h") == 3
