"""Judge a condition by the problems that agents report, and make the events of its changes."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import TypeVar

from tidegate.api.conditions import ConditionType, ObservedCondition
from tidegate.api.reasons import Reason
from tidegate.planning.inference.serving_status import Verdict
from tidegate.planning.plan import Event, EventType

_Report = TypeVar("_Report")


def judge_reports(
    reports: Sequence[_Report],
    problem: Callable[[_Report], StrEnum | None],
    message: Callable[[_Report], str],
) -> Verdict | None:
    """Return the problem that most replicas have, with the message of the first; None if none has one."""
    problems = Counter(reason for report in reports if (reason := problem(report)) is not None)
    if not problems:
        return None
    commonest, count = problems.most_common(1)[0]
    text = next(message(report) for report in reports if problem(report) is commonest)
    return Verdict(False, Reason(commonest.value), f"on {count} of {len(reports)} replicas: {text}")


def make_transition_events(
    kind: ConditionType,
    healthy_reason: Reason,
    problems: Iterable[StrEnum],
    previous: Sequence[ObservedCondition],
    current: Sequence[ObservedCondition],
) -> tuple[Event, ...]:
    """Return one event when it breaks by one of the `problems`, and one when it reaches `healthy_reason` again."""
    old, new = (find_observed_condition(kind, conditions) for conditions in (previous, current))
    if new is None or (old is not None and old.reason == new.reason):
        return ()
    if new.reason == healthy_reason.value:
        return (Event(EventType.NORMAL, new.reason, new.message),)
    if new.reason in {problem.value for problem in problems}:
        return (Event(EventType.WARNING, new.reason, new.message),)
    return ()


def find_observed_condition(
    kind: ConditionType, conditions: Sequence[ObservedCondition]
) -> ObservedCondition | None:
    """Return the condition of a type; None if there is none."""
    return next((condition for condition in conditions if condition.type == kind.value), None)
