"""Demand over time as CSV: a column `time`, and a column for each Inference with its requests per second.

    time,ads/ctr,ads/rank
    2026-11-02T00:00:00Z,120.5,80
    2026-11-02T00:01:00Z,,82

A time is in RFC 3339, or in seconds. A rate holds until the next line; an empty cell is unknown, and the rate before it holds.
"""

from __future__ import annotations

import csv
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from tidegate.allocation.errors import InvalidInputError, check_amount

TIME_COLUMN: Final = "time"
_MAX_INTERVALS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class DemandTrace:
    """Times in seconds, in order, and the rates of each Inference at these times; None is unknown."""

    times: tuple[float, ...]
    rates: Mapping[str, tuple[float | None, ...]]

    def sample_rates(self, name: str, interval_s: float) -> list[float]:
        """Return one rate for each interval from the first time to the last; before the first known rate it is 0."""
        count = int((self.times[-1] - self.times[0]) // interval_s) + 1
        if count > _MAX_INTERVALS:
            raise InvalidInputError(
                "trace", f"has {count} intervals of {interval_s:g} s: use a longer interval"
            )
        present = [
            (time, rate) for time, rate in zip(self.times, self.rates[name], strict=True) if rate is not None
        ]
        present_times = [time for time, _ in present]
        sampled: list[float] = []
        for number in range(count):
            position = bisect_right(present_times, self.times[0] + number * interval_s)
            sampled.append(present[position - 1][1] if position else 0.0)
        return sampled


def parse_trace(lines: Iterable[str]) -> DemandTrace:
    """Parse the lines of a CSV file. Raises InvalidInputError that names the line and the column."""
    reader = csv.reader(lines)
    header = next(reader, [])
    if header[:1] != [TIME_COLUMN] or len(header) < 2:
        raise InvalidInputError(
            "trace, line 1", f"want the columns time and namespace/name…, not {','.join(header)[:100]!r}"
        )
    names = header[1:]
    if len(set(names)) < len(names):
        raise InvalidInputError("trace, line 1", "names an Inference twice")
    times: list[float] = []
    rates: dict[str, list[float | None]] = {name: [] for name in names}
    for cells in reader:
        if not cells:
            continue
        path = f"trace, line {reader.line_num}"
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


def format_trace_line(time: datetime, rates: Mapping[str, float | None], names: Sequence[str]) -> str:
    """Return a line of a trace with the columns `names`."""
    cells = ("" if (rate := rates.get(name)) is None else f"{rate:.6g}" for name in names)
    return ",".join((time.isoformat(timespec="seconds"), *cells))


def _parse_time(path: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        pass
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidInputError(path, f"{text[:40]!r} is neither a time in RFC 3339 nor seconds") from error
    if parsed.tzinfo is None:
        raise InvalidInputError(path, f"{text[:40]!r} has no time zone; append Z for UTC")
    return parsed.timestamp()


def _parse_rate(path: str, text: str) -> float | None:
    if not text.strip():
        return None
    try:
        rate = float(text)
    except ValueError as error:
        raise InvalidInputError(path, f"{text[:40]!r} is not a number") from error
    check_amount(path, rate)
    return rate
