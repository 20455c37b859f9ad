"""Print a trace for `tidegate simulate`: eight days of two models with a peak at noon and one in the evening.

python examples/simulation/make_trace.py > trace.csv
"""

from datetime import UTC, datetime, timedelta
from math import exp
from random import Random

STEP = timedelta(minutes=5)
DAYS = 8


def compute_rate(hour: float, noon: float, evening: float) -> float:
    """Return requests per second at an hour of the day."""
    return 150 + noon * exp(-(((hour - 12) / 2) ** 2)) + evening * exp(-(((hour - 20) / 1.2) ** 2))


def main() -> None:
    """Print the lines."""
    random, time = Random(7), datetime(2026, 11, 2, tzinfo=UTC)
    print("time,ads/ctr,ads/rank")
    for _ in range(DAYS * 288):
        hour = time.hour + time.minute / 60
        rates = (compute_rate(hour, 300, 900), compute_rate(hour, 100, 250) / 2)
        cells = (f"{rate * exp(random.gauss(0, 0.04)):.1f}" for rate in rates)
        print(",".join((time.isoformat(), *cells)))
        time += STEP


if __name__ == "__main__":
    main()
