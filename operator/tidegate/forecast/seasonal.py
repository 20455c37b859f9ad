"""Seasonal forecasts with quantiles from their own back-test.

The rate of a moment is that of the same moment in earlier days or weeks (the median of up to four), scaled by how far the latest
rates are from theirs; the further ahead, the less that scale counts. Which season, and how fast the scale is forgotten, is what
would have been best over the newest day. The quantile is that of the same back-test's errors, so a rate that is hard to forecast
gets a wide margin by itself. A rate without a season is forecast as the present one.

The same moment is the same time of the local clock: while clocks are changed, it is an hour more or less than whole days before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

import numpy as np
import numpy.typing as npt

from tidegate.allocation.errors import InvalidInputError
from tidegate.forecast.blocks import DAY_S
from tidegate.forecast.local_clock import Offsets

WEEK_S: Final = 7 * DAY_S
_MAX_PERIODS: Final = 4
"""Largest number of earlier days or weeks whose median is the forecast."""
_WINDOWS: Final = (1, 3, 12)
"""Latest rates that are compared with those of the season."""
_LONG_WINDOW_S: Final = 21_600.0
"""A longer time over which they are compared: the level of a rate with spikes."""
_DECAYS: Final = (0.8, 1.0)
"""What remains of the scale after each interval."""
_MARGIN_S: Final = 1800.0
"""Time before and after a moment over which the season's rates are averaged, or not: spikes do not come back to the minute."""
_MIN_SCALE, _MAX_SCALE = 0.2, 5.0
_MIN_SHARE: Final = 0.02
"""Forecasts below this share of the mean count as that much when errors are compared."""
_MIN_BACK_TEST: Final = 24

Rates = npt.NDArray[np.float64]
_Candidate = tuple[int, int, float, int]
"""Period, window, decay and margin of a model."""


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

    @property
    def window_choices(self) -> tuple[int, ...]:
        """Return the numbers of latest rates that may be compared with those of the season."""
        return tuple(sorted({*_WINDOWS, max(round(_LONG_WINDOW_S / self.interval_s), 1)}))

    @property
    def margin_choices(self) -> tuple[int, ...]:
        """Return the intervals before and after over which the season's rates may be averaged."""
        return tuple(sorted({0, round(_MARGIN_S / self.interval_s)}))


@dataclass(frozen=True, slots=True)
class ForecastModel:
    """What was chosen for one Inference, and the factor of each lead that makes it the quantile.

    `period` is the season in intervals, 0 for the present rate. `loss` is the mean pinball loss of the back-test, in requests per
    second.
    """

    period: int
    window: int
    decay: float
    margin: int
    factors: tuple[float, ...]
    loss: float


