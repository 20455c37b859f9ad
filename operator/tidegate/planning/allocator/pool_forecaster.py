"""Forecast the demand for the real-time Inferences of one pool from the rates that its signals confirm."""

from __future__ import annotations

from datetime import datetime
from math import ceil
from typing import Final

from tidegate.api.compute_pool import ForecastPolicy
from tidegate.api.durations import parse_duration
from tidegate.api.meta import ObjectKey
from tidegate.forecast.blocks import BLOCK_S
from tidegate.forecast.book import ForecastBook
from tidegate.forecast.seasonal import DAY_S
from tidegate.planning.allocator.confirmed_signals import ConfirmedSignals
from tidegate.planning.allocator.forecasts import DemandForecasts, RateHistory
from tidegate.planning.allocator.signals import MAX_RATE_PER_S, Signals

MIN_HISTORY_S: Final = DAY_S
"""Rates of less than a day show no daily season."""
_INFERENCES_PER_FIT: Final = 32
"""A fit takes 20 ms, and 70 ms at the longest horizon: 0.5 to 3 ms for each Inference, in 32 ticks of every six hours."""


class PoolForecaster:
    """The rates of a pool's Inferences for the last four weeks, and the models that forecast them."""

    def __init__(self, policy: ForecastPolicy) -> None:
        quantile, leads = _read_policy(policy)
        self._book = ForecastBook[ObjectKey](quantile, leads)
        self._confirmed = ConfirmedSignals()
        self._history_problem = ""

    def add_history(self, history: RateHistory) -> None:
        """Add rates from before the first signal."""
        for key, rates in history.rates.items():
            self._book.add_history(key, history.begin.timestamp(), rates)
        self._history_problem = history.problem

    def forecast_demand(
        self, policy: ForecastPolicy, keys: frozenset[ObjectKey], signals: Signals, now: datetime
    ) -> DemandForecasts:
        """Add the rates that the signals confirm, and forecast the demand of the Inferences `keys`; all others are forgotten.

        Takes about 0.2 ms for each Inference, and 20 to 70 ms for each of the few that are fitted in a tick.
        """
        self._book.change_settings(*_read_policy(policy))
        self._book.keep_only(keys)
        for key, signal in self._confirmed.select_confirmed(keys, signals):
            self._book.add_rate(key, signal.read_at.timestamp(), signal.offered_per_s)
        now_s = now.timestamp()
        short = frozenset(key for key in keys if self._book.measure_history_s(key, now_s) < MIN_HISTORY_S)
        due = self._book.list_due(sorted(keys - short), now_s)
        fitted = due[: ceil(len(keys) / _INFERENCES_PER_FIT)]
        ahead_s = parse_duration(policy.horizon).total_seconds()
        peaks: dict[ObjectKey, float] = {}
        for key in sorted(keys - short):
            peak = self._book.forecast_peak(key, now_s, ahead_s, may_fit=key in fitted)
            if peak is not None:
                peaks[key] = min(peak, MAX_RATE_PER_S)
        return DemandForecasts(peaks, short, history_problem=self._history_problem)


def _read_policy(policy: ForecastPolicy) -> tuple[float, int]:
    """Return the quantile, and the blocks of the book that the horizon reaches into."""
    return float(policy.quantile), ceil(parse_duration(policy.horizon).total_seconds() / BLOCK_S) + 1
