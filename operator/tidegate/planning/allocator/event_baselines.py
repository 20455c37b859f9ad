"""Remember the rate of each Inference before its present events, so that demand that an event brings is not multiplied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from datetime import datetime, timedelta
from math import isfinite
from typing import Final

from tidegate.api.demand_events import DemandEvent
from tidegate.api.meta import ObjectKey
from tidegate.forecast.blocks import BLOCK_S
from tidegate.planning.allocator.event_calendar import (
    BASELINE_WINDOW,
    EventCalendar,
    EventDemand,
    Occurrence,
)
from tidegate.planning.allocator.forecasts import RateHistory

_MINUTE_S: Final = 60.0
BASELINE_MEMORY: Final = timedelta(hours=2)
"""How long rates are remembered: longer than an event is near before it begins, with its baseline window."""


class EventBaselines:
    """The highest rates of each minute of the last two hours, and the baseline of each Inference in an event."""

    def __init__(self) -> None:
        self._rates: dict[ObjectKey, dict[int, float]] = {}
        self._baselines: dict[ObjectKey, tuple[datetime, float]] = {}
        """When the first event in a row begins, and the rate before it."""
        self._ends: dict[ObjectKey, datetime] = {}
        """When the last of the events that were near at the last plan ends."""

    def add_rate(self, key: ObjectKey, read_at: datetime, rate: float) -> None:
        """Add a confirmed rate."""
        minute, rates = int(read_at.timestamp() // _MINUTE_S), self._rates.setdefault(key, {})
        if minute not in rates:
            for old in [old for old in rates if old < minute - BASELINE_MEMORY // timedelta(minutes=1)]:
                del rates[old]
        rates[minute] = max(rate, rates.get(minute, 0.0))

    def add_history(self, history: RateHistory) -> None:
        """Add rates of before this term."""
        for key, rates in history.rates.items():
            self._rates[key] = {**_place_blocks(history.begin, rates), **self._rates.get(key, {})}

    def plan_demand(
        self, calendar: EventCalendar, keys: Set[ObjectKey], now: datetime
    ) -> Mapping[ObjectKey, EventDemand]:
        """Return the demand of the Inferences that an event is near to; all but `keys` are forgotten."""
        self._rates = {key: rates for key, rates in self._rates.items() if key in keys}
        self._baselines = {key: baseline for key, baseline in self._baselines.items() if key in keys}
        near = calendar.find_near(now)
        firsts: dict[tuple[DemandEvent, ...], Occurrence | None] = {}
        demands: dict[ObjectKey, EventDemand] = {}
        ends: dict[ObjectKey, datetime] = {}
        for key in sorted(keys) if near else ():
            events = calendar.select_concerning(key)
            concerning = [item for item in near if item.event in events]
            if not concerning:
                continue
            largest = concerning[0].event
            ends[key] = max(item.ends for item in concerning)
            if events not in firsts:
                firsts[events] = calendar.find_first(events, now)
            first = firsts[events]
            quiet_until = None if first is None else first.opens
            baseline = self._find_baseline(key, first, now)
            demands[key] = EventDemand(largest.name, float(largest.factor), quiet_until, baseline)
        self._ends = ends
        return demands

    def _find_baseline(self, key: ObjectKey, first: Occurrence | None, now: datetime) -> float | None:
        """Return the rate before the first event in a row, and remember it until another row begins.

        Another lead makes other rows: while the events run, or if the row now begins earlier, the baseline stays.
        """
        if key in self._baselines:
            begins, remembered = self._baselines[key]
            if (key in self._ends and now < self._ends[key]) or (first and first.begins <= begins):
                return remembered
        self._baselines.pop(key, None)
        if first is None:
            return None
        rates = self._rates.get(key, {})
        # Controllers that start while the event is near have only rates of then, which are still without it.
        baseline = _find_highest(rates, first.opens - BASELINE_WINDOW, first.opens)
        if baseline is None:
            baseline = _find_highest(rates, first.opens, first.begins)
        if baseline is not None:
            self._baselines[key] = first.begins, baseline
        return baseline


def _place_blocks(begin: datetime, rates: Sequence[float]) -> dict[int, float]:
    """Return the rates of blocks, at the first minute of each."""
    begin_s = begin.timestamp()
    return {
        int((begin_s + number * BLOCK_S) // _MINUTE_S): rate
        for number, rate in enumerate(rates)
        if isfinite(rate)
    }


def _find_highest(rates: Mapping[int, float], begin: datetime, end: datetime) -> float | None:
    """Return the highest rate of the minutes that begin in a time."""
    begin_s, end_s = begin.timestamp(), end.timestamp()
    return max(
        (rate for minute, rate in rates.items() if begin_s <= minute * _MINUTE_S < end_s), default=None
    )
