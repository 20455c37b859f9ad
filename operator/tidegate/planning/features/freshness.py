"""Judge how current the events and tables of a FeatureCompute are, from the reports of its pods."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from tidegate.api.conditions import Condition, ConditionStatus, ConditionType
from tidegate.api.durations import format_duration
from tidegate.api.feature_status import SourceWatermark
from tidegate.api.reasons import Reason
from tidegate.planning.features.table_freshness import find_table_problem, list_table_reports
from tidegate.planning.inference.reported_problems import judge_reports
from tidegate.planning.inference.serving_status import Verdict, make_condition
from tidegate.planning.inference.swap_failures import ObservedReplica
from tidegate_dataplane.contract import DeadLetterReport, EventStreamReport, StreamProblem

FRESHNESS_REQUEUE: Final = timedelta(seconds=15)
"""Nothing wakes the reconciler when events become old, or when a broker does not answer."""

_LAG_STEPS: Final = (5, 15, 60, 300, 900, 3_600, 86_400)
"""Seconds; a status with exact lags would change with every reconcile."""
_BEYOND_STEPS: Final = 604_800
_MAX_LAG_S: Final = 60
_TOLERATED_PROBLEM_S: Final = 15
"""A stream may fail this long without a report: a broker that restarts, a connection that breaks."""


@dataclass(frozen=True, slots=True)
class SourceReadings:
    """What the pods of one plan report about their events and tables."""

    sources: tuple[str, ...]
    """Names of the plan's streams, in its order."""
    tables: tuple[str, ...]
    """Names of the plan's tables with refresh, in its order."""
    replicas: Sequence[ObservedReplica]
    desired_pods: int
    """How many pods should run."""

    @property
    def can_age(self) -> bool:
        """Return whether there is a source that changes while pods serve."""
        return bool(self.sources or self.tables)

    def list_reports(self, source: str) -> list[EventStreamReport]:
        """Return the reports about a source of every pod."""
        return _list_reports(self.replicas, source)

    def list_serving_reports(self, source: str) -> list[EventStreamReport]:
        """Return the reports about a source of pods that answer requests."""
        return _list_reports((replica for replica in self.replicas if replica.pod.ready), source)

    def list_judged_reports(self, source: str) -> list[EventStreamReport]:
        """Return the reports of pods that answer requests, of all pods if none does."""
        return self.list_serving_reports(source) or self.list_reports(source)


def make_fresh_condition(readings: SourceReadings, generation: int) -> Condition:
    """Return the condition Fresh; it is Unknown until a pod has reported every source."""
    if readings.desired_pods == 0:
        verdict = Verdict(False, Reason.SCALED_TO_ZERO, "spec.replicas is 0, no source is read")
        return make_condition(ConditionType.FRESH, verdict, generation)
    problem = _find_problem(readings) or find_table_problem(readings.tables, readings.replicas)
    silent = [source for source in readings.sources if not readings.list_reports(source)]
    if problem is None and silent:
        message = f"no replica has reported the events of source {silent[0]} yet"
        return Condition(
            ConditionType.FRESH, ConditionStatus.UNKNOWN, Reason.EVENTS_UNKNOWN, message, generation
        )
    unread = [source for source in readings.tables if not list_table_reports(source, readings.replicas)]
    if problem is None and unread:
        message = f"no replica has reported the table of source {unread[0]} yet"
        return Condition(
            ConditionType.FRESH, ConditionStatus.UNKNOWN, Reason.SOURCES_LOADING, message, generation
        )
    healthy = _CURRENT if readings.sources else _TABLES_CURRENT
    verdict = problem or _find_lag(readings) or _find_failing_letters(readings) or healthy
    return make_condition(ConditionType.FRESH, verdict, generation)


_CURRENT: Final = Verdict(
    True,
    Reason.EVENTS_CURRENT,
    f"every replica that reports has all events until {_MAX_LAG_S} s ago or later",
)


_TABLES_CURRENT: Final = Verdict(
    True, Reason.TABLES_CURRENT, "every replica that reports has the newest tables, as of its last check"
)


def make_watermarks(readings: SourceReadings) -> tuple[SourceWatermark, ...]:
    """Return how current each source is in the pods that answer requests; without any, nothing about it."""
    return tuple(
        SourceWatermark(
            source=source,
            lag_seconds=_round_lag(max(report.lag_s for report in reports)),
            refused_events=_round_down(max(sum(report.refused.values()) for report in reports), digits=1),
            dead_letters=_round_largest(letters.written for letters in _list_letters(reports)),
            failed_dead_letters=_round_largest(letters.failed for letters in _list_letters(reports)),
        )
        for source in readings.sources
        if (reports := readings.list_serving_reports(source))
    )


