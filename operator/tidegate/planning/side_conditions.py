"""Conditions beside Ready, for what a spec may ask for and a model serves without: they come and go with the field."""

from collections import Counter
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import TypeVar

from tidegate.api.conditions import ConditionType, ObservedCondition
from tidegate.api.reasons import Reason
from tidegate.planning.plan import Event, EventType
from tidegate.planning.serving_status import Verdict

Report = TypeVar("Report")


def without(kind: ConditionType, conditions: Sequence[ObservedCondition]) -> tuple[ObservedCondition, ...]:
    """The conditions that an object goes on with when its spec does not ask for it any more."""
    return tuple(each for each in conditions if each.type != kind.value)


def turns(
    kind: ConditionType,
    well: Reason,
    broken: type[StrEnum],
    before: Sequence[ObservedCondition],
    after: Sequence[ObservedCondition],
) -> tuple[Event, ...]:
    """One event when it breaks by one of the problems `broken`, and one when it is `well` again."""
    was, now = (next((each for each in side if each.type == kind.value), None) for side in (before, after))
    if now is None or (was is not None and was.reason == now.reason):
        return ()
    if now.reason == well.value:
        return (Event(EventType.NORMAL, now.reason, now.message),)
    if now.reason in {problem.value for problem in broken}:
        return (Event(EventType.WARNING, now.reason, now.message),)
    return ()


def worst(
    reports: Sequence[Report], problem: Callable[[Report], StrEnum | None], message: Callable[[Report], str]
) -> Verdict | None:
    """The problem that most replicas have, in the words of the first; None where none has one."""
    problems = Counter(found for report in reports if (found := problem(report)) is not None)
    if not problems:
        return None
    most, count = problems.most_common(1)[0]
    said = next(message(report) for report in reports if problem(report) is most)
    return Verdict(False, Reason(most.value), f"on {count} of {len(reports)} replicas: {said}")
