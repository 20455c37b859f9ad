"""Seasonal forecasts: seasons, levels, gaps, lies, and quantiles that hold."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from random import Random
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.allocation.errors import InvalidInputError
from tidegate.forecast.blocks import BLOCK_S, DAY_S
from tidegate.forecast.book import ForecastBook
from tidegate.forecast.local_clock import LocalClock
from tidegate.forecast.seasonal import (
    ForecastSettings,
    compute_pinball_loss,
    fill_gaps,
    fit_forecast,
    forecast_rates,
)

HOURLY = ForecastSettings(3600.0, 3, 0.9)
FIVE_MINUTES = ForecastSettings(300.0, 4, 0.9)
DAY = 288


def day_rate(block: int, per_day: int) -> float:
    """Two peaks a day, at noon and at eight in the evening."""
    hour = 24 * (block % per_day) / per_day
    return 100 + 80 * math.exp(-(((hour - 12) / 2) ** 2)) + 200 * math.exp(-(((hour - 20) / 1.5) ** 2))


def days(count: int, per_day: int, noise: float = 0.0, seed: int = 1) -> list[float]:
    random = Random(seed)
    return [
        day_rate(block, per_day) * math.exp(random.gauss(0, noise) if noise else 0.0)
        for block in range(count * per_day)
    ]


def test_constant_rate_is_forecast_as_itself() -> None:
    model = fit_forecast([50.0] * 100, HOURLY)
    assert model is not None
    assert forecast_rates([50.0] * 100, model) == pytest.approx((50.0, 50.0, 50.0))


def test_rate_with_a_season_is_forecast_before_it_rises() -> None:
    history = days(5, DAY)[: -DAY // 4]  # it is six in the evening
    model = fit_forecast(history, FIVE_MINUTES)
    assert model is not None
    assert model.period == DAY
    expected = [day_rate(len(history) + lead, DAY) for lead in range(4)]
    assert forecast_rates(history, model) == pytest.approx(expected, rel=1e-6)
    assert expected[3] > 1.05 * history[-1]


def test_level_of_today_scales_the_season() -> None:
    history = days(6, DAY)
    history[-DAY:] = [1.5 * rate for rate in history[-DAY:]]
    model = fit_forecast(history, FIVE_MINUTES)
    assert model is not None
    assert forecast_rates(history, model)[0] == pytest.approx(1.5 * day_rate(0, DAY), rel=0.05)


def test_spike_of_a_day_is_not_expected_again() -> None:
    history = days(5, DAY)
    spike = 4 * DAY + 30
    history[spike] *= 10
    model = fit_forecast(history[: spike + DAY - 2], FIVE_MINUTES)
    assert model is not None
    assert max(forecast_rates(history[: spike + DAY - 2], model)) < 2 * day_rate(30, DAY)


@pytest.mark.parametrize("unknown", [math.nan, -5.0, math.inf])
def test_unknown_rates_count_as_the_one_before(unknown: float) -> None:
    filled = fill_gaps([unknown, 3.0, unknown, unknown, 4.0])
    assert filled is not None
    assert filled.tolist() == [3.0, 3.0, 3.0, 4.0]
    assert fill_gaps([unknown, unknown]) is None


def test_history_that_is_too_short_gives_no_forecast() -> None:
    assert fit_forecast([], HOURLY) is None
    assert fit_forecast([1.0] * 47, HOURLY) is None
    assert fit_forecast([1.0] * 48, HOURLY) is not None
    assert fit_forecast([math.nan] * 500, HOURLY) is None


@pytest.mark.parametrize("quantile", [0.5, 0.9, 0.97])
def test_as_many_rates_are_below_the_forecast_as_the_quantile_says(quantile: float) -> None:
    history = days(12, DAY, noise=0.1)
    options = ForecastSettings(300.0, 4, quantile)
    below = total = 0
    for now in range(6 * DAY, 11 * DAY, 7):
        if (now - 6 * DAY) % (7 * 20) == 0:
            model = fit_forecast(history[:now], options)
        assert model is not None
        below += history[now + 3] <= forecast_rates(history[:now], model)[3]
        total += 1
    assert below / total == pytest.approx(quantile, abs=0.05)


def test_forecast_loses_less_than_the_day_before() -> None:
    history = days(12, DAY, noise=0.1)
    ours, naive, actual = [], [], []
    factor = float(np.quantile(np.array(history[DAY : 6 * DAY]) / np.array(history[: 5 * DAY]), 0.9))
    for now in range(6 * DAY, 11 * DAY, 11):
        if (now - 6 * DAY) % (11 * 20) == 0:
            model = fit_forecast(history[:now], FIVE_MINUTES)
        assert model is not None
        ours.append(forecast_rates(history[:now], model)[3])
        naive.append(factor * history[now + 3 - DAY])
        actual.append(history[now + 3])
    losses = [compute_pinball_loss(np.array(actual), np.array(rates), 0.9) for rates in (ours, naive)]
    assert losses[0] < 0.9 * losses[1]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0, 1e9), min_size=60, max_size=200))
def test_any_history_gives_the_same_finite_forecast(history: list[float]) -> None:
    model = fit_forecast(history, HOURLY)
    assert model == fit_forecast(list(history), HOURLY)
    assert model is not None
    rates = forecast_rates(history, model)
    assert len(rates) == 3
    assert all(math.isfinite(rate) and rate >= 0 for rate in rates)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((300.0, 4, 0.0), "forecast.quantile: 0 is not between 0 and 1"),
        ((300.0, 4, 1.0), "forecast.quantile: 1 is not between 0 and 1"),
        ((300.0, 4, math.nan), "forecast.quantile: nan is not between 0 and 1"),
        ((0.5, 4, 0.9), "forecast.interval: 0.5 s is not between 1 s and a day"),
        ((300.0, 0, 0.9), "forecast.horizon: is shorter than an interval"),
    ],
)
def test_impossible_settings_are_refused(options: tuple[float, int, float], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        ForecastSettings(*options)


@pytest.mark.parametrize(
    ("zone", "end", "before", "after"),
    [
        ("Europe/Berlin", datetime(2026, 3, 29, 17, 30, tzinfo=UTC), 12, 24),
        ("Europe/Berlin", datetime(2026, 10, 25, 17, 30, tzinfo=UTC), 24, 12),
        ("America/New_York", datetime(2026, 3, 8, 22, 30, tzinfo=UTC), -60, -48),
    ],
)
def test_hours_of_the_local_clock_are_forecast_on_the_day_on_which_it_is_changed(
    zone: str, end: datetime, before: int, after: int
) -> None:
    """Two weeks whose peaks come at the same local hours, until the evening after the change."""
    clock, count = LocalClock(ZoneInfo(zone), begin_s=end.timestamp()), 14 * DAY
    offsets = clock.read_offsets(-count, 12)
    assert offsets is not None
    assert (len(offsets), offsets[0], offsets[-1], set(offsets.tolist())) == (
        count + 12,
        before,
        after,
        {before, after},
    )
    first = round(end.timestamp() / BLOCK_S) - count
    local = [day_rate(first + number + int(offset), DAY) for number, offset in enumerate(offsets)]
    history, expected = local[:count], local[count:]
    settings_ = ForecastSettings(BLOCK_S, 12, 0.9)
    model = fit_forecast(history, settings_, offsets)
    assert model is not None
    assert forecast_rates(history, model, offsets) == pytest.approx(expected, rel=1e-6)
    # By the hours of UTC, it is not what comes.
    blind = fit_forecast(history, settings_)
    assert blind is not None
    assert forecast_rates(history, blind) != pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize(
    ("zone", "end"),
    [
        (UTC, datetime(2026, 3, 29, 17, 30, tzinfo=UTC)),
        (ZoneInfo("Etc/UTC"), datetime(2026, 3, 29, 17, 30, tzinfo=UTC)),
        (ZoneInfo("Asia/Kolkata"), datetime(2026, 3, 29, 17, 30, tzinfo=UTC)),
        (ZoneInfo("Europe/Berlin"), datetime(2026, 3, 28, 17, 30, tzinfo=UTC)),
    ],
)
def test_without_a_change_of_clocks_a_zone_changes_no_forecast(zone: tzinfo, end: datetime) -> None:
    clock, history = LocalClock(zone, begin_s=end.timestamp()), days(5, DAY, noise=0.1)[: -DAY // 4]
    assert clock.read_offsets(-len(history), 4) is None
    assert clock.read_offsets(0, 0) is None
    same = np.full(len(history) + 4, 12)
    model = fit_forecast(history, FIVE_MINUTES)
    assert model is not None
    assert fit_forecast(history, FIVE_MINUTES, same) == model
    assert forecast_rates(history, model, same) == forecast_rates(history, model)


class CountingZone(ZoneInfo):
    """A time zone with a count of how often its offset was read."""

    reads = 0

    def utcoffset(self, moment: datetime | None) -> timedelta | None:
        self.reads += 1
        return super().utcoffset(moment)


@pytest.mark.parametrize("day", [date(2026, 3, 20), date(2026, 3, 29)])
def test_a_pool_with_a_time_zone_reads_its_clock_once_for_equal_histories(day: date) -> None:
    zone = CountingZone.no_cache("Europe/Berlin")
    book, other = (ForecastBook[str](0.9, LocalClock(where)) for where in (zone, ZoneInfo("Europe/Berlin")))
    end_s = datetime.combine(day, time(17), UTC).timestamp()
    rates = [day_rate(number, DAY) for number in range(5 * DAY)]
    for key, missing in (("ctr", 0), ("rank", 0), ("new", 1)):
        for each in (book, other):
            each.add_history(key, end_s - (len(rates) - missing) * BLOCK_S, rates[missing:])
    first, reads = book.forecast_peak("ctr", end_s, 900.0), zone.reads
    assert reads > 0
    assert book.forecast_peak("rank", end_s, 900.0) == first
    assert zone.reads == reads
    # A shorter history has its own offsets.
    assert book.forecast_peak("new", end_s, 900.0) == other.forecast_peak("new", end_s, 900.0)
    assert zone.reads > reads
    assert other.forecast_peak("ctr", end_s, 900.0) == first


def fill_book(book: ForecastBook[str], count: int) -> float:
    """Add a rate every minute for `count` days; return the time after the last one."""
    for minute in range(count * 1440):
        book.add_rate("ctr", minute * 60.0, day_rate(minute, 1440))
    return count * DAY_S


def test_book_forecasts_the_peak_until_a_replica_would_serve() -> None:
    book = ForecastBook[str](0.9)
    now_s = fill_book(book, 4) + 18 * 3600
    for minute in range(18 * 60):
        book.add_rate("ctr", 4 * DAY_S + minute * 60.0, day_rate(minute, 1440))
    soon, later = (book.forecast_peak("ctr", now_s, ahead_s) for ahead_s in (60.0, 900.0))
    assert soon == pytest.approx(day_rate(18 * 60 + 4, 1440), rel=0.02)
    assert later == pytest.approx(day_rate(18 * 60 + 14, 1440), rel=0.02)
    assert book.forecast_peak("rank", now_s, 60.0) is None


def test_book_ignores_what_is_no_rate_and_what_comes_late() -> None:
    book, other = ForecastBook[str](0.9), ForecastBook[str](0.9)
    for minute in range(3 * 1440):
        for each in (book, other):
            each.add_rate("ctr", minute * 60.0, day_rate(minute, 1440))
        other.add_rate("ctr", minute * 60.0, math.nan)
        other.add_rate("ctr", minute * 60.0, -1.0)
        other.add_rate("ctr", minute * 60.0 - BLOCK_S, 1e6)
    ends = [each.forecast_peak("ctr", 3 * DAY_S, 300.0) for each in (book, other)]
    assert ends[0] is not None
    assert ends[0] == ends[1]


def test_history_before_a_gap_of_years_is_forgotten() -> None:
    book = ForecastBook[str](0.9)
    now_s = fill_book(book, 3) + 3 * 365 * DAY_S
    book.add_rate("ctr", now_s, 7.0)
    assert book.forecast_peak("ctr", now_s + 600, 60.0) is None


def test_only_the_keys_that_are_kept_have_a_forecast() -> None:
    book = ForecastBook[str](0.9)
    now_s = fill_book(book, 3)
    book.keep_only(frozenset({"ctr"}))
    assert book.forecast_peak("ctr", now_s, 60.0) is not None
    book.keep_only(frozenset())
    assert book.forecast_peak("ctr", now_s, 60.0) is None
