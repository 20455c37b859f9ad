"""Build the conditions beside Ready, for optional features that a model serves without."""

from collections import Counter
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import TypeVar

from tidegate.api.conditions import ConditionType, ObservedCondition
from tidegate.api.reasons import Reason
from tidegate.planning.inference.serving_status import Verdict
from tidegate.planning.plan import Event, EventType

Report = TypeVar("Report")


def drop_condition(
    kind: ConditionType, conditions: Sequence[ObservedCondition]
) -> tuple[ObservedCondition, ...]:
    """Drop the condition from an object whose spec does not ask for the feature any more."""
    return tuple(condition for condition in conditions if condition.type != kind.value)


def transition_events(
    kind: ConditionType,
    healthy_reason: Reason,
    problems: type[StrEnum],
    previous: Sequence[ObservedCondition],
    current: Sequence[ObservedCondition],
) -> tuple[Event, ...]:
    """Return one event when it breaks by one of the `problems`, and one when it reaches `healthy_reason` again."""
    old, new = (
        next((condition for condition in side if condition.type == kind.value), None)
        for side in (previous, current)
    )
    if new is None or (old is not None and old.reason == new.reason):
        return ()
    if new.reason == healthy_reason.value:
        return (Event(EventType.NORMAL, new.reason, new.message),)
    if new.reason in {problem.value for problem in problems}:
        return (Event(EventType.WARNING, new.reason, new.message),)
    return ()


def judge_reports(
    reports: Sequence[Report], problem: Callable[[Report], StrEnum | None], message: Callable[[Report], str]
) -> Verdict | None:
    """Return the problem that most replicas have, with the message of the first; None if none has one."""
    problems = Counter(reason for report in reports if (reason := problem(report)) is not None)
    if not problems:
        return None
    commonest, count = problems.most_common(1)[0]
    text = next(message(report) for report in reports if problem(report) is commonest)
    return Verdict(False, Reason(commonest.value), f"on {count} of {len(reports)} replicas: {text}")
