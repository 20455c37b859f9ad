"""Report the placement of an Inference in its status."""

from collections.abc import Sequence
from typing import Final

from tidegate.api.conditions import Condition, ConditionStatus, ConditionType, ObservedCondition
from tidegate.api.inference import Inference
from tidegate.api.reasons import Reason
from tidegate.planning.inference.serving_status import SHRINK_OR_ADD_NODES, Verdict, make_condition
from tidegate.planning.plan import Event, EventType
from tidegate.planning.pools.placement import PlacementResult

_UNSCHEDULABLE_REASONS: Final = frozenset({Reason.NO_CAPACITY, Reason.UNSCHEDULABLE})


def placement_conditions(
    placement: PlacementResult | None, pods: Verdict, generation: int
) -> tuple[Condition, ...]:
    """Return Placed, if there is a placement: the pool's verdict, or the scheduler's if a pod with slices finds no node."""
    if placement is None:
        return ()
    verdict = pods if placement.verdict.holds and pods.reason in _UNSCHEDULABLE_REASONS else placement.verdict
    return (make_condition(ConditionType.PLACED, verdict, generation),)


def drop_placement_condition(
    inference: Inference, conditions: Sequence[ObservedCondition]
) -> tuple[ObservedCondition, ...]:
    """Drop Placed from the conditions of an Inference without a placement."""
    if inference.spec.placement is not None:
        return tuple(conditions)
    return tuple(condition for condition in conditions if condition.type != ConditionType.PLACED.value)


def placement_events(
    previous: Sequence[ObservedCondition], current: Sequence[ObservedCondition]
) -> tuple[Event, ...]:
    """Return one event when replicas wait for slices, and one when they have them."""
    old, new = _find_placed(previous), _find_placed(current)
    if new is None or (old is not None and old.status == new.status):
        return ()
    holds = new.status is ConditionStatus.TRUE
    if old is None and holds:
        return ()
    return (Event(EventType.NORMAL if holds else EventType.WARNING, new.reason, new.message),)


def suggest_remedy(inference: Inference) -> str:
    """Return what the user can do if no node has enough free resources for a pod."""
    placement = inference.spec.placement
    if placement is None:
        return SHRINK_OR_ADD_NODES
    return f"lower spec.placement.slices or spec.replicas, or add nodes to ComputePool {placement.pool}"


def _find_placed(conditions: Sequence[ObservedCondition]) -> ObservedCondition | None:
    return next((condition for condition in conditions if condition.type == ConditionType.PLACED.value), None)
