"""Report what the allocator is going to plan in the next hours, and for which demand."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from html import escape
from typing import Self

from tidegate.api.inference import Tier
from tidegate.api.meta import ApiModel
from tidegate.reports.simulation import SimulationMark, list_marks
from tidegate.reports.time_charts import ChartSeries, TimeFrame, TimeMark, draw_chart, stack_series
from tidegate.simulation.next_hours import STEP, NextHours

_CHARTS_SHOWN = 12


class InferenceCourse(ApiModel):
    """One Inference: its demand and its slices in each step."""

    inference: str
    tier: Tier
    median: tuple[float, ...]
    """Requests per second that are expected."""
    upper: tuple[float, ...]
    """The quantile of them: the demand should stay below it."""
    forecast: bool
    """Whether it is forecast; otherwise its present rate counts."""
    slices: tuple[int, ...]


class NextHoursReport(ApiModel):
    """The next hours of a pool, in steps of `step_seconds` from `begin` on."""

    pool: str
    slices: int
    begin: datetime
    step_seconds: float
    quantile: float
    marks: tuple[SimulationMark, ...]
    inferences: tuple[InferenceCourse, ...]
    """Ordered by slices, the most first."""

    @classmethod
    def from_plan(cls, plan: NextHours) -> Self:
        """Return the report of a plan."""
        courses = [
            InferenceCourse(
                inference=model.key,
                tier=model.tier,
                median=tuple(round(rate, 3) for rate in plan.bands[model.key].median)
                if model.key in plan.bands
                else (),
                upper=tuple(round(rate, 3) for rate in plan.bands[model.key].upper)
                if model.key in plan.bands
                else (),
                forecast=model.key in plan.bands and model.key not in plan.unforecast,
                slices=tuple(plan.slices[model.key]),
            )
            for model in plan.scenario.models
        ]
        return cls(
            pool=plan.scenario.pool.name,
            slices=plan.scenario.pool.slices,
            begin=plan.scenario.begin,
            step_seconds=STEP.total_seconds(),
            quantile=plan.quantile,
            marks=tuple(list_marks(plan.scenario)),
            inferences=tuple(sorted(courses, key=lambda course: (-max(course.slices), course.inference))),
        )

    @property
    def unforecast_count(self) -> int:
        """Return the number of Inferences whose present rate counts."""
        return sum(1 for course in self.inferences if course.median and not course.forecast)

    def render_charts(self) -> str:
        """Return the charts as HTML without scripts and styles: slices by tier, then the demand and slices of Inferences."""
        frame, times_s = self._make_frame()
        tiers = [
            (tier.value, f"t-{tier.value}", [float(number) for number in self.count_slices(tier)])
            for tier in Tier
        ]
        charts = [
            draw_chart(
                f"{self.pool}: planned slices by tier", frame, times_s, stack_series(tiers), self.slices
            )
        ]
        shown = [course for course in self.inferences if course.median][:_CHARTS_SHOWN]
        return "".join(
            [
                f'<div class="small-charts">{charts[0]}</div>',
                *(
                    f"<section><h3>{escape(course.inference)}</h3>{self._render_course(course)}</section>"
                    for course in shown
                ),
            ]
        )

    def count_slices(self, tier: Tier) -> Sequence[int]:
        """Return the planned slices of a tier in each step."""
        rows = [course.slices for course in self.inferences if course.tier is tier]
        steps = max((len(course.slices) for course in self.inferences), default=0)
        return [sum(row[number] for row in rows) for number in range(steps)]

    def _render_course(self, course: InferenceCourse) -> str:
        frame, times_s = self._make_frame()
        style = f"t-{course.tier.value}"
        band = [
            ChartSeries(f"quantile {self.quantile:g}", f"band {style}", course.upper, course.median),
            ChartSeries("median", style, course.median),
        ]
        slices = [ChartSeries("slices", style, course.slices, [0.0] * len(course.slices))]
        name = course.inference
        return (
            '<div class="small-charts">'
            + draw_chart(f"{name}: requests per second", frame, times_s, band, max(course.upper))
            + draw_chart(f"{name}: planned slices", frame, times_s, slices, max(course.slices))
            + "</div>"
        )

    def _make_frame(self) -> tuple[TimeFrame, Sequence[float]]:
        steps = max((len(course.slices) for course in self.inferences), default=0)
        marks = [TimeMark(mark.seconds, mark.label) for mark in self.marks]
        times_s = [number * self.step_seconds for number in range(steps)]
        return TimeFrame(self.begin, steps * self.step_seconds, marks), times_s