def fit_forecast(
    history: Sequence[float], settings: ForecastSettings, offsets: Offsets | None = None
) -> ForecastModel | None:
    """Choose the model that would have forecast the newest day best; None for a history that is too short to tell.

    `history` has one rate per interval, the newest last; NaN where it is unknown. `offsets` has those of the history's intervals
    and may have those of later ones; None if they are all equal.
    """
    rates = fill_gaps(history)
    if rates is None:
        return None
    day = round(DAY_S / settings.interval_s)
    count = min(max(day, _MIN_BACK_TEST), len(rates) // 2)
    if count < _MIN_BACK_TEST or len(rates) < count + settings.leads:
        return None
    floor = max(_MIN_SHARE * float(rates.mean()), 1e-9)
    back_test = _BackTest(rates, count, _skip_offsets(offsets, len(history) - len(rates)))
    best: ForecastModel | None = None
    for candidate in _list_candidates(len(rates), count, settings):
        factors: list[float] = []
        losses: list[float] = []
        for lead in range(1, settings.leads + 1):
            forecast = np.maximum(back_test.forecast_past(candidate, lead), floor)
            actual = rates[-count:]
            factor = float(np.quantile(actual / forecast, settings.quantile))
            factors.append(factor)
            losses.append(compute_pinball_loss(actual, forecast * factor, settings.quantile))
        loss = float(np.mean(losses))
        if best is None or loss < best.loss:
            best = ForecastModel(*candidate, tuple(factors), loss)
    return best


def forecast_rates(
    history: Sequence[float], model: ForecastModel, offsets: Offsets | None = None
) -> tuple[float, ...]:
    """Return the quantile of the rate in each of the next intervals, as many as the model was fitted for.

    `offsets` has those of the history's intervals and of the next ones; None if they are all equal.
    """
    rates = fill_gaps(history)
    if rates is None:
        return ()
    steps = np.arange(1, len(model.factors) + 1)
    if model.period == 0:
        forecast = np.full(len(steps), rates[-1])
    else:
        profile = _compute_profile(
            rates,
            model.period,
            model.margin,
            range(len(rates) - model.window, len(rates) + len(steps)),
            _skip_offsets(offsets, len(history) - len(rates)),
        )
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


def _list_candidates(length: int, count: int, settings: ForecastSettings) -> Iterable[_Candidate]:
    """Yield the models whose season the history has once before the back-test."""
    yield 0, 1, 1.0, 0
    needed = count + max(settings.window_choices) + max(settings.margin_choices) + settings.leads
    for season in (DAY_S, WEEK_S):
        period = round(season / settings.interval_s)
        if period > settings.leads and length >= needed + period:
            yield from product((period,), settings.window_choices, _DECAYS, settings.margin_choices)


class _BackTest:
    """What each model would have forecast for the newest `count` rates."""

    def __init__(self, rates: Rates, count: int, offsets: Offsets | None) -> None:
        self._rates = rates
        self._count = count
        self._offsets = offsets
        self._profiles: dict[tuple[int, int], Rates] = {}

    def forecast_past(self, candidate: _Candidate, lead: int) -> Rates:
        """Return what would have been forecast for each rate, `lead` intervals before."""
        period, window, decay, margin = candidate
        rates, total = self._rates, len(self._rates)
        if period == 0:
            return rates[total - self._count - lead : total - lead]
        first = total - self._count - lead - window + 1
        profile = self._get_profile(period, margin)[-(total - first) :]
        scales = _compute_scales(rates[first : total - lead], profile[: total - lead - first], window)
        return np.asarray(profile[-self._count :] * (1 + (scales - 1) * decay**lead))

    def _get_profile(self, period: int, margin: int) -> Rates:
        """Return the profile of the rates that have one a period before, margin included."""
        profile = self._profiles.get((period, margin))
        if profile is None:
            intervals = range(period + margin, len(self._rates))
            profile = _compute_profile(self._rates, period, margin, intervals, self._offsets)
            self._profiles[period, margin] = profile
        return profile


def _skip_offsets(offsets: Offsets | None, count: int) -> Offsets | None:
    return None if offsets is None else offsets[count:]


def _compute_profile(
    rates: Rates, period: int, margin: int, intervals: range, offsets: Offsets | None
) -> Rates:
    """Return the median of the rates whole periods before some intervals, averaged over the margin.

    An interval beyond the newest rate is at most a period ahead of it. With `offsets`, a period is whole in local time.
    """
    positions = np.arange(intervals.start - margin, intervals.stop + margin)
    earlier = positions[:, None] - period * np.arange(1, _MAX_PERIODS + 1)
    is_known = earlier >= 0
    earlier = np.maximum(earlier, 0)
    if offsets is not None:
        shifts = offsets[np.minimum(positions, len(offsets) - 1)][:, None] - offsets[earlier]
        earlier = np.clip(earlier + shifts, 0, len(rates) - 1)
    medians = np.nanmedian(np.where(is_known, rates[earlier], np.nan), axis=1)
    return np.convolve(medians, np.full(2 * margin + 1, 1 / (2 * margin + 1)), "valid")


def _compute_scales(rates: Rates, profile: Rates, window: int) -> Rates:
    """Return for each window the sum of its rates over that of its profile, within limits."""
    kernel = np.ones(window)
    actual, seasonal = np.convolve(rates, kernel, "valid"), np.convolve(profile, kernel, "valid")
    return np.asarray(np.clip(actual / np.maximum(seasonal, 1e-9), _MIN_SCALE, _MAX_SCALE))
