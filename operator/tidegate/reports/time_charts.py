"""Draw values over time as SVG, for pages that run no script: colours and sizes are those of the page's style sheet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from html import escape
from itertools import groupby, pairwise
from math import isfinite

_WIDTH, _HEIGHT = 360.0, 120.0
_LEFT, _TOP, _BOTTOM = 4.0, 14.0, 14.0
_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class TimeMark:
    """Something that happens at a time, in seconds since the begin."""

    seconds: float
    label: str


@dataclass(frozen=True, slots=True)
class TimeFrame:
    """The time of a chart, and what happens in it."""

    begin: datetime
    length_s: float
    marks: Sequence[TimeMark] = ()


@dataclass(frozen=True, slots=True)
class ChartSeries:
    """The values from each time on, until the next; between `lows` and `values` the chart is filled.

    `style` is a class of the style sheet. Without `lows` the values are a line, which has a gap where a value is NaN.
    """

    label: str
    style: str
    values: Sequence[float]
    lows: Sequence[float] | None = None


def stack_series(series: Sequence[tuple[str, str, Sequence[float]]]) -> list[ChartSeries]:
    """Return (label, style, values) as areas that lie one above the other."""
    stacked: list[ChartSeries] = []
    below: Sequence[float] = [0.0] * max((len(values) for _, _, values in series), default=0)
    for label, style, values in series:
        above = [low + value for low, value in zip(below, values, strict=True)]
        stacked.append(ChartSeries(label, style, above, below))
        below = above
    return stacked


def draw_chart(
    title: str, frame: TimeFrame, times_s: Sequence[float], series: Sequence[ChartSeries], top: float
) -> str:
    """Return a figure with one chart; its values go from 0 to `top`."""
    shapes = "".join(_draw_series(item, frame, times_s, top) for item in series)
    marks = "".join(_draw_mark(mark, frame) for mark in frame.marks)
    end = frame.begin + timedelta(seconds=frame.length_s)
    axis = _HEIGHT - _BOTTOM
    described = f"{title}, from {_format_time(frame.begin, frame)} to {_format_time(end, frame)}: {_describe_series(series)}"
    return (
        f'<figure class="chart"><figcaption>{escape(title.rpartition(": ")[2])}</figcaption>'
        f'<svg role="img" aria-label="{escape(described)}" viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}">{shapes}'
        f'<line class="axis" x1="{_LEFT:g}" x2="{_WIDTH:g}" y1="{axis:g}" y2="{axis:g}"/>{marks}'
        f'<text x="{_LEFT:g}" y="10">{_format_value(top)}</text>'
        f'<text x="{_LEFT:g}" y="{_HEIGHT - 2:g}">{_format_time(frame.begin, frame)}</text>'
        f'<text x="{_WIDTH:g}" y="{_HEIGHT - 2:g}" text-anchor="end">{_format_time(end, frame)}</text>'
        "</svg></figure>"
    )


def _draw_series(series: ChartSeries, frame: TimeFrame, times_s: Sequence[float], top: float) -> str:
    above = _list_corners(series.values, frame, times_s, top)
    if series.lows is None:
        lines = (list(corners) for is_known, corners in groupby(above, bool) if is_known)
        return "".join(f'<polyline class="line {series.style}" points="{" ".join(line)}"/>' for line in lines)
    below = _list_corners(series.lows, frame, times_s, top)
    return f'<polygon class="area {series.style}" points="{" ".join([*above, *reversed(below)])}"/>'


def _list_corners(
    values: Sequence[float], frame: TimeFrame, times_s: Sequence[float], top: float
) -> list[str]:
    """Return the corners of a stepped line; an empty text is a gap."""
    corners: list[str] = []
    for (start_s, end_s), value in zip(pairwise([*times_s, frame.length_s]), values, strict=True):
        if not isfinite(value):
            corners.append("")
            continue
        height = f"{_place_value(value, top):.1f}"
        corners += [
            f"{_place_time(start_s, frame):.1f},{height}",
            f"{_place_time(end_s, frame):.1f},{height}",
        ]
    return corners


def _draw_mark(mark: TimeMark, frame: TimeFrame) -> str:
    x = _place_time(mark.seconds, frame)
    return (
        f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP:g}" y2="{_HEIGHT - _BOTTOM:g}">'
        f"<title>{escape(mark.label)}</title></line>"
    )


def _place_time(seconds: float, frame: TimeFrame) -> float:
    return _LEFT + (_WIDTH - _LEFT) * min(max(seconds / frame.length_s, 0.0), 1.0)


def _place_value(value: float, top: float) -> float:
    share = min(max(value / top, 0.0), 1.0) if top > 0 else 0.0
    return _HEIGHT - _BOTTOM - (_HEIGHT - _BOTTOM - _TOP) * share


def _describe_series(series: Sequence[ChartSeries]) -> str:
    """Return the lowest and the highest value of each series."""
    parts: list[str] = []
    for item in series:
        stacked = item.lows is not None and item.style.startswith("t-")
        values = (
            [high - low for high, low in zip(item.values, item.lows or (), strict=True)]
            if stacked
            else [value for value in item.values if isfinite(value)]
        )
        if values:
            parts.append(f"{item.label} {_format_value(min(values))} to {_format_value(max(values))}")
    return "; ".join(parts)


def _format_time(time: datetime, frame: TimeFrame) -> str:
    return time.strftime("%H:%M" if frame.length_s < _DAY.total_seconds() else "%b %d %H:%M")


def _format_value(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
