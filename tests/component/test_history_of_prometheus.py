"""The rates of the last weeks from a real Prometheus: the recorded ones, and those that it works out from the counters."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from math import isnan
from pathlib import Path

import pytest

from builders.stored_series import store_series
from fixtures.prometheus import RunningPrometheus
from tidegate.api.meta import ObjectKey
from tidegate.telemetry.rate_history import PrometheusRateHistory
from tidegate.telemetry.recorded_rates import PrometheusRecording
from tidegate.telemetry.recording_rules import SIGNAL_DEMAND

CTR = ObjectKey("ads", "ctr")
BLOCK = timedelta(minutes=5)
SCRAPE = timedelta(seconds=15)
OFFSET = timedelta(seconds=7)
"""No sample is at the border of two blocks."""


def recorded(end: datetime) -> Iterator[str]:
    """An hour of 20/s, with 50/s for a quarter of a minute in each five."""
    yield f"# TYPE {SIGNAL_DEMAND} gauge"
    for number in range(240):
        rate = 50 if number % 20 == 10 else 20
        at = end - timedelta(hours=1) + number * SCRAPE + OFFSET
        yield f'{SIGNAL_DEMAND}{{namespace="ads",inference="ctr"}} {rate} {at.timestamp():.0f}'


def counted(end: datetime) -> Iterator[str]:
    """An hour in which two gateways send 3/s and 4/s to ads/ctr, and one of them repeats 1/s."""
    for counter, pods in (("upstream_rq_total", {"a": 3, "b": 4}), ("upstream_rq_retry", {"a": 1})):
        yield f"# TYPE envoy_cluster_{counter} counter"
        for pod, rate in pods.items():
            for number in range(240):
                at = end - timedelta(hours=1) + number * SCRAPE + OFFSET
                labels = f'envoy_cluster_name="inference/ads/ctr/rest",pod="{pod}"'
                yield f"envoy_cluster_{counter}{{{labels}}} {15 * rate * number} {at.timestamp():.0f}"


async def test_four_weeks_come_from_recorded_rates_and_from_counters(
    prometheus: RunningPrometheus, promtool: Path
) -> None:
    now = datetime.now(UTC)
    end = datetime.fromtimestamp(now.timestamp() // 300 * 300, UTC)
    yesterday = end - timedelta(days=1, hours=2)
    store_series(recorded(end - timedelta(hours=4)), promtool, prometheus.folder)
    store_series(counted(yesterday), promtool, prometheus.folder)
    prometheus.start()
    history = await PrometheusRateHistory(prometheus.url).read_history(frozenset({CTR}), now)
    assert history.problem == ""
    rates = [
        (history.begin + number * BLOCK, rate)
        for number, rate in enumerate(history.rates[CTR])
        if not isnan(rate)
    ]
    newest = [rate for begin, rate in rates if begin >= end - timedelta(days=1)]
    assert newest == [50.0] * 12
    older = [rate for begin, rate in rates if begin < yesterday]
    assert older == [pytest.approx(6.0, rel=0.02)] * 12
    assert len(older) + len(newest) <= len(rates) <= len(older) + len(newest) + 1
    assert rates[0][0] == yesterday - timedelta(hours=1)


async def test_the_minutes_of_a_day_come_from_recorded_rates_and_from_counters_with_their_gap(
    prometheus: RunningPrometheus, promtool: Path
) -> None:
    now = datetime.now(UTC)
    end = datetime.fromtimestamp(now.timestamp() // 3600 * 3600, UTC) - timedelta(hours=3)
    # An hour of counters, many hours of nothing, and an hour of recorded rates.
    store_series(counted(end - timedelta(hours=18)), promtool, prometheus.folder)
    store_series(recorded(end), promtool, prometheus.folder)
    prometheus.start()
    begin, minute = end - timedelta(hours=19), timedelta(minutes=1)
    found = await PrometheusRecording(prometheus.url).read_rates(frozenset({CTR}), begin, 19 * 60, minute)
    rates = found[CTR]
    # Each gateway's first minute has no rate yet.
    assert rates[2:59] == [pytest.approx(6.0, rel=0.02)] * 57
    assert rates[62 : 18 * 60] == [None] * (18 * 60 - 62)
    assert [rate for rate in rates[18 * 60 :] if rate is None] == []
    # A quarter of a minute in each five is 50/s, and the rest 20/s.
    assert sorted({round(rate, 3) for rate in rates[18 * 60 :] if rate is not None}) == [20.0, 27.5]


async def test_a_prometheus_that_has_ended_is_reported(prometheus: RunningPrometheus) -> None:
    history = await PrometheusRateHistory(prometheus.url).read_history(frozenset({CTR}), datetime.now(UTC))
    assert history.problem.startswith(f"earlier rates cannot be read from Prometheus {prometheus.url}: ")
    assert all(map(isnan, history.rates[CTR]))
