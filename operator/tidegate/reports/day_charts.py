"""Draw simulated policies side by side: slices, value, missed minutes and moves over time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import TYPE_CHECKING

from tidegate.api.inference import Tier
from tidegate.reports.time_charts import ChartSeries, TimeFrame, TimeMark, draw_chart, stack_series

if TYPE_CHECKING:
    from tidegate.reports.simulation import PolicyReport, SimulationPoint, SimulationReport

_MEASURES: Sequence[tuple[str, str, Callable[[SimulationPoint], float]]] = (
    ("value per second", "t-value", lambda point: point.value),
    ("minutes missed", "t-missed", lambda point: point.missed_minutes),
    ("slices moved", "t-moved", lambda point: float(point.moved_slices)),
)
_STYLE = """
:root{color-scheme:light dark;--text:#1a1f24;--quiet:#57606a;--line:#d8dcdf;--ground:#fbfbf9;--accent:#075985;--error:#b3261e;
--realtime:#0b67a8;--nearline:#c47500;--offline:#00805e}
@media (prefers-color-scheme:dark){:root{--text:#e4e7ea;--quiet:#9aa5b0;--line:#2d343b;--ground:#12161a;--accent:#7cc4f2;
--error:#ff8a80;--realtime:#58aee8;--nearline:#e3a13a;--offline:#35bd94}}
body{font:15px sans-serif;max-width:1500px;margin:2rem auto;padding:0 1rem;background:var(--ground);color:var(--text)}
pre{overflow:auto}
.swatch{display:inline-block;width:.7rem;height:.7rem;background:var(--c)}
.legend{display:flex;gap:1rem;list-style:none;padding:0}
.small-charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(240px,1fr));gap:.5rem 1rem}
figure.chart{margin:0}figure.chart svg{display:block;width:100%}
figcaption,figure.chart text{color:var(--quiet);fill:var(--quiet);font-size:12px}
.t-realtime{--c:var(--realtime)}.t-nearline{--c:var(--nearline)}.t-offline{--c:var(--offline)}
.t-value{--c:var(--accent)}.t-missed{--c:var(--error)}.t-moved{--c:var(--quiet)}
.area{fill:var(--c);fill-opacity:.75}.line{fill:none;stroke:var(--c);stroke-width:1.5}
.axis{stroke:var(--line)}.mark{stroke:var(--error);stroke-dasharray:3 3}
"""


def render_day_charts(reports: Sequence[tuple[str, SimulationReport]]) -> str:
    """Return the charts of every policy, as HTML without scripts and styles; those with one measure have the same scale.

    `reports` are labelled simulations of the same policies, such as a day as recorded and with a what-if.
    """
    tops = [
        max(
            (
                measure(point)
                for _, report in reports
                for policy in report.policies
                for point in policy.points
            ),
            default=0.0,
        )
        for _, _, measure in _MEASURES
    ]
    sections: list[str] = []
    for number, policy in enumerate(reports[0][1].policies if reports else ()):
        rows = "".join(
            _render_row(label, report, report.policies[number], max(item.slices for _, item in reports), tops)
            for label, report in reports
        )
        sections.append(
            f"<section><h3>{escape(policy.policy)}: {escape(policy.description)}</h3>{rows}</section>"
        )
    return "".join(sections)


def render_day_page(title: str, lines: str, reports: Sequence[tuple[str, SimulationReport]]) -> str:
    """Return a page of HTML that needs nothing else: the lines of the table, and the charts."""
    legend = "".join(f'<li><span class="swatch t-{tier.value}"></span> {tier.value}</li>' for tier in Tier)
    return (
        "<!doctype html><html lang='en'><meta charset='utf-8'>"
        f"<title>{escape(title)}</title><style>{_STYLE}</style>"
        f"<h1>{escape(title)}</h1><pre>{escape(lines)}</pre><h2>Over time</h2>"
        f'<ul class="legend">{legend}<li>dashed: an event begins, or nodes are lost</li></ul>'
        f"{render_day_charts(reports)}</html>\n"
    )


def _render_row(
    label: str, report: SimulationReport, policy: PolicyReport, slices: int, tops: Sequence[float]
) -> str:
    frame = TimeFrame(
        report.begin, report.hours * 3600, [TimeMark(mark.seconds, mark.label) for mark in report.marks]
    )
    times_s = [point.seconds for point in policy.points]
    name = f"{policy.policy}, {label}" if label else policy.policy
    tiers = stack_series(
        [(tier.value, f"t-{tier.value}", [point.slices[tier] for point in policy.points]) for tier in Tier]
    )
    charts = [draw_chart(f"{name}: slices by tier", frame, times_s, tiers, slices)]
    for (measured, style, measure), top in zip(_MEASURES, tops, strict=True):
        values = [measure(point) for point in policy.points]
        series = ChartSeries(measured, style, values, [0.0] * len(values))
        charts.append(draw_chart(f"{name}: {measured}", frame, times_s, [series], top))
    summary = (
        f"{policy.value:,.0f} of value, {policy.value_over_oracle:.3f} of the oracle's; {policy.missed_minutes:,.1f} minutes "
        f"missed; {policy.moved_slices:,} slices moved"
    )
    text = f"{label}: {summary}" if label else summary
    return f'<p class="quiet">{escape(text)}</p><div class="small-charts">{"".join(charts)}</div>'
