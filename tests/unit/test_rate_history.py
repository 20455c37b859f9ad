"""The rates of the last weeks, as Prometheus has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from math import isnan
from typing import Any

import pytest

from tidegate.api.meta import ObjectKey
from tidegate.planning.allocator.forecasts import RateHistory
from tidegate.telemetry import expressions
from tidegate.telemetry.prometheus_api import PrometheusError
from tidegate.telemetry.rate_history import PrometheusRateHistory
from tidegate.telemetry.recording_rules import SIGNAL_DEMAND, SIGNAL_OFFERED

CTR, CVR = ObjectKey("ads", "ctr"), ObjectKey("ads", "cvr")
NOW = datetime(2026, 1, 29, 12, 3, 20, tzinfo=UTC)
END = NOW.replace(minute=0, second=0)
BLOCK = timedelta(minutes=5)
RECORDED = f"max_over_time({SIGNAL_DEMAND}[5m]) or max_over_time({SIGNAL_OFFERED}[5m])"
EVALUATED = f"max_over_time(({expressions.DEMAND})[5m:1m])"

Answer = Callable[[str, datetime, datetime], Sequence[Any]]


async def read(
    monkeypatch: pytest.MonkeyPatch, answer: Answer, length: timedelta = timedelta(days=28)
) -> RateHistory:
    source = PrometheusRateHistory("http://prometheus")

    async def query_range(
        expression: str, begin: datetime, end: datetime, step: timedelta, *, max_bytes: int
    ) -> Sequence[Any]:
        assert (step, max_bytes) == (BLOCK, 32 << 20)
        assert end - begin == min(length, timedelta(days=1)) - BLOCK
        return answer(expression, begin, end)

    monkeypatch.setattr(source._api, "query_range", query_range)
    return await source.read_history(frozenset({CTR, CVR}), NOW, length)


def series(*values: tuple[datetime, str], name: str = "ctr") -> dict[str, Any]:
    points = [(at.timestamp(), value) for at, value in values]
    return {"metric": {"namespace": "ads", "inference": name}, "values": points}


def test_the_recorded_series_is_that_of_the_signals() -> None:
    assert SIGNAL_DEMAND == "tidegate:inference_demand:rate1m"


async def test_four_weeks_are_read_day_by_day_and_the_newest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, datetime]] = []

    def answer(expression: str, begin: datetime, end: datetime) -> Sequence[Any]:
        asked.append((expression, end))
        return [series((begin, "3"), (end, "7")), series((end, "1"), name="of another pool")]

    history = await read(monkeypatch, answer)
    assert asked == [(RECORDED, END - timedelta(days=day)) for day in range(28)]
    assert history.begin == END - timedelta(days=28)
    assert history.problem == ""
    assert history.rates.keys() == {CTR, CVR}
    rates = history.rates[CTR]
    # The value at a time is the highest of the five minutes before.
    assert (len(rates), rates[0], rates[-1]) == (28 * 288, 3.0, 7.0)
    assert (rates[287], rates[288]) == (7.0, 3.0)
    assert sum(not isnan(rate) for rate in rates) == 2 * 28
    assert all(map(isnan, history.rates[CVR]))


async def test_ten_minutes_are_two_blocks_of_one_query(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[datetime] = []

    def answer(expression: str, begin: datetime, end: datetime) -> Sequence[Any]:
        asked.append(end)
        return [series((begin, "3"), (end, "7"))]

    history = await read(monkeypatch, answer, timedelta(minutes=10))
    assert (asked, history.begin, list(history.rates[CTR])) == ([END], END - 2 * BLOCK, [3.0, 7.0])


async def test_days_without_recorded_rates_are_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(expression: str, begin: datetime, end: datetime) -> Sequence[Any]:
        if end == END:
            return [series((end, "7"))] if expression == RECORDED else []
        return [series((end, "5"))] if expression == EVALUATED else []

    rates = (await read(monkeypatch, answer)).rates[CTR]
    assert (rates[-1], rates[-1 - 288]) == (7.0, 5.0)


async def test_numbers_that_are_no_rates_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(expression: str, begin: datetime, end: datetime) -> Sequence[Any]:
        if end != END:
            return []
        wrong = [
            (END - (number + 1) * BLOCK, text) for number, text in enumerate(("NaN", "+Inf", "-1", "1e10"))
        ]
        far = [(END + BLOCK, "4"), (END - timedelta(days=29), "4")]
        unreal = {**series(), "values": [(float("inf"), "4"), (float("nan"), "4")]}
        return [series(*wrong, *far, (END, "2")), unreal, {"metric": {}, "values": [(END.timestamp(), "9")]}]

    rates = (await read(monkeypatch, answer)).rates[CTR]
    assert [rate for rate in rates if not isnan(rate)] == [2.0]


async def test_a_failure_leaves_the_newer_days_and_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(expression: str, begin: datetime, end: datetime) -> Sequence[Any]:
        if end < END - timedelta(days=1):
            message = "it cannot be asked (TimeoutError)"
            raise PrometheusError(message)
        return [series((end, "7"))]

    history = await read(monkeypatch, answer)
    assert sum(not isnan(rate) for rate in history.rates[CTR]) == 2
    assert history.problem == (
        "earlier rates cannot be read from Prometheus http://prometheus: it cannot be asked (TimeoutError)"
    )


async def test_an_answer_without_numbers_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    history = await read(monkeypatch, lambda expression, begin, end: [series((end, "seven"))])
    assert history.problem == (
        "earlier rates cannot be read from Prometheus http://prometheus: its answer cannot be read"
    )
