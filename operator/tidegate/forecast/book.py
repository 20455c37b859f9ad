"""The history of many rates, in blocks of some minutes, and the forecast of each."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from math import ceil, floor, inf, isfinite, nan
from typing import Final, Generic, TypeVar

from tidegate.forecast.seasonal import (
    DAY_S,
    WEEK_S,
    ForecastModel,
    ForecastSettings,
    fit_forecast,
    forecast_rates,
)

KeyT = TypeVar("KeyT", bound=Hashable)

BLOCK_S: Final = 300.0
HISTORY_S: Final = 4 * WEEK_S
_FIT_AGAIN_S: Final = DAY_S / 4
_MAX_BLOCKS: Final = round(HISTORY_S / BLOCK_S)


@dataclass(slots=True)
class _RateHistory:
    """The highest rate of each block until `block`, which has not ended; NaN where nothing is known."""

    block: int
    highest: float = nan
    ended: list[float] = field(default_factory=list[float])
    fitted_s: float = -inf
    model: ForecastModel | None = None


class ForecastBook(Generic[KeyT]):
    """Rates by key; times are seconds, and go on."""

    def __init__(self, quantile: float, leads: int = 4) -> None:
        """Forecast `quantile`, at most `leads` blocks ahead. Raises InvalidInputError."""
        self._settings = ForecastSettings(BLOCK_S, leads, quantile)
        self._histories: dict[KeyT, _RateHistory] = {}

    def add_rate(self, key: KeyT, now_s: float, rate: float) -> None:
        """Add a rate; one of an earlier block than the last, or no number, is ignored."""
        block = floor(now_s / BLOCK_S)
        history = self._histories.setdefault(key, _RateHistory(block))
        if block < history.block or not isfinite(rate) or rate < 0:
            return
        self._end_blocks(history, block)
        history.highest = rate if history.highest != history.highest else max(history.highest, rate)

    def forecast_peak(self, key: KeyT, now_s: float, ahead_s: float) -> float | None:
        """Return the highest quantile of the blocks from now to `ahead_s` later; None if the history is too short."""
        history = self._histories.get(key)
        if history is None:
            return None
        block = floor(now_s / BLOCK_S)
        self._end_blocks(history, block)
        if now_s - history.fitted_s >= _FIT_AGAIN_S:
            history.model = fit_forecast(history.ended, self._settings)
            history.fitted_s = now_s
        if history.model is None:
            return None
        leads = ceil((now_s + ahead_s) / BLOCK_S) - block
        return max(forecast_rates(history.ended, history.model, max(leads, 1)), default=None)

    def keep_only(self, keys: frozenset[KeyT]) -> None:
        """Forget all other keys."""
        for key in self._histories.keys() - keys:
            del self._histories[key]

    @staticmethod
    def _end_blocks(history: _RateHistory, block: int) -> None:
        passed = min(block - history.block, _MAX_BLOCKS)
        if passed <= 0:
            return
        history.ended += [history.highest, *[nan] * (passed - 1)]
        del history.ended[:-_MAX_BLOCKS]
        history.block, history.highest = block, nan
