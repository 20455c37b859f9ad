"""Draw the charts of an Inference and of a release as lines, with the same numbers as rows of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import isfinite, nan
from typing import Final

from tidegate.reports.time_charts import ChartSeries, TimeFrame, draw_chart

_HEADROOM: Final = 1.05
_ROWS: Final = 12
"""Rows of a table: the newest time, and eleven before it."""

Course = Mapping[int, float]
"""Values of a series by the number of their step."""


@dataclass(frozen=True, slots=True)
class ChartLine:
    """One line of a chart; `style` is a class of the style sheet."""

    label: str
    style: str
    values: Course


@dataclass(frozen=True, slots=True)
class LineChart:
    """One chart with lines of the same unit, and the limit that they should not exceed, if any."""

    title: str
    unit: str
    lines: tuple[ChartLine, ...]
    limit: float | None = None

    @property
    def is_empty(self) -> bool:
        """Return whether no line has a value."""
        return not any(line.values for line in self.lines)


@dataclass(frozen=True, slots=True)
class ChartTime:
    """The time of all charts of a page: `steps` steps from `begin` on."""

    begin: datetime
    step: timedelta
    steps: int


@dataclass(frozen=True, slots=True)
class NumberTable:
    """The numbers of charts: a head, and rows of a time and its values, the newest first."""

    head: tuple[str, ...]
    rows: tuple[tuple[datetime, tuple[float | None, ...]], ...]


def draw_line_chart(chart: LineChart, time: ChartTime) -> str:
    """Return a figure without scripts and styles; a line has a gap where it has no value."""
    frame = TimeFrame(time.begin, time.steps * time.step.total_seconds())
    times_s = [number * time.step.total_seconds() for number in range(time.steps + 1)]
    series = [
        ChartSeries(line.label, line.style, [line.values.get(number, nan) for number in range(len(times_s))])
        for line in chart.lines
    ]
    if chart.limit is not None:
        series.append(ChartSeries("limit", "s-limit", [chart.limit] * len(times_s)))
    top = max((value for item in series for value in item.values if isfinite(value)), default=0.0)
    return draw_chart(f"{chart.title}, {chart.unit}", frame, times_s, series, top * _HEADROOM or 1.0)


def list_numbers(charts: Sequence[LineChart], time: ChartTime) -> NumberTable:
    """Return the values of all lines at times of equal distance, up to the newest one with a value."""
    lines = [(chart, line) for chart in charts for line in chart.lines]
    newest = max((number for _, line in lines for number in line.values), default=-1)
    every = max(-(-(newest + 1) // _ROWS), 1)
    return NumberTable(
        tuple(f"{line.label} {chart.title}, {chart.unit}" for chart, line in lines),
        tuple(
            (time.begin + number * time.step, tuple(line.values.get(number) for _, line in lines))
            for number in range(newest, -1, -every)
        ),
    )
