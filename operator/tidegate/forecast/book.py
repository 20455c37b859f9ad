"""The history of many rates, in blocks of some minutes, and the forecast of each."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, floor, inf, isfinite, nan
from typing import Final, Generic, TypeVar

from tidegate.forecast.blocks import BLOCK_S, DAY_S, HISTORY_S
from tidegate.forecast.local_clock import LocalClock, Offsets
from tidegate.forecast.seasonal import (
    ForecastModel,
    ForecastSettings,
    fit_forecast,
    forecast_rates,
)

KeyT = TypeVar("KeyT", bound=Hashable)

_FIT_AGAIN_S: Final = DAY_S / 4
_MAX_BLOCKS: Final = round(HISTORY_S / BLOCK_S)


@dataclass(slots=True)
class _RateHistory:
    """The highest rate of each block until `block`, which has not ended; NaN where nothing is known."""

    block: int
    highest: float = nan
    # Eight bytes for each block: a list of floats has four times as many.
    ended: array[float] = field(default_factory=lambda: array("d"))
    measured_blocks: int = 0
    fitted_s: float = -inf
    model: ForecastModel | None = None
    forecast: tuple[float, ...] | None = None
    """What the model makes of `ended`; None until it is asked for."""


class ForecastBook(Generic[KeyT]):
    """Rates by key; times are seconds, and go on."""

    def __init__(self, quantile: float, clock: LocalClock = LocalClock()) -> None:  # noqa: B008  it is frozen
        """Forecast `quantile`, with the days and weeks of `clock`, whose intervals are the blocks. Raises InvalidInputError."""
        self._quantile, self._clock = _check_quantile(quantile), clock
        self._histories: dict[KeyT, _RateHistory] = {}

    def change_settings(self, quantile: float, clock: LocalClock) -> None:
        """Forecast another quantile, or by another clock; each model is in use until it is fitted again.

        Raises InvalidInputError.
        """
        if (quantile, clock) == (self._quantile, self._clock):
            return
        self._quantile, self._clock = _check_quantile(quantile), clock
        for history in self._histories.values():
            history.fitted_s = -inf

    def add_rate(self, key: KeyT, now_s: float, rate: float) -> None:
        """Add a rate; one of an earlier block than the last, or no number, is ignored."""
        block = floor(now_s / BLOCK_S)
        history = self._histories.setdefault(key, _RateHistory(block))
        if block < history.block or not isfinite(rate) or rate < 0:
            return
        self._end_blocks(history, block)
        history.highest = rate if history.highest != history.highest else max(history.highest, rate)

    def add_history(self, key: KeyT, begin_s: float, rates: Sequence[float]) -> None:
        """Add the highest rates of the blocks from `begin_s` on, NaN where unknown; rates that were added before count."""
        begin = floor(begin_s / BLOCK_S)
        history = self._histories.setdefault(key, _RateHistory(begin + len(rates)))
        first = history.block - _MAX_BLOCKS
        merged = array("d", [nan]) * _MAX_BLOCKS
        for start, blocks in ((begin, rates), (history.block - len(history.ended), history.ended)):
            for block, rate in enumerate(blocks, start):
                if first <= block < history.block and isfinite(rate) and rate >= 0:
                    merged[block - first] = rate
        leading = next((index for index, rate in enumerate(merged) if isfinite(rate)), _MAX_BLOCKS)
        history.ended = merged[leading:]
        history.measured_blocks = _count_rates(history.ended)
        history.fitted_s, history.forecast = -inf, None

    def forecast_peak(self, key: KeyT, now_s: float, ahead_s: float, *, may_fit: bool = True) -> float | None:
        """Return the highest quantile of the blocks from now to `ahead_s` later; None if the history is too short.

        Without `may_fit` the last model is used however old it is, and as far ahead as it was fitted: fitting takes some 30 ms.
        """
        history = self._histories.get(key)
        if history is None:
            return None
        block = floor(now_s / BLOCK_S)
        self._end_blocks(history, block)
        if may_fit and _is_due(history, now_s, ahead_s):
            settings = ForecastSettings(BLOCK_S, _count_leads(ahead_s), self._quantile)
            history.model = fit_forecast(history.ended, settings, self._read_offsets(history, 0))
            history.fitted_s, history.forecast = now_s, None
        if history.model is None:
            return None
        if history.forecast is None:
            offsets = self._read_offsets(history, len(history.model.factors))
            history.forecast = forecast_rates(history.ended, history.model, offsets)
        leads = ceil((now_s + ahead_s) / BLOCK_S) - block
        return max(history.forecast[: max(leads, 1)], default=None)

    def measure_history_s(self, key: KeyT, now_s: float) -> float:
        """Return the length of the ended blocks that have a rate, in seconds."""
        history = self._histories.get(key)
        if history is None:
            return 0.0
        self._end_blocks(history, floor(now_s / BLOCK_S))
        return history.measured_blocks * BLOCK_S

    def list_due(self, ahead_s: Mapping[KeyT, float], now_s: float) -> tuple[KeyT, ...]:
        """Return those of the keys that have a history and should be fitted again, the longest ago first.

        `ahead_s` has how far ahead each is to be forecast.
        """
        due = [
            (history.fitted_s, key)
            for key, seconds in ahead_s.items()
            if (history := self._histories.get(key)) is not None and _is_due(history, now_s, seconds)
        ]
        return tuple(key for _, key in sorted(due, key=lambda pair: pair[0]))

    def keep_only(self, keys: frozenset[KeyT]) -> None:
        """Forget all other keys."""
        for key in self._histories.keys() - keys:
            del self._histories[key]

    def _read_offsets(self, history: _RateHistory, leads: int) -> Offsets | None:
        """Return the offsets of the ended blocks and of `leads` blocks after them."""
        return self._clock.read_offsets(history.block - len(history.ended), history.block + leads)

    @staticmethod
    def _end_blocks(history: _RateHistory, block: int) -> None:
        passed = min(block - history.block, _MAX_BLOCKS)
        if passed <= 0:
            return
        history.ended.extend([history.highest, *[nan] * (passed - 1)])
        history.measured_blocks += isfinite(history.highest)
        history.measured_blocks -= _count_rates(history.ended[:-_MAX_BLOCKS])
        del history.ended[:-_MAX_BLOCKS]
        history.block, history.highest, history.forecast = block, nan, None


def _check_quantile(quantile: float) -> float:
    return ForecastSettings(BLOCK_S, 1, quantile).quantile


def _count_leads(ahead_s: float) -> int:
    """Return the blocks that a time from any moment of a block on reaches into."""
    return ceil(ahead_s / BLOCK_S) + 1


def _is_due(history: _RateHistory, now_s: float, ahead_s: float) -> bool:
    """Return whether a model is old, or does not reach as far ahead as it should."""
    reach = inf if history.model is None else len(history.model.factors)
    return now_s - history.fitted_s >= _FIT_AGAIN_S or reach < _count_leads(ahead_s)


def _count_rates(rates: Iterable[float]) -> int:
    return sum(map(isfinite, rates))
