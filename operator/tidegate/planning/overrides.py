"""ComputeOverrides as planners see them: which are in force, what they bound, and what is said of them."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final

from tidegate.allocation.snapshot import ReplicaBounds
from tidegate.api.compute_override import ComputeOverride, OverrideKind
from tidegate.api.conditions import Condition, ConditionStatus, ConditionType, ObservedCondition
from tidegate.api.inference import Scaling
from tidegate.api.meta import ObjectKey
from tidegate.api.reasons import Reason
from tidegate.planning.plan import Event, EventType
from tidegate.planning.serving_status import Verdict, condition

JUST_AFTER: Final = timedelta(milliseconds=50)
"""Whoever looks again at an override's end looks this much later, so that it has ended by then."""


def in_force(overrides: Iterable[ComputeOverride], now: datetime) -> tuple[ComputeOverride, ...]:
    """Those that have not ended, the oldest first."""
    alive = (each for each in overrides if now < each.ends and each.metadata.deletion_timestamp is None)
    return tuple(sorted(alive, key=_age))


def about(
    overrides: Iterable[ComputeOverride], kind: OverrideKind, key: ObjectKey
) -> tuple[ComputeOverride, ...]:
    """Those with this target, in their order."""
    return tuple(each for each in overrides if (each.spec.target.kind, each.spec.target.key) == (kind, key))


def next_end(overrides: Iterable[ComputeOverride]) -> datetime | None:
    """When the first of them ends."""
    return min((each.ends for each in overrides), default=None)


def bounded(scaling: Scaling, held: int, overrides: Sequence[ComputeOverride]) -> ReplicaBounds:
    """What the overrides in force leave of a range; none leads out of it, since whose model it is decides that.

    Floors add up to the highest; of pins and holds the newest counts, and before floors.
    """
    least, most = scaling.min_replicas, scaling.max_replicas
    bounds = ReplicaBounds(least, most, "spec.scaling.minReplicas", "spec.scaling.maxReplicas")
    for each in overrides:
        if each.spec.floor is not None and each.spec.floor.replicas > bounds.floor:
            floor = min(each.spec.floor.replicas, most)
            bounds = ReplicaBounds(floor, most, _whose(each), bounds.ceiling_source)
    for each in overrides:
        if each.spec.pin is not None or each.spec.hold:
            count = each.spec.pin.replicas if each.spec.pin is not None else held
            count = min(max(count, least), most)
            bounds = ReplicaBounds(count, count, _whose(each), _whose(each))
    return bounds


def override_conditions(
    overrides: Sequence[ComputeOverride], generation: int, *, effective: bool = True
) -> tuple[Condition, ...]:
    """OverrideActive, where there is one in force; `effective`: whether it can decide anything about its target."""
    if not overrides:
        return ()
    said = "; ".join(described(each) for each in overrides)
    if effective:
        verdict = Verdict(True, Reason.OVERRIDDEN, said)
    else:
        verdict = Verdict(False, Reason.OVERRIDE_WITHOUT_EFFECT, f"{said}; {NO_RANGE}")
    return (condition(ConditionType.OVERRIDE_ACTIVE, verdict, generation),)


NO_RANGE = "spec.replicas is fixed: set spec.scaling instead, or spec.replicas itself"
"""Why an override decides nothing about an Inference without a range."""


def without_overrides(
    overrides: Sequence[ComputeOverride], conditions: Sequence[ObservedCondition]
) -> tuple[ObservedCondition, ...]:
    """Nothing is said about overrides where there are none."""
    if overrides:
        return tuple(conditions)
    return tuple(each for each in conditions if each.type != ConditionType.OVERRIDE_ACTIVE.value)


def override_events(
    before: Sequence[ObservedCondition], after: Sequence[ObservedCondition]
) -> tuple[Event, ...]:
    """One when an override begins to decide, another one does, or the last has ended."""
    was, now = _active(before), _active(after)
    if now is not None and (was is None or was.message != now.message):
        return (Event(EventType.NORMAL, Reason.OVERRIDDEN.value, now.message),)
    if was is not None and now is None:
        return (
            Event(
                EventType.NORMAL, "OverrideEnded", f"no ComputeOverride is in force any more: {was.message}"
            ),
        )
    return ()


def described(override: ComputeOverride) -> str:
    """What it does, whose it is, until when and why."""
    spec = override.spec
    if spec.pin is not None:
        what = f"pins {spec.pin.replicas} replicas"
    elif spec.floor is not None:
        what = f"asks for {spec.floor.replicas} replicas at least"
    else:
        what = "holds it as it is"
    by = f" by {override.author}" if override.author else ""
    return f"ComputeOverride {override.metadata.name}{by} {what} until {spec.expires_at}: {spec.reason}"


def _whose(override: ComputeOverride) -> str:
    by = f" by {override.author}" if override.author else ""
    return f"ComputeOverride {override.metadata.name}{by}"


def _active(conditions: Sequence[ObservedCondition]) -> ObservedCondition | None:
    kind = ConditionType.OVERRIDE_ACTIVE.value
    return next(
        (each for each in conditions if each.type == kind and each.status is ConditionStatus.TRUE), None
    )


def _age(override: ComputeOverride) -> tuple[str, str]:
    made = override.metadata.creation_timestamp
    return (made.isoformat() if made is not None else "", override.metadata.name)
