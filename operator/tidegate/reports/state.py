"""Summarise the conditions of an object as one state, with the same words for every kind."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Final, Self, TypeAlias

from tidegate.api.compute_override import ComputeOverride
from tidegate.api.compute_pool import ComputePool
from tidegate.api.conditions import ConditionStatus, ConditionType, ObservedCondition
from tidegate.api.feature_compute import FeatureCompute
from tidegate.api.inference import Inference
from tidegate.api.messages.catalogue import OF_REASONS
from tidegate.api.messages.message import Level
from tidegate.api.meta import ApiModel
from tidegate.api.model_access import ModelAccess
from tidegate.api.release import ReleasePhase

Served: TypeAlias = Inference | ModelAccess | FeatureCompute | ComputePool
"""The kinds that have Ready, Reconciling and Stalled."""
Observed: TypeAlias = Served | ComputeOverride
"""The kinds that have conditions."""

_SUMMARIES: Final = frozenset({ConditionType.READY, ConditionType.RECONCILING, ConditionType.STALLED})
_LEVELS: Final = {reason.value: message.level for reason, message in OF_REASONS.items()}
_UNANSWERED: Final = "NotAnswered"


class State(StrEnum):
    """The state of an object, from the worst to the best."""

    STALLED = "Stalled"
    """It recovers only when its spec or a referenced object changes."""
    NOT_READY = "NotReady"
    """Something keeps it from being ready, and the controllers retry."""
    DEGRADED = "Degraded"
    """It is ready, and another condition is unhealthy."""
    DELETING = "Deleting"
    PROGRESSING = "Progressing"
    """A change is under way, or the controllers have not observed its newest spec."""
    RELEASING = "Releasing"
    """It is ready, and a release is under way."""
    READY = "Ready"

    @property
    def as_it_should_be(self) -> bool:
        """Return whether the object needs no attention."""
        return self in {State.READY, State.RELEASING}

    @property
    def badness(self) -> int:
        """Return the rank of the state; a lower one is worse."""
        return tuple(State).index(self)


class ObjectReport(ApiModel):
    """One object in a line."""

    kind: str
    name: str
    """Namespace and name with a slash between; the name alone if the kind has no namespace."""
    state: State
    reason: str
    message: str
    since: datetime | None
    """The time when the status of Ready last changed."""

    @classmethod
    def of(cls, one: Observed) -> Self:
        """Return the report of an object: its state, and the reason for it."""
        state, condition = _standing(one)
        ready = _find(one.status.conditions, ConditionType.READY)
        return cls(
            kind=one.KIND,
            name=str(one.key),
            state=state,
            reason=condition.reason if condition is not None else _UNANSWERED,
            message=condition.message if condition is not None else _unanswered(one),
            since=ready.last_transition_time if ready is not None else None,
        )

    def says(self) -> str:
        """Return reason and message in one line; the reason alone if there is no message."""
        return f"{self.reason}: {self.message}" if self.message else self.reason


def worst_first(objects: Iterable[ObjectReport]) -> tuple[ObjectReport, ...]:
    """Sort by state, and objects of one state by kind and name."""
    return tuple(sorted(objects, key=lambda report: (report.state.badness, report.kind, report.name)))


def _standing(one: Observed) -> tuple[State, ObservedCondition | None]:
    """Return the state and the condition that explains it; no condition before the controllers have answered."""
    conditions = one.status.conditions
    ready = _find(conditions, ConditionType.READY)
    if one.metadata.deletion_timestamp is not None:
        return State.DELETING, ready
    if ready is None or one.status.observed_generation < one.metadata.generation:
        return State.PROGRESSING, None
    stalled = _find(conditions, ConditionType.STALLED)
    if stalled is not None and stalled.status is ConditionStatus.TRUE:
        return State.STALLED, stalled
    if ready.status is not ConditionStatus.TRUE:
        error = _LEVELS.get(ready.reason, Level.ERROR) is Level.ERROR
        return State.NOT_READY if error else State.PROGRESSING, ready
    worse = next((condition for condition in conditions if _is_worse(condition)), None)
    if worse is not None:
        return State.DEGRADED, worse
    return State.RELEASING if _is_releasing(one) else State.READY, ready


def _is_worse(condition: ObservedCondition) -> bool:
    """Return whether a condition means more for a ready object than that something takes its time."""
    return (
        condition.type not in _SUMMARIES
        and not condition.as_it_should_be
        and _LEVELS.get(condition.reason) is not Level.INFO
    )


def _is_releasing(one: Observed) -> bool:
    if not isinstance(one, ModelAccess) or one.spec.release is None:
        return False
    release = one.status.release
    return release is None or release.phase in {ReleasePhase.PROGRESSING, ReleasePhase.PAUSED}


def _unanswered(one: Observed) -> str:
    observed, generation = one.status.observed_generation, one.metadata.generation
    if not one.status.conditions:
        return "no controller has observed it yet"
    return f"its status is about generation {observed}, and it has {generation}"


def _find(conditions: Sequence[ObservedCondition], kind: ConditionType) -> ObservedCondition | None:
    return next((condition for condition in conditions if condition.type == kind), None)
