"""What an Inference's status says about its placement."""

from collections.abc import Sequence
from typing import Final

from tidegate.api.conditions import Condition, ConditionStatus, ConditionType, ObservedCondition
from tidegate.api.inference import Inference
from tidegate.api.reasons import Reason
from tidegate.planning.placement import PlacementResult
from tidegate.planning.plan import Event, EventType
from tidegate.planning.serving_status import SMALLER_OR_MORE_NODES, Verdict, condition

_NOWHERE: Final = frozenset({Reason.NO_CAPACITY, Reason.UNSCHEDULABLE})


def placement_conditions(
    placement: PlacementResult | None, pods: Verdict, generation: int
) -> tuple[Condition, ...]:
    """Return Placed, if there is a placement: the pool's verdict, or the scheduler's if a pod with slices finds no node."""
    if placement is None:
        return ()
    verdict = pods if placement.verdict.holds and pods.reason in _NOWHERE else placement.verdict
    return (condition(ConditionType.PLACED, verdict, generation),)


def without_placement(
    inference: Inference, conditions: Sequence[ObservedCondition]
) -> tuple[ObservedCondition, ...]:
    """Nothing is said about the placement of an Inference that has none any more."""
    if inference.spec.placement is not None:
        return tuple(conditions)
    return tuple(each for each in conditions if each.type != ConditionType.PLACED.value)


def placement_events(
    before: Sequence[ObservedCondition], after: Sequence[ObservedCondition]
) -> tuple[Event, ...]:
    """One when replicas wait for slices, and one when they need not any more."""
    was, now = _placed(before), _placed(after)
    if now is None or (was is not None and was.status == now.status):
        return ()
    holds = now.status is ConditionStatus.TRUE
    if was is None and holds:
        return ()
    return (Event(EventType.NORMAL if holds else EventType.WARNING, now.reason, now.message),)


def way_out(inference: Inference) -> str:
    """What its user can do where no node has room for a pod."""
    placement = inference.spec.placement
    if placement is None:
        return SMALLER_OR_MORE_NODES
    return f"lower spec.placement.slices or spec.replicas, or add nodes to ComputePool {placement.pool}"


def _placed(conditions: Sequence[ObservedCondition]) -> ObservedCondition | None:
    return next((each for each in conditions if each.type == ConditionType.PLACED.value), None)
