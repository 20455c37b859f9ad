"""How an object is, in one word: what its conditions say together, the same word for every kind."""

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
    """How an object is, the worst first."""

    STALLED = "Stalled"
    """Only its user, or another object, can change that."""
    NOT_READY = "NotReady"
    """Something keeps it from being ready, and it is tried again."""
    DEGRADED = "Degraded"
    """It is ready, and something else about it is not as it should be."""
    DELETING = "Deleting"
    PROGRESSING = "Progressing"
    """It is on its way, or the controllers have not answered its newest spec."""
    RELEASING = "Releasing"
    """It is ready, and a release is under way."""
    READY = "Ready"

    @property
    def as_it_should_be(self) -> bool:
        """Whether nobody needs to look."""
        return self in {State.READY, State.RELEASING}

    @property
    def badness(self) -> int:
        """Less is worse."""
        return tuple(State).index(self)


class ObjectReport(ApiModel):
    """One object in a line."""

    kind: str
    name: str
    """With its namespace before a slash, where it has one."""
    state: State
    reason: str
    message: str
    since: datetime | None
    """Since when Ready is what it is."""

    @classmethod
    def of(cls, one: Observed) -> Self:
        """What the conditions of an object say together."""
        state, why = _standing(one)
        ready = _find(one.status.conditions, ConditionType.READY)
        return cls(
            kind=one.KIND,
            name=str(one.key),
            state=state,
            reason=why.reason if why is not None else _UNANSWERED,
            message=why.message if why is not None else _unanswered(one),
            since=ready.last_transition_time if ready is not None else None,
        )

    def says(self) -> str:
        """Why, in a line; nothing where the state says it all."""
        return f"{self.reason}: {self.message}" if self.message else self.reason


def worst_first(objects: Iterable[ObjectReport]) -> tuple[ObjectReport, ...]:
    """By state, and among those of one by kind and name."""
    return tuple(sorted(objects, key=lambda each: (each.state.badness, each.kind, each.name)))


def _standing(one: Observed) -> tuple[State, ObservedCondition | None]:
    """Its state, and the condition that says why; None where no controller has said anything."""
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
    worse = next((each for each in conditions if _is_worse(each)), None)
    if worse is not None:
        return State.DEGRADED, worse
    return State.RELEASING if _is_releasing(one) else State.READY, ready


def _is_worse(condition: ObservedCondition) -> bool:
    """Whether it says more against a ready object than that something takes its time."""
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
        return "no controller has said anything about it yet"
    return f"its status is about generation {observed}, and it has {generation}"


def _find(conditions: Sequence[ObservedCondition], kind: ConditionType) -> ObservedCondition | None:
    return next((each for each in conditions if each.type == kind), None)
