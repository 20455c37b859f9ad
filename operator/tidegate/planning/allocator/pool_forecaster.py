"""Forecast the demand for the real-time Inferences of one pool from the rates that its signals confirm."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from math import ceil
from typing import Final

from tidegate.api.compute_pool import ForecastPolicy
from tidegate.api.meta import ObjectKey
from tidegate.forecast.blocks import DAY_S
from tidegate.forecast.book import ForecastBook
from tidegate.forecast.local_clock import LocalClock
from tidegate.planning.allocator.confirmed_signals import ConfirmedSignals
from tidegate.planning.allocator.forecasts import DemandForecasts, RateHistory
from tidegate.planning.allocator.schedules import UnknownTimeZoneError, load_time_zone
from tidegate.planning.allocator.signals import MAX_RATE_PER_S, Signals

MIN_HISTORY_S: Final = DAY_S
"""Rates of less than a day show no daily season."""
_INFERENCES_PER_FIT: Final = 32
"""A fit takes 20 ms, and 70 ms at the longest lead: 0.5 to 3 ms for each Inference, in 32 ticks of every six hours."""


class PoolForecaster:
    """The rates of a pool's Inferences for the last four weeks, and the models that forecast them."""

    def __init__(self, policy: ForecastPolicy) -> None:
        self._book = ForecastBook[ObjectKey](float(policy.quantile))
        self._confirmed = ConfirmedSignals()
        self._history_problem = ""

    def add_history(self, history: RateHistory) -> None:
        """Add rates from before the first signal."""
        for key, rates in history.rates.items():
            self._book.add_history(key, history.begin.timestamp(), rates)
        self._history_problem = history.problem

    def forecast_demand(
        self, policy: ForecastPolicy, leads: Mapping[ObjectKey, timedelta], signals: Signals, now: datetime
    ) -> DemandForecasts:
        """Add the rates that the signals confirm, and forecast the demand of Inferences within their leads; all others are forgotten.

        Without its time zone the policy forecasts nothing, and the rates are kept.
        Takes about 0.2 ms for each Inference, and 20 to 70 ms for each of the few that are fitted in a tick.
        """
        keys = frozenset(leads)
        self._book.keep_only(keys)
        for key, signal in self._confirmed.select_confirmed(keys, signals):
            self._book.add_rate(key, signal.read_at.timestamp(), signal.offered_per_s)
        try:
            clock = LocalClock(load_time_zone(policy.time_zone))
        except UnknownTimeZoneError as error:
            return DemandForecasts(policy_problem=f"spec.policy.forecast.{error}")
        self._book.change_settings(float(policy.quantile), clock)
        now_s = now.timestamp()
        short = frozenset(key for key in keys if self._book.measure_history_s(key, now_s) < MIN_HISTORY_S)
        ahead_s = {key: leads[key].total_seconds() for key in sorted(keys - short)}
        fitted = frozenset(self._book.list_due(ahead_s, now_s)[: ceil(len(keys) / _INFERENCES_PER_FIT)])
        peaks: dict[ObjectKey, float] = {}
        for key, seconds in ahead_s.items():
            peak = self._book.forecast_peak(key, now_s, seconds, may_fit=key in fitted)
            if peak is not None:
                peaks[key] = min(peak, MAX_RATE_PER_S)
        return DemandForecasts(peaks, short, history_problem=self._history_problem)
