"""Demand over time as CSV: a column `time`, and a column for each Inference with its requests per second.

    time,ads/ctr,ads/rank
    2026-11-02T00:00:00Z,120.5,80
    2026-11-02T00:01:00Z,,82

A time is in RFC 3339, or in seconds. A rate applies until the next line; an empty cell repeats the rate before it.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Final

from tidegate.allocation.errors import InvalidInputError, check_amount
from tidegate.simulation.scenario import MAX_INTERVALS

TIME_COLUMN: Final = "time"
_MAX_TIME_S: Final = 1e11
"""The year 5138: a larger number is an error."""


@dataclass(frozen=True, slots=True)
class DemandTrace:
    """Times in seconds, ascending, and for each Inference its rate from each time on; None repeats the rate before."""

    times: tuple[float, ...]
    rates: Mapping[str, tuple[float | None, ...]]

    def count_intervals(self, interval_s: float) -> int:
        """Return the number of intervals from the first time to the last. Raises InvalidInputError if there are too many."""
        count = int((self.times[-1] - self.times[0]) // interval_s) + 1
        if count > MAX_INTERVALS:
            raise InvalidInputError(
                "trace", f"has {count} intervals of {interval_s:g} s: use a longer interval"
            )
        return count

    def sample_rates(self, name: str, interval_s: float) -> list[float]:
        """Return the mean rate of each interval: 0 before the first rate of the trace, the last rate after it."""
        present = [
            (time - self.times[0], rate)
            for time, rate in zip(self.times, self.rates[name], strict=True)
            if rate is not None
        ]
        sums = [0.0] * self.count_intervals(interval_s)
        end_s = len(sums) * interval_s
        for (start_s, rate), (next_s, _) in pairwise([*present, (end_s, 0.0)]):
            _add_rate(sums, interval_s, start_s, min(next_s, end_s), rate)
        return [total / interval_s for total in sums]


def parse_trace(lines: Iterable[str]) -> DemandTrace:
    """Parse the lines of a CSV file. Raises InvalidInputError that names the line and the column."""
    reader = csv.reader(lines)
    try:
        rows = [(reader.line_num, cells) for cells in reader]
    except csv.Error as error:
        raise InvalidInputError(f"trace, line {reader.line_num}", f"is no CSV: {error}") from error
    header = rows[0][1] if rows else []
    if header[:1] != [TIME_COLUMN] or len(header) < 2:
        raise InvalidInputError(
            "trace, line 1", f"want the columns time and namespace/name…, not {','.join(header)[:100]!r}"
        )
    names = header[1:]
    if len(set(names)) < len(names):
        raise InvalidInputError("trace, line 1", "names an Inference twice")
    times: list[float] = []
    rates: dict[str, list[float | None]] = {name: [] for name in names}
    for line, cells in rows[1:]:
        if not cells:
            continue
        path = f"trace, line {line}"
        if len(cells) != len(header):
            raise InvalidInputError(path, f"has {len(cells)} cells, the header {len(header)}")
        time = _parse_time(path, cells[0])
        if times and time <= times[-1]:
            raise InvalidInputError(path, "its time is not after that of the line before")
        times.append(time)
        for name, cell in zip(names, cells[1:], strict=True):
            rates[name].append(_parse_rate(f"{path}, {name}", cell))
    if not times:
        raise InvalidInputError("trace", "has no line of rates")
    return DemandTrace(tuple(times), {name: tuple(values) for name, values in rates.items()})


def _add_rate(sums: list[float], interval_s: float, start_s: float, end_s: float, rate: float) -> None:
    """Add to each interval the requests of a rate from `start_s` to `end_s`."""
    number = int(start_s // interval_s)
    while start_s < end_s:
        until_s = min((number + 1) * interval_s, end_s)
        sums[number] += rate * (until_s - start_s)
        start_s, number = until_s, number + 1


def _parse_time(path: str, text: str) -> float:
    message = (
        f"{text[:40]!r} is neither seconds nor a time in RFC 3339 with a time zone, like 2026-11-02T00:00:00Z"
    )
    try:
        seconds = float(text)
    except ValueError:
        try:
            parsed = datetime.fromisoformat(text)
        except ValueError as error:
            raise InvalidInputError(path, message) from error
        if parsed.tzinfo is None:
            raise InvalidInputError(path, message) from None
        seconds = parsed.timestamp()
    if not 0 <= seconds <= _MAX_TIME_S:
        raise InvalidInputError(path, f"its time {text[:40]} is not from 1970 to 5138")
    return seconds


def _parse_rate(path: str, text: str) -> float | None:
    if not text.strip():
        return None
    try:
        rate = float(text)
    except ValueError as error:
        raise InvalidInputError(path, f"{text[:40]!r} is not a number") from error
    check_amount(path, rate)
    return rate
