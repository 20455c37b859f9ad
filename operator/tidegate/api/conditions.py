"""Conditions: what a status says about an object, and how a new set is laid over the old one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import Field

from tidegate.api.meta import StatusModel
from tidegate.api.reasons import Reason

# The API server's own limit for a condition's message is 32,768; nobody reads that much in a terminal.
MAX_MESSAGE_LENGTH: Final = 4_096


class ConditionType(StrEnum):
    """Our types of condition. Ready, Reconciling and Stalled mean what kstatus means by them."""

    READY = "Ready"
    RECONCILING = "Reconciling"
    STALLED = "Stalled"
    MODEL_LOADED = "ModelLoaded"
    PROGRAMMED = "Programmed"
    TARGETS_READY = "TargetsReady"
    PLAN_COMPILED = "PlanCompiled"
    SOURCES_READY = "SourcesReady"
    ENDPOINTS_PUBLISHED = "EndpointsPublished"
    SAMPLES_LOGGED = "SamplesLogged"
    CONSUMING = "Consuming"
    COMPLETE = "Complete"
    RELEASING = "Releasing"
    ROLLED_BACK = "RolledBack"
    HEALTHY = "Healthy"
    PLACED = "Placed"
    SHARING_CONFIGURED = "SharingConfigured"
    SHARING_HEALTHY = "SharingHealthy"
    ALLOCATED = "Allocated"
    SIGNALS_FRESH = "SignalsFresh"
    OVERRIDE_ACTIVE = "OverrideActive"


_OWN_TYPES: Final = frozenset(kind.value for kind in ConditionType)
_BETTER_FALSE: Final = frozenset(
    {ConditionType.RECONCILING.value, ConditionType.STALLED.value, ConditionType.ROLLED_BACK.value}
)
_FALSE_AND_WELL: Final = frozenset(
    {
        (ConditionType.COMPLETE.value, Reason.SCORING.value),
        (ConditionType.RELEASING.value, Reason.PROMOTED.value),
        (ConditionType.RELEASING.value, Reason.RECONCILED.value),
    }
)
"""A batch is not complete while it is at work, and nothing is released where all of it was, or where nobody asks for it."""


class ConditionStatus(StrEnum):
    """Whether a condition holds."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"

    @classmethod
    def of(cls, holds: bool) -> ConditionStatus:
        """TRUE or FALSE."""
        return cls.TRUE if holds else cls.FALSE


@dataclass(frozen=True, slots=True)
class Condition:
    """One thing that we say about one generation of an object."""

    type: ConditionType
    status: ConditionStatus
    reason: Reason
    message: str
    observed_generation: int


class ObservedCondition(StatusModel):
    """A condition as it stands in a status, ours or another controller's."""

    type: Annotated[str, Field(description="What is said, for example Ready.", min_length=1, max_length=316)]
    status: Annotated[ConditionStatus, Field(description="Whether it holds: True, False or Unknown.")]
    reason: Annotated[str, Field(description="Why, in one CamelCase word for machines.", max_length=1024)] = (
        ""
    )
    message: Annotated[str, Field(description="Why, in a sentence for people.", max_length=32768)] = ""
    observed_generation: Annotated[
        int, Field(description="The metadata.generation that this is about.", ge=0)
    ] = 0
    last_transition_time: Annotated[datetime, Field(description="When status last changed.")]

    @property
    def as_it_should_be(self) -> bool:
        """Whether it says that all is well: True for most types, False for Reconciling, Stalled and RolledBack."""
        wanted = ConditionStatus.of(self.type not in _BETTER_FALSE)
        return self.status is wanted or (self.type, self.reason) in _FALSE_AND_WELL


def merge(
    existing: Sequence[Mapping[str, object] | ObservedCondition], new: Sequence[Condition], now: datetime
) -> list[dict[str, Any]]:
    """`new` laid over `existing`, in the API's spelling, ready to be written.

    lastTransitionTime moves only when the status does; types that are not in `new` are kept as they are,
    since they belong to others; the order of what is there stays, so that an unchanged set compares equal.
    """
    said = {condition.type.value: condition for condition in new}
    merged: list[dict[str, Any]] = []
    for item in existing:
        before = dict(item) if isinstance(item, Mapping) else item.dump()
        condition = said.pop(str(before.get("type")), None)
        merged.append(before if condition is None else _render(condition, before, now))
    merged.extend(_render(condition, {}, now) for condition in said.values())
    return merged


def own_conditions(conditions: Sequence[Mapping[str, object]]) -> list[Mapping[str, object]]:
    """Those whose type is ours: what we may write without taking over what another controller said."""
    return [item for item in conditions if item.get("type") in _OWN_TYPES]


def find(conditions: Sequence[Mapping[str, object]], kind: ConditionType) -> Mapping[str, object] | None:
    """The condition of that type, if there is one."""
    return next((item for item in conditions if item.get("type") == kind.value), None)


def is_true(conditions: Sequence[Mapping[str, object]], kind: ConditionType, *, generation: int = 0) -> bool:
    """Whether the condition holds, and was said about `generation` or a later one."""
    item = find(conditions, kind)
    if item is None or item.get("status") != ConditionStatus.TRUE.value:
        return False
    observed = item.get("observedGeneration", 0)
    return isinstance(observed, int) and observed >= generation


def timestamp(moment: datetime) -> str:
    """`moment` as Kubernetes writes times: UTC, whole seconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _render(condition: Condition, before: Mapping[str, object], now: datetime) -> dict[str, Any]:
    same_status = before.get("status") == condition.status.value
    changed_at = before.get("lastTransitionTime") if same_status else None
    return {
        "type": condition.type.value,
        "status": condition.status.value,
        "reason": condition.reason.value,
        "message": _shortened(condition.message),
        "observedGeneration": condition.observed_generation,
        "lastTransitionTime": changed_at or timestamp(now),
    }


def _shortened(message: str) -> str:
    return message if len(message) <= MAX_MESSAGE_LENGTH else f"{message[: MAX_MESSAGE_LENGTH - 1]}…"
