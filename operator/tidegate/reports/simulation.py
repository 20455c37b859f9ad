"""Report what simulated policies achieved, as a table, as JSON with the course of the day, and as a page with charts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Self

from tidegate.api.inference import Tier
from tidegate.api.meta import ApiModel
from tidegate.reports.report import Report, align_columns, format_name
from tidegate.simulation.outcome import IntervalOutcome, SimulationOutcome, compare_values
from tidegate.simulation.policies import DESCRIPTIONS, ORACLE
from tidegate.simulation.scenario import Scenario

_MAX_POINTS = 288
_WIDTH, _HEIGHT = 960, 160
_COLOURS = {Tier.REALTIME: "#2563eb", Tier.NEARLINE: "#d97706", Tier.OFFLINE: "#9ca3af"}


class SimulationPoint(ApiModel):
    """The mean of some intervals: slices by tier, and missed minutes of real-time Inferences in them."""

    seconds: float
    """Since the start."""
    slices: Mapping[Tier, float]
    missed_minutes: float

    @classmethod
    def from_intervals(cls, intervals: Sequence[IntervalOutcome]) -> Self:
        """Return the point of consecutive intervals."""
        count = len(intervals)
        return cls.model_validate(
            {
                "seconds": intervals[0].start_s,
                "slices": {
                    tier: round(sum(interval.slices[tier] for interval in intervals) / count, 2)
                    for tier in Tier
                },
                "missedMinutes": round(sum(interval.missed_minutes for interval in intervals), 2),
            }
        )


class PolicyReport(ApiModel):
    """What one policy achieved."""

    policy: str
    description: str
    value: float
    """Of all requests served, in the unit of spec.value.perRequest."""
    value_over_oracle: float
    value_by_tier: Mapping[Tier, float]
    missed_minutes: float
    """Minutes of real-time Inferences in which demand exceeded what their replicas serve within the SLO."""
    unserved: float
    """Real-time requests beyond that."""
    backlog: float
    """Requests that near-line streams have pending at the end."""
    moved_slices: int
    idle_slice_hours: float
    """Slice-hours that loaded or drained."""
    slice_hours_by_tier: Mapping[Tier, float]
    points: tuple[SimulationPoint, ...]

    @classmethod
    def from_outcome(cls, outcome: SimulationOutcome, ratio: float) -> Self:
        """Return the report of one policy; `ratio` is its value over the oracle's."""
        size = -(-len(outcome.intervals) // _MAX_POINTS)
        groups = [outcome.intervals[start : start + size] for start in range(0, len(outcome.intervals), size)]
        return cls.model_validate(
            {
                "policy": outcome.policy,
                "description": DESCRIPTIONS[outcome.policy],
                "value": round(outcome.total_value, 3),
                "valueOverOracle": round(ratio, 4),
                "valueByTier": {tier: round(value, 3) for tier, value in outcome.value.items()},
                "missedMinutes": round(outcome.missed_minutes, 2),
                "unserved": round(outcome.unserved),
                "backlog": round(outcome.backlog),
                "movedSlices": outcome.moved_slices,
                "idleSliceHours": round(outcome.idle_slice_s / 3600, 2),
                "sliceHoursByTier": {
                    tier: round(seconds / 3600, 2) for tier, seconds in outcome.slice_s.items()
                },
                "points": [SimulationPoint.from_intervals(group) for group in groups],
            }
        )


class SimulationReport(Report):
    """One simulation: the policies on the same pool and demand."""

    pool: str
    slices: int
    hours: float
    interval_seconds: float
    inferences: tuple[str, ...]
    history_hours: float
    policies: tuple[PolicyReport, ...]

    @classmethod
    def from_outcomes(cls, scenario: Scenario, outcomes: Sequence[SimulationOutcome]) -> Self:
        """Return the report of all policies; the oracle is one of them."""
        ratios = compare_values(outcomes, ORACLE)
        history = max((len(rates) for rates in scenario.history.values()), default=0)
        return cls.model_validate(
            {
                "pool": scenario.pool.name,
                "slices": scenario.pool.slices,
                "hours": round(scenario.interval_count * scenario.interval_s / 3600, 3),
                "intervalSeconds": scenario.interval_s,
                "inferences": [model.key for model in scenario.models],
                "historyHours": round(history * scenario.interval_s / 3600, 3),
                "policies": [
                    PolicyReport.from_outcome(outcome, ratios[outcome.policy]) for outcome in outcomes
                ],
            }
        )

    def render_lines(self, *, wide: bool) -> Iterator[str]:
        """Yield a line for each policy, with `wide` also what each tier had."""
        yield (
            f"computepool/{self.pool}: {self.slices} slices, {len(self.inferences)} Inferences, {self.hours:g} h "
            f"after {self.history_hours:g} h of history"
        )
        yield ""
        header = ["POLICY", "VALUE", "OF ORACLE", "MISSED MIN", "UNSERVED", "MOVED", "IDLE SLICE-H"]
        rows = [[*header, *(f"{tier.value.upper()} SLICE-H" for tier in Tier if wide), "WHAT IT IS"]]
        yield from align_columns([*rows, *(_format_row(policy, wide=wide) for policy in self.policies)])

    def object_names(self) -> Iterator[str]:
        """Yield the pool."""
        yield format_name("ComputePool", self.pool)

    def render_page(self) -> str:
        """Return a page of HTML that needs nothing else: the table, and the slices of each policy over time."""
        lines = escape("\n".join(self.render_lines(wide=True)))
        charts = "".join(self._render_chart(policy) for policy in self.policies)
        legend = " ".join(
            f'<span style="color:{colour}">&#9632;</span> {tier.value}' for tier, colour in _COLOURS.items()
        )
        return (
            "<!doctype html><html lang='en'><meta charset='utf-8'>"
            f"<title>Simulation of {escape(self.pool)}</title>"
            "<style>body{font:15px sans-serif;max-width:1100px;margin:2rem auto}pre{overflow:auto}"
            "svg{background:#f3f4f6;display:block}</style>"
            f"<h1>Simulation of {escape(self.pool)}</h1><pre>{lines}</pre>"
            f"<p>Slices over time: {legend}; red: minutes missed.</p>{charts}</html>\n"
        )

    def _render_chart(self, policy: PolicyReport) -> str:
        shapes: list[str] = []
        count = max(len(policy.points), 2)
        below = [0.0] * len(policy.points)
        for tier, colour in _COLOURS.items():
            above = [low + point.slices[tier] for low, point in zip(below, policy.points, strict=True)]
            corners = [
                f"{_WIDTH * number / (count - 1):.1f},{self._place_height(height):.1f}"
                for number, height in (*enumerate(above), *reversed([*enumerate(below)]))
            ]
            shapes.append(f"<polygon fill='{colour}' points='{' '.join(corners)}'/>")
            below = above
        worst = max((point.missed_minutes for point in policy.points), default=0.0)
        for number, point in enumerate(policy.points):
            if point.missed_minutes > 0:
                height = _HEIGHT / 3 * point.missed_minutes / worst
                shapes.append(
                    f"<rect fill='#dc2626' x='{_WIDTH * number / (count - 1) - 1:.1f}' y='0' width='2' "
                    f"height='{max(height, 2):.1f}'/>"
                )
        title = f"{policy.policy}: {policy.description}"
        return (
            f"<h2>{escape(title)}</h2><p>{policy.value_over_oracle:.3f} of the oracle's value, "
            f"{policy.missed_minutes:,.1f} minutes missed, {policy.moved_slices:,} slices moved</p>"
            f"<svg role='img' aria-label='{escape(title, quote=True)}' viewBox='0 0 {_WIDTH} {_HEIGHT}' width='{_WIDTH}' "
            f"height='{_HEIGHT}'>{''.join(shapes)}</svg>"
        )

    def _place_height(self, slices: float) -> float:
        return _HEIGHT * (1 - min(slices / max(self.slices, 1), 1.0))


def _format_row(policy: PolicyReport, *, wide: bool) -> list[str]:
    return [
        policy.policy,
        f"{policy.value:,.0f}",
        f"{policy.value_over_oracle:.3f}",
        f"{policy.missed_minutes:,.1f}",
        f"{policy.unserved:,.0f}",
        f"{policy.moved_slices:,}",
        f"{policy.idle_slice_hours:,.1f}",
        *(f"{policy.slice_hours_by_tier[tier]:,.0f}" for tier in Tier if wide),
        policy.description,
    ]
