"""What a ComputePool's status says about its allocator."""

from collections.abc import Mapping
from dataclasses import dataclass

from tidegate.allocation.assignment import Assignment
from tidegate.api.compute_pool import PolicyMode
from tidegate.api.meta import ObjectKey
from tidegate.api.reasons import Reason
from tidegate.planning.allocation_view import AllocationObserved
from tidegate.planning.decision import BUDGET
from tidegate.planning.serving_status import Verdict

_NAMED = 3


@dataclass(frozen=True, slots=True)
class PoolAllocation:
    """What one look of the allocator came to; without verdicts where it has nothing to decide."""

    mode: PolicyMode
    last_decision: str | None = None
    allocated: Verdict | None = None
    signals: Verdict | None = None


def pool_allocation(
    observed: AllocationObserved, assignment: Assignment, left_out: Mapping[ObjectKey, str]
) -> PoolAllocation:
    """After a look; `observed` has the decision that it made, if it made one."""
    newest = observed.decisions[0].metadata.name if observed.decisions else None
    return PoolAllocation(
        observed.mode, newest, _allocated(observed, assignment, left_out), _signals(observed)
    )


def _allocated(
    observed: AllocationObserved, assignment: Assignment, left_out: Mapping[ObjectKey, str]
) -> Verdict:
    """Without figures: those change with every look, and the decision has them."""
    if observed.frozen is not None and observed.frozen.until is None:
        return Verdict(False, Reason.FREEZE_UNREADABLE, observed.frozen.why)
    if left_out:
        key, why = next(iter(sorted(left_out.items())))
        more = f" (and {len(left_out) - 1} more)" if len(left_out) > 1 else ""
        return Verdict(False, Reason.RULES_NOT_KEPT, f"{key} is left as it is{more}: {why}")
    decision = observed.decisions[0].metadata.name if observed.decisions else "none"
    rules = [f"{each.rule} of {each.subject}" for each in assignment.relaxed if each.rule != BUDGET]
    if rules:
        more = f" and {len(rules) - _NAMED} more" if len(rules) > _NAMED else ""
        said = f"not kept: {', '.join(rules[:_NAMED])}{more}; AllocationDecision {decision} has the figures"
        return Verdict(False, Reason.RULES_NOT_KEPT, said)
    standing = observed.standing
    if standing is None or not standing.spec.moves:
        return Verdict(True, Reason.NOTHING_TO_MOVE, _nothing_to_move(observed))
    count = len(standing.spec.moves)
    inferences = "1 Inference" if count == 1 else f"{count} Inferences"
    if standing.executed:
        return Verdict(False, Reason.MOVING, f"{inferences} on the way to what {decision} says")
    said = f"{decision} would move {inferences}: set spec.policy.mode: Auto to have it done"
    return Verdict(False, Reason.RECOMMENDED, said)


def _nothing_to_move(observed: AllocationObserved) -> str:
    """That all is well, or who keeps what they have because nothing can be weighed."""
    if observed.mode is PolicyMode.HOLD:
        why = observed.frozen.why if observed.frozen is not None else "the pool is held"
        return f"{why}: everybody keeps what they have"
    unmeasured = [member.key for member in observed.scaled if member.unmeasured]
    if not unmeasured:
        return "every Inference has what it is to have"
    more = f" and {len(unmeasured) - _NAMED} more" if len(unmeasured) > _NAMED else ""
    named = ", ".join(str(key) for key in unmeasured[:_NAMED])
    return (
        f"{named}{more} have no spec.capacity, so that nobody knows how many replicas they need, and keep what they have: "
        "measure it with tidegate calibrate"
    )


def _signals(observed: AllocationObserved) -> Verdict:
    signals = observed.signals.about(member.key for member in observed.members)
    reason = Reason.SIGNALS_FRESH if signals.fresh else Reason.SIGNALS_STALE
    return Verdict(signals.fresh, reason, signals.message)
