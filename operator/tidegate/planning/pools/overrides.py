"""ComputeOverrides as planners see them: which are active, what they bound, and how statuses report them."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final

from tidegate.allocation.snapshot import ReplicaBounds
from tidegate.api.compute_override import ComputeOverride, OverrideKind
from tidegate.api.conditions import (
    Condition,
    ConditionStatus,
    ConditionType,
    ObservedCondition,
    format_timestamp,
)
from tidegate.api.inference import Scaling
from tidegate.api.meta import ObjectKey
from tidegate.api.reasons import Reason
from tidegate.planning.inference.serving_status import Verdict, make_condition
from tidegate.planning.plan import Event, EventType

END_MARGIN: Final = timedelta(milliseconds=50)
"""A requeue at an override's end comes this much later, so that it has ended by then."""


def select_active(overrides: Iterable[ComputeOverride], now: datetime) -> tuple[ComputeOverride, ...]:
    """Return the overrides that have not ended, the oldest first."""
    active = (
        override
        for override in overrides
        if now < override.end_time and override.metadata.deletion_timestamp is None
    )
    return tuple(sorted(active, key=make_age_key))


def select_for_target(
    overrides: Iterable[ComputeOverride], kind: OverrideKind, key: ObjectKey
) -> tuple[ComputeOverride, ...]:
    """Return the overrides with this target, in their order."""
    return tuple(
        override
        for override in overrides
        if (override.spec.target.kind, override.spec.target.key) == (kind, key)
    )


def select_active_for(
    overrides: Iterable[ComputeOverride], kind: OverrideKind, key: ObjectKey, now: datetime
) -> tuple[ComputeOverride, ...]:
    """Return the overrides of this target that have not ended, the oldest first."""
    return select_for_target(select_active(overrides, now), kind, key)


def find_next_end(overrides: Iterable[ComputeOverride]) -> datetime | None:
    """Return when the first of the overrides ends; None without overrides."""
    return min((override.end_time for override in overrides), default=None)


def bound_replicas(scaling: Scaling, replicas: int, overrides: Sequence[ComputeOverride]) -> ReplicaBounds:
    """Return the bounds of the replicas within `scaling` that the active overrides allow.

    No override exceeds the range of `scaling`, since the model's owner set it. The highest floor applies; the newest pin or
    hold applies instead of all floors.
    """
    min_replicas, max_replicas = scaling.min_replicas, scaling.max_replicas
    bounds = ReplicaBounds(min_replicas, max_replicas, "spec.scaling.minReplicas", "spec.scaling.maxReplicas")
    for override in overrides:
        if override.spec.floor is not None and override.spec.floor.replicas > bounds.floor:
            floor = min(override.spec.floor.replicas, max_replicas)
            bounds = ReplicaBounds(floor, max_replicas, _name_override(override), bounds.ceiling_source)
    for override in overrides:
        if override.spec.pin is not None or override.spec.hold:
            count = override.spec.pin.replicas if override.spec.pin is not None else replicas
            count = min(max(count, min_replicas), max_replicas)
            bounds = ReplicaBounds(count, count, _name_override(override), _name_override(override))
    return bounds


def judge_overrides(overrides: Sequence[ComputeOverride], *, effective: bool = True) -> Verdict | None:
    """Return the verdict of OverrideActive; None if no override is active.

    `effective`: whether overrides can change anything about the target.
    """
    if not overrides:
        return None
    text = "; ".join(describe_override(override) for override in overrides)
    if effective:
        return Verdict(True, Reason.OVERRIDDEN, text)
    return Verdict(False, Reason.OVERRIDE_WITHOUT_EFFECT, f"{text}; {NO_RANGE}")


def make_override_conditions(overrides: Sequence[ComputeOverride], generation: int) -> tuple[Condition, ...]:
    """Return the condition OverrideActive if an override is active."""
    verdict = judge_overrides(overrides)
    return (
        (make_condition(ConditionType.OVERRIDE_ACTIVE, verdict, generation),) if verdict is not None else ()
    )


NO_RANGE = "spec.replicas is fixed: set spec.scaling instead, or spec.replicas itself"
"""Why an override has no effect on an Inference without a range."""


def drop_override_condition(
    overrides: Sequence[ComputeOverride], conditions: Sequence[ObservedCondition]
) -> tuple[ObservedCondition, ...]:
    """Drop the condition OverrideActive if no override is active."""
    if overrides:
        return tuple(conditions)
    return tuple(item for item in conditions if item.type != ConditionType.OVERRIDE_ACTIVE.value)


def make_override_events(
    before: Sequence[ObservedCondition], after: Sequence[ObservedCondition]
) -> tuple[Event, ...]:
    """Return an Event if the active overrides have changed, or the last of them has ended."""
    was, now = _find_active_condition(before), _find_active_condition(after)
    if now is not None and (was is None or was.message != now.message):
        return (Event(EventType.NORMAL, Reason.OVERRIDDEN.value, now.message),)
    if was is not None and now is None:
        return (
            Event(EventType.NORMAL, "OverrideEnded", f"no ComputeOverride is active any more: {was.message}"),
        )
    return ()


def describe_override(override: ComputeOverride) -> str:
    """Describe what an override does, who made it, until when and why."""
    spec = override.spec
    if spec.pin is not None:
        effect = f"pins {spec.pin.replicas} replicas"
    elif spec.floor is not None:
        effect = f"asks for at least {spec.floor.replicas} replicas"
    else:
        effect = "holds it as it is"
    by = f" by {override.author}" if override.author else ""
    until = format_timestamp(override.end_time)
    return f"ComputeOverride {override.metadata.name}{by} {effect} until {until}: {spec.reason}"


def _name_override(override: ComputeOverride) -> str:
    by = f" by {override.author}" if override.author else ""
    return f"ComputeOverride {override.metadata.name}{by}"


def _find_active_condition(conditions: Sequence[ObservedCondition]) -> ObservedCondition | None:
    kind = ConditionType.OVERRIDE_ACTIVE.value
    return next(
        (item for item in conditions if item.type == kind and item.status is ConditionStatus.TRUE), None
    )


def make_age_key(override: ComputeOverride) -> tuple[str, str]:
    """Return the key that sorts the oldest override first."""
    made = override.metadata.creation_timestamp
    return (made.isoformat() if made is not None else "", override.metadata.name)
