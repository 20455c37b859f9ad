"""Read the charts of an Inference and of a release from Prometheus, and draw them for pages without scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from tidegate.api.durations import parse_duration
from tidegate.api.inference import Inference
from tidegate.api.model_access import ModelAccess
from tidegate.reports.release_figures import ReleaseFigures
from tidegate.reports.traffic_charts import (
    ChartLine,
    ChartTime,
    Course,
    LineChart,
    NumberTable,
    draw_line_chart,
    list_numbers,
)
from tidegate.telemetry.traffic_series import (
    SERIES_LABEL,
    SIDE_LABEL,
    STABLE,
    TARGET,
    inference_query,
    release_query,
)
from tidegate.web.charts import STEPS, ChartReader, SeriesAnswer, Window

NOTHING_RECORDED: Final = (
    "Prometheus has nothing about this in that time: it must scrape the gateways and the controllers."
)
_RATE_WINDOWS: Final[Mapping[Window, str]] = {"15m": "1m", "1h": "1m", "6h": "2m", "24h": "6m"}
"""The time over which rates are taken: at least a minute, and no shorter than a step."""
_PERCENT: Final = 100.0
_MS: Final = 1000.0


@dataclass(frozen=True, slots=True)
class DrawnChart:
    """One chart, and the styles of its lines for the legend."""

    figure: str
    """HTML without scripts and styles."""
    legend: tuple[tuple[str, str], ...]
    """Label and style."""


@dataclass(frozen=True, slots=True)
class DrawnCharts:
    """The charts of one window, and their numbers."""

    charts: tuple[DrawnChart, ...]
    numbers: NumberTable


async def read_inference_charts(reader: ChartReader, inference: Inference, window: Window) -> DrawnCharts:
    """Return the charts of an Inference. Raises PermanentError or PrometheusError, which name the setting to change."""
    answer = await reader.read_series(inference_query(inference.key, _RATE_WINDOWS[window]), window)
    return _draw_charts(build_inference_charts(inference, answer), answer)


async def read_release_charts(
    reader: ChartReader, access: ModelAccess, target: str, window: Window
) -> DrawnCharts:
    """Return the charts of both sides of a release. Raises as read_inference_charts."""
    answer = await reader.read_series(release_query(access.key, target, _RATE_WINDOWS[window]), window)
    return _draw_charts(build_release_charts(ReleaseFigures.from_access(access), answer), answer)


def build_inference_charts(inference: Inference, answer: SeriesAnswer) -> Sequence[LineChart]:
    """Return requests, errors, latency, replicas and versions of an Inference."""
    courses = {labels.get(SERIES_LABEL, ""): values for labels, values in answer.series}
    offered, served = courses.get("offered", {}), courses.get("served", {})
    slo = inference.spec.slo
    limit = parse_duration(slo.latency_p99) / timedelta(milliseconds=1) if slo is not None else None
    return (
        LineChart(
            "requests",
            "per second",
            (ChartLine("sent", "s-target", offered), ChartLine("answered", "s-stable", served)),
        ),
        LineChart(
            "errors", "percent", (ChartLine("not answered", "s-target", _compute_losses(offered, served)),)
        ),
        LineChart(
            "latency",
            "ms",
            (
                ChartLine("p99", "s-target", _scale_course(courses.get("p99", {}), _MS)),
                ChartLine("p50", "s-stable", _scale_course(courses.get("p50", {}), _MS)),
            ),
            limit,
        ),
        LineChart(
            "replicas",
            "pods",
            (
                ChartLine("desired", "s-stable", courses.get("desired", {})),
                ChartLine("ready", "s-target", courses.get("ready", {})),
            ),
        ),
        LineChart("version", "number", (ChartLine("serving", "s-target", courses.get("serving", {})),)),
    )


def build_release_charts(figures: ReleaseFigures | None, answer: SeriesAnswer) -> Sequence[LineChart]:
    """Return share, requests, errors and p99 of both sides, with the limits of the checks."""
    courses = {
        (labels.get(SERIES_LABEL, ""), labels.get(SIDE_LABEL, "")): values for labels, values in answer.series
    }

    def find_course(series: str, label: str) -> Course:
        return courses.get((series, label), {})

    def make_lines(course: Mapping[str, Course]) -> tuple[ChartLine, ...]:
        return (
            ChartLine("released", "s-target", course[TARGET]),
            ChartLine("stable", "s-stable", course[STABLE]),
        )

    sides = (TARGET, STABLE)
    failed = {
        label: _compute_percentages(find_course("failed", label), find_course("sent", label))
        for label in sides
    }
    error_limit = figures.failed_share_limit if figures is not None else None
    latency_limit = figures.latency_limit_ms if figures is not None else None
    share = _compute_percentages(
        find_course("sent", TARGET), _add_courses(find_course("sent", TARGET), find_course("sent", STABLE))
    )
    return (
        LineChart(
            "errors", "percent", make_lines(failed), None if error_limit is None else _PERCENT * error_limit
        ),
        LineChart(
            "p99",
            "ms",
            make_lines({label: _scale_course(find_course("p99", label), _MS) for label in sides}),
            latency_limit,
        ),
        LineChart(
            "requests", "per second", make_lines({label: find_course("sent", label) for label in sides})
        ),
        LineChart("share", "percent of the route", (ChartLine("released", "s-target", share),)),
    )


def _draw_charts(charts: Sequence[LineChart], answer: SeriesAnswer) -> DrawnCharts:
    time = ChartTime(answer.begin, answer.step, STEPS)
    drawn = [chart for chart in charts if not chart.is_empty]
    return DrawnCharts(
        tuple(
            DrawnChart(
                draw_line_chart(chart, time),
                (
                    *((line.label, line.style) for line in chart.lines),
                    *((("limit", "s-limit"),) if chart.limit is not None else ()),
                ),
            )
            for chart in drawn
        ),
        list_numbers(drawn, time),
    )


def _compute_losses(offered: Course, served: Course) -> Course:
    """Return the percentage of requests without an answer; nothing where there were none."""
    return {
        number: _PERCENT * min(max(1 - served.get(number, 0.0) / rate, 0.0), 1.0)
        for number, rate in offered.items()
        if rate > 0
    }


def _compute_percentages(part: Course, total: Course) -> Course:
    """Return percentages; nothing where there is no total."""
    return {
        number: _PERCENT * part[number] / rate
        for number, rate in total.items()
        if rate > 0 and number in part
    }


def _add_courses(one_side: Course, other_side: Course) -> Course:
    return {
        number: one_side.get(number, 0.0) + other_side.get(number, 0.0)
        for number in one_side.keys() | other_side.keys()
    }


def _scale_course(course: Course, factor: float) -> Course:
    return {number: factor * value for number, value in course.items()}
