"""Seasonal forecasts with quantiles from their own back-test.

The rate of a moment is that of the same moment in earlier days or weeks (the median of up to four), scaled by how far the latest
rates are from theirs; the further ahead, the less that scale counts. Which season, and how fast the scale is forgotten, is what
would have been best over the newest day. The quantile is that of the same back-test's errors, so a rate that is hard to forecast
gets a wide margin by itself. A rate without a season is forecast as the present one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

import numpy as np
import numpy.typing as npt

from tidegate.allocation.errors import InvalidInputError

DAY_S: Final = 86_400.0
WEEK_S: Final = 7 * DAY_S
_MAX_PERIODS: Final = 4
"""Earlier days or weeks of which the median is taken."""
_WINDOWS: Final = (1, 3, 12)
"""Latest rates that are compared with those of the season."""
_DECAYS: Final = (0.8, 0.95, 1.0)
"""What remains of the scale after each interval."""
_MIN_SCALE, _MAX_SCALE = 0.2, 5.0
_MIN_SHARE: Final = 0.02
"""Forecasts below this share of the mean count as that much when errors are compared."""
_MIN_BACK_TEST: Final = 24

Rates = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ForecastSettings:
    """Length of an interval in seconds, intervals to look ahead, and the quantile to forecast, between 0 and 1."""

    interval_s: float
    leads: int
    quantile: float = 0.9

    def __post_init__(self) -> None:
        if not 0 < self.quantile < 1:
            raise InvalidInputError("forecast.quantile", f"{self.quantile:g} is not between 0 and 1")
        if not 1 <= self.interval_s <= DAY_S:
            raise InvalidInputError(
                "forecast.interval", f"{self.interval_s:g} s is not between 1 s and a day"
            )
        if self.leads < 1:
            raise InvalidInputError("forecast.horizon", "is shorter than an interval")


@dataclass(frozen=True, slots=True)
class ForecastModel:
    """What was chosen for one Inference, and the factor of each lead that makes it the quantile.

    `period` is the season in intervals, 0 for the present rate. `loss` is the mean pinball loss of the back-test, in requests per
    second.
    """

    period: int
    window: int
    decay: float
    factors: tuple[float, ...]
    loss: float


def fit_forecast(history: Sequence[float], settings: ForecastSettings) -> ForecastModel | None:
    """Choose the model that would have forecast the newest day best; None for a history that is too short to tell.

    `history` has one rate per interval, the newest last; NaN where it is unknown.
    """
    rates = fill_gaps(history)
    if rates is None:
        return None
    day = round(DAY_S / settings.interval_s)
    count = min(max(day, _MIN_BACK_TEST), len(rates) // 2)
    if count < _MIN_BACK_TEST or len(rates) < count + settings.leads:
        return None
    floor = max(_MIN_SHARE * float(rates.mean()), 1e-9)
    best: ForecastModel | None = None
    for candidate in _list_candidates(len(rates), count, settings):
        factors: list[float] = []
        losses: list[float] = []
        for lead in range(1, settings.leads + 1):
            forecast = np.maximum(_forecast_past(rates, candidate, lead, count), floor)
            actual = rates[-count:]
            factor = float(np.quantile(actual / forecast, settings.quantile))
            factors.append(factor)
            losses.append(compute_pinball_loss(actual, forecast * factor, settings.quantile))
        loss = float(np.mean(losses))
        if best is None or loss < best.loss:
            best = ForecastModel(*candidate, tuple(factors), loss)
    return best


def forecast_rates(history: Sequence[float], model: ForecastModel) -> tuple[float, ...]:
    """Return the quantile of the rate in each of the next intervals, as many as the model was fitted for."""
    rates = fill_gaps(history)
    if rates is None:
        return ()
    steps = np.arange(1, len(model.factors) + 1)
    if model.period == 0:
        forecast = np.full(len(steps), rates[-1])
    else:
        profile = _compute_profile(rates, model.period, len(rates) - model.window, len(rates) + len(steps))
        scale = _compute_scales(rates[-model.window :], profile[: model.window], model.window)[-1]
        forecast = profile[model.window :] * (1 + (scale - 1) * model.decay**steps)
    return tuple(float(rate) for rate in forecast * np.asarray(model.factors))


def fill_gaps(history: Sequence[float]) -> Rates | None:
    """Return the rates with each unknown one replaced by the one before; None without a known rate.

    Negative and infinite rates count as unknown, and those before the first known one are left out.
    """
    rates = np.asarray(history, dtype=np.float64)
    valid = np.isfinite(rates) & (rates >= 0)
    if not valid.any():
        return None
    positions = np.maximum.accumulate(np.where(valid, np.arange(len(rates)), -1))
    first = int(np.argmax(valid))
    return np.asarray(rates[positions[first:]])


def compute_pinball_loss(actual: Rates, forecast: Rates, quantile: float) -> float:
    """Return the mean pinball loss of forecasts of a quantile (Koenker and Bassett, 1978): lower is better."""
    errors = actual - forecast
    return float(np.mean(np.maximum(quantile * errors, (quantile - 1) * errors)))


def _list_candidates(length: int, count: int, settings: ForecastSettings) -> Iterable[tuple[int, int, float]]:
    """Yield (period, window, decay) of the models whose season the history has once before the back-test."""
    yield 0, 1, 1.0
    for season in (DAY_S, WEEK_S):
        period = round(season / settings.interval_s)
        if period > settings.leads and length >= count + period + max(_WINDOWS) + settings.leads:
            yield from product((period,), _WINDOWS, _DECAYS)


def _forecast_past(rates: Rates, candidate: tuple[int, int, float], lead: int, count: int) -> Rates:
    """Return what would have been forecast for the newest `count` rates, `lead` intervals before each."""
    period, window, decay = candidate
    total = len(rates)
    if period == 0:
        return rates[total - count - lead : total - lead]
    first = total - count - lead - window + 1
    profile = _compute_profile(rates, period, first, total)
    scales = _compute_scales(rates[first : total - lead], profile[: total - lead - first], window)
    return np.asarray(profile[-count:] * (1 + (scales - 1) * decay**lead))


def _compute_profile(rates: Rates, period: int, first: int, end: int) -> Rates:
    """Return the median of the rates whole periods before the intervals from `first` to before `end`.

    An interval beyond the newest rate is at most a period ahead of it.
    """
    positions = np.arange(first, end)
    earlier = positions[:, None] - period * np.arange(1, _MAX_PERIODS + 1)
    return np.asarray(np.nanmedian(np.where(earlier >= 0, rates[np.maximum(earlier, 0)], np.nan), axis=1))


def _compute_scales(rates: Rates, profile: Rates, window: int) -> Rates:
    """Return for each window the sum of its rates over that of its profile, within limits."""
    kernel = np.ones(window)
    actual, seasonal = np.convolve(rates, kernel, "valid"), np.convolve(profile, kernel, "valid")
    return np.asarray(np.clip(actual / np.maximum(seasonal, 1e-9), _MIN_SCALE, _MAX_SCALE))
