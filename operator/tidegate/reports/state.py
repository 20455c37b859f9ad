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
from tidegate.api.messages.catalogue import REASON_MESSAGES
from tidegate.api.messages.message import MessageLevel
from tidegate.api.meta import ApiModel
from tidegate.api.model_access import ModelAccess
from tidegate.api.release_commands import ReleasePhase

StatefulObject: TypeAlias = Inference | ModelAccess | FeatureCompute | ComputePool
"""The kinds that have Ready, Reconciling and Stalled."""
ObjectWithConditions: TypeAlias = StatefulObject | ComputeOverride
"""The kinds that have conditions."""

_SUMMARY_TYPES: Final = frozenset({ConditionType.READY, ConditionType.RECONCILING, ConditionType.STALLED})
_LEVEL_BY_REASON: Final = {reason.value: message.level for reason, message in REASON_MESSAGES.items()}
_NOT_OBSERVED_REASON: Final = "NotAnswered"


class ObjectState(StrEnum):
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
    def healthy(self) -> bool:
        """Return whether the object needs no attention."""
        return self in {ObjectState.READY, ObjectState.RELEASING}

    @property
    def rank(self) -> int:
        """Return the rank of the state; a lower one is worse."""
        return tuple(ObjectState).index(self)


class ObjectReport(ApiModel):
    """One object in a line."""

    kind: str
    name: str
    """Namespace and name with a slash between; the name alone if the kind has no namespace."""
    state: ObjectState
    reason: str
    message: str
    since: datetime | None
    """The time when the status of Ready last changed."""

    @classmethod
    def from_object(cls, resource: ObjectWithConditions) -> Self:
        """Return the report of an object: its state, and the reason for it."""
        state, condition = _summarise_conditions(resource)
        ready = _find_condition(resource.status.conditions, ConditionType.READY)
        return cls(
            kind=resource.KIND,
            name=str(resource.key),
            state=state,
            reason=condition.reason if condition is not None else _NOT_OBSERVED_REASON,
            message=condition.message if condition is not None else _not_observed_message(resource),
            since=ready.last_transition_time if ready is not None else None,
        )

    def explain_state(self) -> str:
        """Return reason and message in one line; the reason alone if there is no message."""
        return f"{self.reason}: {self.message}" if self.message else self.reason


def sort_worst_first(objects: Iterable[ObjectReport]) -> tuple[ObjectReport, ...]:
    """Sort by state, and objects of one state by kind and name."""
    return tuple(sorted(objects, key=lambda report: (report.state.rank, report.kind, report.name)))


def _summarise_conditions(resource: ObjectWithConditions) -> tuple[ObjectState, ObservedCondition | None]:
    """Return the state and the condition that explains it; no condition before the controllers have answered."""
    conditions = resource.status.conditions
    ready = _find_condition(conditions, ConditionType.READY)
    if resource.metadata.deletion_timestamp is not None:
        return ObjectState.DELETING, ready
    if ready is None or resource.status.observed_generation < resource.metadata.generation:
        return ObjectState.PROGRESSING, None
    stalled = _find_condition(conditions, ConditionType.STALLED)
    if stalled is not None and stalled.status is ConditionStatus.TRUE:
        return ObjectState.STALLED, stalled
    if ready.status is not ConditionStatus.TRUE:
        error = _LEVEL_BY_REASON.get(ready.reason, MessageLevel.ERROR) is MessageLevel.ERROR
        return ObjectState.NOT_READY if error else ObjectState.PROGRESSING, ready
    worse = next((condition for condition in conditions if _degrades_ready(condition)), None)
    if worse is not None:
        return ObjectState.DEGRADED, worse
    return ObjectState.RELEASING if _is_releasing(resource) else ObjectState.READY, ready


def _degrades_ready(condition: ObservedCondition) -> bool:
    """Return whether a condition means more for a ready object than that something takes its time."""
    return (
        condition.type not in _SUMMARY_TYPES
        and not condition.is_healthy
        and _LEVEL_BY_REASON.get(condition.reason) is not MessageLevel.INFO
    )


def _is_releasing(resource: ObjectWithConditions) -> bool:
    if not isinstance(resource, ModelAccess) or resource.spec.release is None:
        return False
    release = resource.status.release
    return release is None or release.phase in {ReleasePhase.PROGRESSING, ReleasePhase.PAUSED}


def _not_observed_message(resource: ObjectWithConditions) -> str:
    observed, generation = resource.status.observed_generation, resource.metadata.generation
    if not resource.status.conditions:
        return "no controller has observed it yet"
    return f"its status describes generation {observed}, and it has {generation}"


def _find_condition(conditions: Sequence[ObservedCondition], kind: ConditionType) -> ObservedCondition | None:
    return next((condition for condition in conditions if condition.type == kind), None)
