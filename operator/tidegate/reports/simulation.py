"""Report what simulated policies achieved, as a table, as JSON with the course of the day, and as a page with charts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Self

from tidegate.api.inference import Tier
from tidegate.api.meta import ApiModel
from tidegate.api.what_if import DayWhatIf
from tidegate.reports.day_charts import render_day_page
from tidegate.reports.report import Report, align_columns, format_name
from tidegate.simulation.outcome import IntervalOutcome, SimulationOutcome, compare_values
from tidegate.simulation.policies import DESCRIPTIONS, ORACLE
from tidegate.simulation.scenario import Scenario

_MAX_POINTS = 288
_MAX_MARKS = 20


class SimulationMark(ApiModel):
    """Something that happens in the simulated time: an event begins, or nodes are lost."""

    seconds: float
    """Since the start."""
    label: str


class SimulationPoint(ApiModel):
    """Some intervals: the mean of the slices by tier and of the value per second, and the missed minutes and moved slices in them."""

    seconds: float
    """Since the start."""
    slices: Mapping[Tier, float]
    missed_minutes: float
    value: float
    """Of the requests served, per second."""
    moved_slices: int

    @classmethod
    def from_intervals(cls, intervals: Sequence[IntervalOutcome], interval_s: float) -> Self:
        """Return the point of consecutive intervals of the same length."""
        count = len(intervals)
        return cls.model_validate(
            {
                "seconds": intervals[0].start_s,
                "slices": {
                    tier: round(sum(interval.slices[tier] for interval in intervals) / count, 2)
                    for tier in Tier
                },
                "missedMinutes": round(sum(interval.missed_minutes for interval in intervals), 2),
                "value": round(sum(interval.value for interval in intervals) / count / interval_s, 3),
                "movedSlices": sum(interval.moved_slices for interval in intervals),
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
    def from_outcome(cls, outcome: SimulationOutcome, ratio: float, interval_s: float) -> Self:
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
                "points": [SimulationPoint.from_intervals(group, interval_s) for group in groups],
            }
        )


class SimulationReport(Report):
    """One simulation: the policies on the same pool and demand."""

    pool: str
    slices: int
    begin: datetime
    hours: float
    interval_seconds: float
    inferences: tuple[str, ...]
    history_hours: float
    what_if: DayWhatIf
    """What was changed; nothing, if the time was simulated as recorded."""
    marks: tuple[SimulationMark, ...]
    policies: tuple[PolicyReport, ...]

    @classmethod
    def from_outcomes(
        cls, scenario: Scenario, outcomes: Sequence[SimulationOutcome], changes: DayWhatIf
    ) -> Self:
        """Return the report of all policies; the oracle is one of them."""
        ratios = compare_values(outcomes, ORACLE)
        history = max((len(rates) for rates in scenario.history.values()), default=0)
        return cls.model_validate(
            {
                "pool": scenario.pool.name,
                "slices": scenario.pool.slices,
                "begin": scenario.begin,
                "hours": round(scenario.interval_count * scenario.interval_s / 3600, 3),
                "intervalSeconds": scenario.interval_s,
                "inferences": [model.key for model in scenario.models],
                "historyHours": round(history * scenario.interval_s / 3600, 3),
                "whatIf": changes,
                "marks": list(list_marks(scenario)),
                "policies": [
                    PolicyReport.from_outcome(outcome, ratios[outcome.policy], scenario.interval_s)
                    for outcome in outcomes
                ],
            }
        )

    def render_lines(self, *, wide: bool) -> Iterator[str]:
        """Yield a line for each policy, with `wide` also what each tier had."""
        yield (
            f"computepool/{self.pool}: {self.slices} slices, {len(self.inferences)} Inferences, {self.hours:g} h "
            f"after {self.history_hours:g} h of history"
        )
        changes = self.what_if.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        if changes:
            yield f"with {json.dumps(changes)}"
        yield ""
        header = ["POLICY", "VALUE", "OF ORACLE", "MISSED MIN", "UNSERVED", "MOVED", "IDLE SLICE-H"]
        rows = [[*header, *(f"{tier.value.upper()} SLICE-H" for tier in Tier if wide), "WHAT IT IS"]]
        yield from align_columns([*rows, *(_format_row(policy, wide=wide) for policy in self.policies)])

    def object_names(self) -> Iterator[str]:
        """Yield the pool."""
        yield format_name("ComputePool", self.pool)

    def render_page(self) -> str:
        """Return a page of HTML that needs nothing else: the table, and the slices of each policy over time."""
        lines = "\n".join(self.render_lines(wide=True))
        return render_day_page(f"Simulation of {self.pool}", lines, [("", self)])


def list_marks(scenario: Scenario) -> Iterator[SimulationMark]:
    """Yield the losses of nodes, and the first events that begin in the simulated time."""
    for start_s in sorted({outage.start_s for outage in scenario.outages}):
        nodes = sum(1 for outage in scenario.outages if outage.start_s == start_s)
        yield SimulationMark(seconds=start_s, label=f"{nodes} {'node' if nodes == 1 else 'nodes'} lost")
    moment = scenario.begin - timedelta(microseconds=1)
    end = scenario.begin + timedelta(seconds=scenario.interval_count * scenario.interval_s)
    for _ in range(_MAX_MARKS):
        item = scenario.calendar.find_next(moment)
        if item is None or item.begins >= end:
            return
        yield SimulationMark(
            seconds=(item.begins - scenario.begin).total_seconds(),
            label=f"{item.event.name}: {item.event.factor} x for {item.event.duration}",
        )
        moment = item.begins


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
