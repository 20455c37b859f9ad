"""Plan the status of a ComputeOverride: whether it is active, and when it ends."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from tidegate.api.compute_override import ComputeOverride, ComputeOverrideStatus, OverrideKind
from tidegate.api.conditions import ObservedCondition, format_timestamp, merge_conditions
from tidegate.api.reasons import Reason
from tidegate.planning.inference.serving_status import Verdict, kstatus_conditions
from tidegate.planning.plan import Event, EventType, ReconcilePlan
from tidegate.planning.pools.overrides import END_MARGIN, NO_RANGE, describe_override


@dataclass(frozen=True, slots=True)
class OverrideObserved:
    """Everything that the plan of a ComputeOverride depends on."""

    override: ComputeOverride
    now: datetime
    target_exists: bool
    """Whether the target exists."""
    target_is_scaled: bool
    """Whether the allocator decides the target's replicas."""


def plan_override(observed: OverrideObserved) -> ReconcilePlan:
    """Plan the status. There are no children: the target's planner and the allocator read the override themselves."""
    override, verdict = observed.override, _judge_override(observed)
    conditions = kstatus_conditions(verdict, override.metadata.generation)
    merged = merge_conditions(override.status.conditions, conditions, observed.now)
    status = ComputeOverrideStatus(
        observed_generation=override.metadata.generation,
        conditions=tuple(ObservedCondition.model_validate(item) for item in merged),
    )
    remaining = override.end_time - observed.now
    return ReconcilePlan(
        status=status.dump(),
        events=_make_events(override, verdict),
        requeue_after=remaining + END_MARGIN if remaining > timedelta() else None,
    )


def _judge_override(observed: OverrideObserved) -> Verdict:
    override, target = observed.override, observed.override.spec.target
    if observed.now >= override.end_time:
        return Verdict(False, Reason.OVERRIDE_EXPIRED, _explain_end(observed), stalled=True)
    if not observed.target_exists:
        missing = f"there is no {target.kind} {target.key}: make it, or delete this override and name another"
        return Verdict(False, Reason.TARGET_NOT_FOUND, missing, stalled=True)
    if target.kind is OverrideKind.INFERENCE and not observed.target_is_scaled:
        message = f"it has no effect on Inference {target.key}, whose {NO_RANGE}"
        return Verdict(False, Reason.OVERRIDE_WITHOUT_EFFECT, message, stalled=True)
    return Verdict(True, Reason.OVERRIDE_IN_FORCE, describe_override(override))


def _explain_end(observed: OverrideObserved) -> str:
    """Return when the override ended, and the way out: after the limit of seven days no spec.expiresAt extends it."""
    override, limit = observed.override, observed.override.end_limit
    ended = f"it ended at {format_timestamp(override.end_time)}"
    if limit is None:
        return f"{ended}: delete it, or set a later spec.expiresAt"
    if observed.now >= limit:
        return f"{ended}, and an override lasts at most 7 days: delete it, and create another if you still need it"
    return f"{ended}: delete it, or set a later spec.expiresAt, which extends it until {format_timestamp(limit)} at most"


def _make_events(override: ComputeOverride, verdict: Verdict) -> tuple[Event, ...]:
    """Return an Event if the reason has changed."""
    before = next((condition for condition in override.status.conditions if condition.type == "Ready"), None)
    if before is not None and before.reason == verdict.reason.value:
        return ()
    return (Event(EventType.NORMAL, verdict.reason.value, verdict.message),)