def describe_reading(readings: SourceReadings) -> str:
    """Return how far the first pod that does not serve yet has read its streams; empty if none has reported."""
    for replica in readings.replicas:
        if replica.report is None or replica.report.serving is not None:
            continue
        parts = [_describe_progress(report) for report in replica.report.events if not report.caught_up]
        if parts:
            return f"pod {replica.pod.key.name}: {'; '.join(parts)}"
    return ""


def format_lag(seconds: int) -> str:
    """Format the lag of a watermark, which is an upper bound except for the largest one."""
    if seconds >= _BEYOND_STEPS:
        return f"more than {format_duration(timedelta(seconds=_LAG_STEPS[-1]))}"
    return f"at most {format_duration(timedelta(seconds=seconds))}"


def _list_reports(replicas: Iterable[ObservedReplica], source: str) -> list[EventStreamReport]:
    return [
        report
        for replica in replicas
        if replica.report is not None
        for report in replica.report.events
        if report.source == source
    ]


def _find_problem(readings: SourceReadings) -> Verdict | None:
    """Return the first source whose broker a pod has not been able to read for a while, with the broker's own text."""
    for source in readings.sources:
        verdict = judge_reports(
            readings.list_judged_reports(source), _find_lasting_problem, lambda report: report.message
        )
        if verdict is not None:
            return Verdict(False, verdict.reason, f"source {source}: {verdict.message}")
    return None


def _find_lasting_problem(report: EventStreamReport) -> StreamProblem | None:
    return report.problem if report.failing_s > _TOLERATED_PROBLEM_S else None


def _find_lag(readings: SourceReadings) -> Verdict | None:
    """Return the first source whose events a pod lacks; pods that do not serve are used only if no pod serves."""
    for source in readings.sources:
        reports = readings.list_judged_reports(source)
        behind = [report for report in reports if not report.caught_up or report.lag_s > _MAX_LAG_S]
        if behind:
            lag = format_lag(_round_lag(max(report.lag_s for report in behind)))
            pending = _round_down(max(report.pending or 0 for report in behind), digits=1)
            cause = next((f"; {report.message}" for report in behind if report.message), "")
            message = f"source {source}: {len(behind)} of {len(reports)} replicas lag by {lag}"
            return Verdict(
                False, Reason.EVENTS_BEHIND, f"{message}, with about {pending:,} events pending{cause}"
            )
    return None


def _find_failing_letters(readings: SourceReadings) -> Verdict | None:
    """Return the first source whose dead letters a pod has not been able to write for a while, with the broker's own text.

    The events are current all the same, so the condition holds.
    """
    for source in readings.sources:
        reports = readings.list_judged_reports(source)
        failing = [letters for letters in _list_letters(reports) if letters.failing_s > _TOLERATED_PROBLEM_S]
        if failing:
            failed = _round_down(max(letters.failed for letters in failing), digits=1)
            count = f"{failed:,} or more refused events are not in them" if failed else "none was refused yet"
            message = f"source {source}: its dead letters cannot be written, {count}: {failing[0].message}"
            return Verdict(True, Reason.DEAD_LETTERS_FAILING, message)
    return None


def _list_letters(reports: Iterable[EventStreamReport]) -> list[DeadLetterReport]:
    return [report.dead_letters for report in reports if report.dead_letters is not None]


def _round_largest(counts: Iterable[int]) -> int | None:
    """Return the largest count, rounded down to one digit; None of none."""
    largest = max(counts, default=None)
    return None if largest is None else _round_down(largest, digits=1)


def _describe_progress(report: EventStreamReport) -> str:
    if report.problem is not None:
        return f"source {report.source}: {report.message}"
    count = _round_down(report.stored + sum(report.refused.values()), digits=2)
    pending = "" if report.pending is None else f", {_round_down(report.pending, digits=2):,} pending"
    return f"source {report.source}: {count:,} events read{pending}"


def _round_lag(lag_s: float) -> int:
    return next((step for step in _LAG_STEPS if lag_s <= step), _BEYOND_STEPS)


def _round_down(count: int, *, digits: int) -> int:
    unit = int(10 ** max(0, len(str(count)) - digits))
    return count // unit * unit
