"""Our forecasts beside those of a library on the same series: pinball loss of the quantile half an hour ahead, and time.

    pip install statsforecast
    python bench/forecast_library.py [--folder DIR] [--hours 4] [--output FILE]

Every `--hours` of the test period of bench/forecast.py, the library's MSTL (seasons of a day, and of a week where two have passed,
with exponential smoothing of the rest) is fitted to the last two weeks and forecasts the 0.9 quantile. It keeps nothing between
two forecasts, so its time is that of both. Our forecast of the same rate is from a model fitted at the start of that day.
Prints one JSON document.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from forecast import AHEAD_S, make_parser, measure_series, read_rates
from policies import SERIES

from tidegate.forecast.blocks import DAY_S
from tidegate.forecast.seasonal import compute_pinball_loss

QUANTILE = 0.9
_LEVEL = 80
"""Of the two-sided interval whose upper end is the quantile."""


def load_library() -> Any:
    """Import the library's models, which are no dependency of the project."""
    try:
        return importlib.import_module("statsforecast.models")
    except ModuleNotFoundError as error:
        raise SystemExit("needs statsforecast: pip install statsforecast") from error


def forecast_by_library(models: Any, history: Sequence[float], day: int, leads: int) -> float:
    """Return the library's quantile of the rate `leads` intervals ahead."""
    recent = np.asarray(history[-14 * day :])
    seasons = [day, 7 * day] if len(recent) >= 14 * day else [day]
    model = models.MSTL(season_length=seasons, trend_forecaster=models.AutoETS(model="ZZN"))
    forecast = model.forecast(y=recent, h=leads, level=[_LEVEL])
    return max(float(forecast[f"hi-{_LEVEL}"][-1]), 0.0)


def compare_series(rates: Sequence[float], interval_s: float, hours: float) -> dict[str, Any]:
    """Return both losses over the same rates."""
    day = round(DAY_S / interval_s)
    leads = max(1, round(AHEAD_S / interval_s))
    losses = measure_series(rates, interval_s, QUANTILE)
    first = min(14 * day, len(rates) // 2)
    chosen = range(0, len(losses.actual), max(1, round(hours * 3600 / interval_s)))
    models = load_library()
    began = time.perf_counter()
    theirs = [forecast_by_library(models, rates[: first + number], day, leads) for number in chosen]
    seconds = time.perf_counter() - began
    actual = np.asarray([losses.actual[number] for number in chosen])
    ours = compute_pinball_loss(actual, np.asarray([losses.forecast[number] for number in chosen]), QUANTILE)
    return {
        "ours_over_library": round(ours / compute_pinball_loss(actual, np.asarray(theirs), QUANTILE), 3),
        "library_ms": round(1000 * seconds / len(chosen), 1),
        "forecasts": len(chosen),
    }


def main() -> int:
    """Measure once."""
    parser = make_parser(__doc__)
    parser.add_argument("--hours", type=float, default=4.0, help="between two forecasts")
    options = parser.parse_args()
    document: dict[str, Any] = {}
    for name in (*SERIES, "exchange-2_cpm_results"):
        document[name] = compare_series(*read_rates(options.folder / f"{name}.csv"), options.hours)
        print(name, document[name], file=sys.stderr, flush=True)
    text = json.dumps(document, indent=1)
    print(text)
    if options.output is not None:
        options.output.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
