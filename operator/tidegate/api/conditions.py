"""Conditions of a status, and how a new set is merged into the existing one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import Field

from tidegate.api.meta import StatusModel
from tidegate.api.reasons import Reason

# The API server accepts 32,768 characters in a message, which is too much to read in a terminal.
MAX_MESSAGE_LENGTH: Final = 4_096


class ConditionType(StrEnum):
    """Types of our conditions. Ready, Reconciling and Stalled have the meaning that kstatus gives them."""

    READY = "Ready"
    RECONCILING = "Reconciling"
    STALLED = "Stalled"
    MODEL_LOADED = "ModelLoaded"
    PROGRAMMED = "Programmed"
    TARGETS_READY = "TargetsReady"
    PLAN_COMPILED = "PlanCompiled"
    SOURCES_READY = "SourcesReady"
    FRESH = "Fresh"
    ENDPOINTS_PUBLISHED = "EndpointsPublished"
    SAMPLES_LOGGED = "SamplesLogged"
    COMPILED = "Compiled"
    BATCHED = "Batched"
    CONSUMING = "Consuming"
    COMPLETE = "Complete"
    BACKFILLED = "Backfilled"
    RELEASING = "Releasing"
    ROLLED_BACK = "RolledBack"
    HEALTHY = "Healthy"
    PLACED = "Placed"
    SHARING_CONFIGURED = "SharingConfigured"
    SHARING_HEALTHY = "SharingHealthy"
    ALLOCATED = "Allocated"
    SIGNALS_FRESH = "SignalsFresh"
    FORECASTING = "Forecasting"
    EVENTS_PLANNED = "EventsPlanned"
    OVERRIDE_ACTIVE = "OverrideActive"


_OWN_TYPES: Final = frozenset(kind.value for kind in ConditionType)
_HEALTHY_WHEN_FALSE: Final = frozenset(
    {ConditionType.RECONCILING.value, ConditionType.STALLED.value, ConditionType.ROLLED_BACK.value}
)
_HEALTHY_FALSE_REASONS: Final = frozenset(
    {
        (ConditionType.BACKFILLED.value, Reason.BACKFILLING.value),
        (ConditionType.BATCHED.value, Reason.REQUESTS_ALONE.value),
        (ConditionType.COMPILED.value, Reason.COMPILING.value),
        (ConditionType.COMPLETE.value, Reason.SCORING.value),
        (ConditionType.FORECASTING.value, Reason.FORECASTS_PENDING.value),
        (ConditionType.FORECASTING.value, Reason.HISTORY_TOO_SHORT.value),
        (ConditionType.RELEASING.value, Reason.PROMOTED.value),
        (ConditionType.RELEASING.value, Reason.RECONCILED.value),
    }
)
"""False is healthy here: a model whose requests cannot be joined, a graph that is being compiled, a run that is in progress, a demand that cannot be forecast yet, and a release that is promoted or not requested."""


class ConditionStatus(StrEnum):
    """Whether a condition holds."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"

    @classmethod
    def from_bool(cls, is_true: bool) -> ConditionStatus:
        """Return TRUE or FALSE."""
        return cls.TRUE if is_true else cls.FALSE


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition that we are about to write, for one generation of an object."""

    type: ConditionType
    status: ConditionStatus
    reason: Reason
    message: str
    observed_generation: int


class ObservedCondition(StatusModel):
    """A condition read from a status, ours or another controller's."""

    type: Annotated[
        str, Field(description="Type of the condition, for example Ready.", min_length=1, max_length=316)
    ]
    status: Annotated[
        ConditionStatus, Field(description="Whether the condition holds: True, False or Unknown.")
    ]
    reason: Annotated[
        str, Field(description="Reason in one CamelCase word, for machines.", max_length=1024)
    ] = ""
    message: Annotated[str, Field(description="Reason in a sentence, for people.", max_length=32768)] = ""
    observed_generation: Annotated[
        int, Field(description="The metadata.generation that the condition describes.", ge=0)
    ] = 0
    last_transition_time: Annotated[datetime, Field(description="When status last changed.")]

    @property
    def is_healthy(self) -> bool:
        """Return whether the status is the healthy one: True, but False for Reconciling, Stalled and RolledBack."""
        healthy = ConditionStatus.from_bool(self.type not in _HEALTHY_WHEN_FALSE)
        return self.status is healthy or (self.type, self.reason) in _HEALTHY_FALSE_REASONS


def merge_conditions(
    existing: Sequence[Mapping[str, object] | ObservedCondition], new: Sequence[Condition], now: datetime
) -> list[dict[str, Any]]:
    """Merge `new` into `existing`; return JSON objects that can be written to a status.

    lastTransitionTime changes only with the status.
    Types that are not in `new` are kept, because other controllers own them.
    Existing conditions keep their order, so that an unchanged set compares equal.
    """
    new_by_type = {condition.type.value: condition for condition in new}
    merged: list[dict[str, Any]] = []
    for item in existing:
        before = dict(item) if isinstance(item, Mapping) else item.dump()
        condition = new_by_type.pop(str(before.get("type")), None)
        merged.append(before if condition is None else _render_condition(condition, before, now))
    merged.extend(_render_condition(condition, {}, now) for condition in new_by_type.values())
    return merged


def select_own_conditions(conditions: Sequence[Mapping[str, object]]) -> list[Mapping[str, object]]:
    """Return the conditions of our types, which we may write without taking over another controller's."""
    return [item for item in conditions if item.get("type") in _OWN_TYPES]


def find_condition(
    conditions: Sequence[Mapping[str, object]], condition_type: ConditionType
) -> Mapping[str, object] | None:
    """Return the condition of a type; None if there is none."""
    return next((item for item in conditions if item.get("type") == condition_type.value), None)


def is_condition_true(
    conditions: Sequence[Mapping[str, object]], condition_type: ConditionType, *, generation: int = 0
) -> bool:
    """Return whether the condition is True and was observed at `generation` or a later one."""
    item = find_condition(conditions, condition_type)
    if item is None or item.get("status") != ConditionStatus.TRUE.value:
        return False
    observed = item.get("observedGeneration", 0)
    return isinstance(observed, int) and observed >= generation


def format_timestamp(moment: datetime) -> str:
    """Format a time as Kubernetes does: RFC 3339 in UTC, whole seconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _render_condition(condition: Condition, previous: Mapping[str, object], now: datetime) -> dict[str, Any]:
    same_status = previous.get("status") == condition.status.value
    changed_at = previous.get("lastTransitionTime") if same_status else None
    return {
        "type": condition.type.value,
        "status": condition.status.value,
        "reason": condition.reason.value,
        "message": _shorten_message(condition.message),
        "observedGeneration": condition.observed_generation,
        "lastTransitionTime": changed_at or format_timestamp(now),
    }


def _shorten_message(message: str) -> str:
    return message if len(message) <= MAX_MESSAGE_LENGTH else f"{message[: MAX_MESSAGE_LENGTH - 1]}…"
