"""How well rates are forecast on public series: pinball loss against the seasonal naive forecast, coverage, and cost.

    python bench/forecast.py [--folder DIR] [--quantile 0.9] [--output FILE]

The series are those of bench/policies.py and one more of the Numenta Anomaly Benchmark (MIT), as they are recorded, every five minutes
to every hour. The forecast looks half an hour ahead, at least one interval, over a week after two weeks of history, or over the second half of a shorter
series; its model is fitted again every day. The naive forecast is the rate of the same time a day or a week before, whichever is better over that week,
times the factor that made it the quantile on the last day. Prints one JSON document; exits 1 if the loss is more than 0.9 of the
naive one on some series, or if a forecast takes more than a millisecond.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from policies import SERIES

from tidegate.forecast.blocks import DAY_S
from tidegate.forecast.seasonal import (
    ForecastModel,
    ForecastSettings,
    compute_pinball_loss,
    fit_forecast,
    forecast_rates,
)

AHEAD_S = 1800.0
TARGET_RATIO, TARGET_S = 0.9, 0.001


@dataclass(slots=True)
class Losses:
    """Rates that came, and what was forecast for them."""

    actual: list[float] = field(default_factory=list[float])
    forecast: list[float] = field(default_factory=list[float])
    naive: dict[int, list[float]] = field(default_factory=dict[int, list[float]])
    forecast_s: float = 0.0
    fit_s: float = 0.0
    fits: int = 0


def read_rates(path: Path) -> tuple[list[float], float]:
    """Return the rates of a series, and the seconds between two."""
    with path.open() as lines:
        rows = list(csv.DictReader(lines))
    times = [datetime.fromisoformat(row["timestamp"]) for row in rows]
    gaps = np.diff([time.timestamp() for time in times])
    return [float(row["value"]) for row in rows], float(np.median(gaps))


def measure_series(rates: Sequence[float], interval_s: float, quantile: float) -> Losses:
    """Forecast every rate of the third week; of a shorter series, of its second half."""
    day = round(DAY_S / interval_s)
    leads = max(1, round(AHEAD_S / interval_s))
    settings = ForecastSettings(interval_s, leads, quantile)
    first = min(14 * day, len(rates) // 2)
    periods = [period for period in (day, 7 * day) if first >= day + period]
    losses, model, factors = Losses(naive={period: [] for period in periods}), None, {}
    for now in range(first, min(first + 7 * day, len(rates) - leads)):
        history = rates[:now]
        if (now - first) % day == 0:
            began = time.perf_counter()
            model = fit_forecast(history, settings)
            losses.fit_s += time.perf_counter() - began
            losses.fits += 1
            factors = {period: find_naive_factor(history, day, period, quantile) for period in losses.naive}
        assert isinstance(model, ForecastModel)
        began = time.perf_counter()
        forecast = forecast_rates(history, model)[-1]
        losses.forecast_s += time.perf_counter() - began
        losses.actual.append(rates[now + leads - 1])
        losses.forecast.append(forecast)
        for period, factor in factors.items():
            losses.naive[period].append(factor * rates[now + leads - 1 - period])
    return losses


def find_naive_factor(history: Sequence[float], day: int, period: int, quantile: float) -> float:
    """Return what makes the rates of a period before the quantile of the last day's."""
    rates = np.asarray(history)
    before = np.maximum(rates[-day - period : -period], 0.02 * rates.mean())
    return float(np.quantile(rates[-day:] / before, quantile))


def describe_losses(losses: Losses, quantile: float) -> dict[str, Any]:
    """Return the figures of a series."""
    actual, forecast = np.asarray(losses.actual), np.asarray(losses.forecast)
    loss = compute_pinball_loss(actual, forecast, quantile)
    naive = min(compute_pinball_loss(actual, np.asarray(rates), quantile) for rates in losses.naive.values())
    return {
        "loss_over_naive": round(loss / naive, 3),
        "coverage": round(float(np.mean(actual <= forecast)), 3),
        "forecast_ms": round(1000 * losses.forecast_s / len(actual), 3),
        "fit_ms": round(1000 * losses.fit_s / losses.fits, 1),
        "forecasts": len(actual),
    }


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the folder of the series and the file of the output."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    folder = Path(__file__).resolve().parents[2] / "shared/data/nab"
    parser.add_argument("--folder", type=Path, default=folder, help="with the CSV files of the series")
    parser.add_argument("--output", type=Path)
    return parser


def main() -> int:
    """Measure once."""
    parser = make_parser(__doc__)
    parser.add_argument("--quantile", type=float, default=0.9)
    options = parser.parse_args()
    document = {
        name: describe_losses(
            measure_series(*read_rates(options.folder / f"{name}.csv"), options.quantile), options.quantile
        )
        for name in (*SERIES, "exchange-2_cpm_results")
    }
    text = json.dumps(document, indent=1)
    print(text)
    if options.output is not None:
        options.output.write_text(text + "\n")
    missed = any(
        figures["loss_over_naive"] > TARGET_RATIO or figures["forecast_ms"] > 1000 * TARGET_S
        for figures in document.values()
    )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
