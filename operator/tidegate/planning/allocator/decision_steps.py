"""Plan the next step of a decision, without ever using more slices than the pool has, and its outcome."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from tidegate.api.allocation_decision import AllocationDecision, DecidedMove
from tidegate.api.conditions import format_timestamp
from tidegate.api.inference import AllocatedReplicas, Inference, Tier
from tidegate.api.meta import ObjectKey
from tidegate.planning.allocator.observed_pool import AllocationObserved, PoolMember

READY_TIMEOUT: Final = timedelta(minutes=15)
"""A decision waits this long for pods to be ready; after that they may never be."""


@dataclass(frozen=True, slots=True)
class ReclaimedSlices:
    """Slices of one tier that a decision has freed, and how long that took."""

    tier: Tier
    seconds: float


@dataclass(frozen=True, slots=True)
class TargetReplicas:
    """The desired replicas of an Inference: those that get requests, and warm spares beside them."""

    replicas: int
    spares: int = 0


@dataclass(frozen=True, slots=True)
class DecisionStep:
    """One step of a decision: what to write into statuses now, and the outcome once nothing is left to do."""

    writes: Mapping[ObjectKey, TargetReplicas] = field(default_factory=dict[ObjectKey, TargetReplicas])
    outcome: Mapping[str, Any] | None = None
    reclaimed: Mapping[ObjectKey, ReclaimedSlices] = field(default_factory=dict[ObjectKey, ReclaimedSlices])
    """The Inferences that have freed all slices that the decision takes from them."""


def plan_next_step(
    observed: AllocationObserved,
    decision: AllocationDecision,
    reclaimed_before: Mapping[ObjectKey, ReclaimedSlices] | None = None,
) -> DecisionStep:
    """Plan the next step of a decision from the present state; safe to repeat at any time, after any crash.

    Scale-downs apply immediately. Scale-ups are limited to free slices; terminating pods still hold theirs. So a pool never
    has more replicas than slices, and a replica that stays keeps its slices in between.
    Warm spares are promoted before any pod starts; new spares get the slices that no move needs.
    `reclaimed_before`: the Inferences that had freed their slices at an earlier step. They keep that step's time, since the
    decision continues until the replicas that get these slices are ready.
    """
    before = reclaimed_before or {}
    moves = {move.inference: move for move in decision.spec.moves}
    spare_counts = {spare.inference: spare.replicas for spare in decision.spec.spares}
    targets: list[tuple[PoolMember, int]] = []
    reclaimed: dict[ObjectKey, ReclaimedSlices] = {}
    free, done, waits = max(observed.free_slices, 0), True, False
    for member in _sort_by_moves(observed.scaled_members, decision.spec.moves):
        move = moves.get(str(member.key))
        if member.excluded_reason:
            done = done and move is None  # its Deployment is created again first
            continue
        target = move.after if move is not None else _find_unmoved_target(member, decision)
        if move is not None and target > member.assigned_pods:
            target = member.assigned_pods + min(target - member.assigned_pods, free // member.replica_slices)
            free -= (target - member.assigned_pods) * member.replica_slices
        targets.append((member, target))
        waits = waits or (move is not None and target < move.after)
        done = done and (move is None or _is_complete(member, move))
        if move is not None and _has_released(member, move, spare_counts.get(move.inference, 0)):
            now = ReclaimedSlices(move.tier, _elapsed_s(observed, decision))
            reclaimed[member.key] = before.get(member.key, now)
    writes: dict[ObjectKey, TargetReplicas] = {}
    for member, target in targets:
        spares = spare_counts.get(str(member.key), 0)
        running_spares = min(spares, max(member.assigned_pods - target, 0))
        new_spares = 0 if waits else min(spares - running_spares, free // member.replica_slices)
        free -= new_spares * member.replica_slices
        done = done and running_spares + new_spares == spares
        _add_write(
            member,
            decision,
            TargetReplicas(target, running_spares + new_spares),
            moved=str(member.key) in moves,
            writes=writes,
        )
    if writes:
        return DecisionStep(writes, None, reclaimed)
    if done:
        return DecisionStep({}, _make_outcome(observed, decision, reclaimed), reclaimed)
    silent = _explain_unready(observed, decision)
    if silent and _elapsed_s(observed, decision) > READY_TIMEOUT.total_seconds():
        return DecisionStep({}, make_failed_outcome(observed, decision, silent), reclaimed)
    return DecisionStep({}, None, reclaimed)


def make_failed_outcome(
    observed: AllocationObserved, decision: AllocationDecision, reason: str
) -> Mapping[str, Any]:
    """Return the outcome of a decision that ends before it is complete."""
    return {"outcome": {"movedSlices": _count_moved_slices(observed, decision), "error": reason}}


def make_allocation(
    inference: Inference | None, pool: str, target: TargetReplicas, decision: str
) -> Mapping[str, Any]:
    """Return status.allocation, without its epoch, after one pool's allocator has decided.

    With several pools, the other pools keep their parts, and pools that the spec does not name any more are dropped.
    """
    spares = {"spares": target.spares} if target.spares else {}
    own = {"replicas": target.replicas, **spares, "decision": decision}
    placement = inference.spec.placement if inference is not None else None
    if inference is None or placement is None or placement.pools is None:
        return own
    allocation = inference.status.allocation or AllocatedReplicas()
    # A pool without a decision yet keeps the replicas that run there.
    parts: dict[str, dict[str, Any]] = {
        item.name: {"name": item.name, "replicas": item.replicas} for item in inference.status.pools
    }
    parts |= {item.name: item.model_dump(mode="json", exclude_defaults=True) for item in allocation.pools}
    parts |= {pool: {"name": pool, **own}}
    pools = [parts[share.name] for share in placement.pool_shares if share.name in parts]
    totals = {name: sum(int(item.get(name, 0)) for item in pools) for name in ("replicas", "spares")}
    return {**totals, "decision": decision, "pools": pools}


def revert_targets(observed: AllocationObserved) -> Mapping[ObjectKey, TargetReplicas]:
    """Return the targets to write once no decision is executed any more.

    Members that wait for more replicas stop waiting for them.
    """
    return {
        member.key: TargetReplicas(member.assigned_replicas, member.warm_spares)
        for member in observed.scaled_members
        if _is_short(member) and not member.excluded_reason
    }


def _is_short(member: PoolMember) -> bool:
    """Return whether the member has fewer pods than its status.allocation."""
    allocation = member.inference.status.allocation
    return allocation is not None and allocation.replicas + allocation.spares > member.assigned_pods > 0


def _explain_unready(observed: AllocationObserved, decision: AllocationDecision) -> str:
    """Name the members that have all their replicas but not all ready; empty if the decision is incomplete for another reason."""
    moves = {move.inference: move for move in decision.spec.moves}
    waiting = [
        (member, moves[str(member.key)])
        for member in observed.scaled_members
        if str(member.key) in moves and not _is_complete(member, moves[str(member.key)])
    ]
    if not waiting or any(
        member.assigned_replicas != move.after or member.draining_replicas for member, move in waiting
    ):
        return ""
    member, move = waiting[0]
    rest = f", and {len(waiting) - 1} more Inferences wait for theirs" if len(waiting) > 1 else ""
    minutes = round(READY_TIMEOUT / timedelta(minutes=1))
    return (
        f"{member.key} has its {move.after} replicas, and after {minutes} minutes {member.ready} of them answer{rest}: "
        "its conditions say why"
    )


def _count_moved_slices(observed: AllocationObserved, decision: AllocationDecision) -> int:
    """Return the slices moved so far. Deleted Inferences count as fully moved."""
    replicas = {str(member.key): member.assigned_replicas for member in observed.members}
    total = 0
    for move in decision.spec.moves:
        change = move.after - move.before
        moved = replicas.get(move.inference, move.after) - move.before
        moved = min(max(moved, 0), change) if change > 0 else max(min(moved, 0), change)
        total += abs(moved) * move.slices
    return total


def _sort_by_moves(members: Sequence[PoolMember], moves: Sequence[DecidedMove]) -> list[PoolMember]:
    """Sort members in the order of the decision's moves."""
    positions = {move.inference: index for index, move in enumerate(moves)}
    return sorted(members, key=lambda member: (positions.get(str(member.key), len(positions)), member.key))


def _find_unmoved_target(member: PoolMember, decision: AllocationDecision) -> int:
    """Return the replicas of a member that no move changes; without replicas that an earlier decision promised and did not start."""
    allocation = member.inference.status.allocation
    if allocation is None:
        return member.assigned_replicas
    if allocation.decision != decision.metadata.name and _is_short(member):
        return member.assigned_replicas
    return allocation.replicas


def _has_released(member: PoolMember, move: DecidedMove, spares: int) -> bool:
    """Return whether a member has freed all slices that the decision takes from it, warm spares excepted."""
    gives = move.before - move.after > spares
    return gives and member.assigned_replicas <= move.after and not member.draining_replicas


def _add_write(
    member: PoolMember,
    decision: AllocationDecision,
    share: TargetReplicas,
    *,
    moved: bool,
    writes: dict[ObjectKey, TargetReplicas],
) -> None:
    """Add a member to `writes` if its target changed.

    Add it as well if the decision moves it and its status does not name the decision yet.
    """
    allocation = member.inference.status.allocation
    if allocation is None:
        last_share = TargetReplicas(member.assigned_replicas)
        named = False
    else:
        last_share = TargetReplicas(allocation.replicas, allocation.spares)
        named = allocation.decision == decision.metadata.name
    if share != last_share or (moved and not named):
        writes[member.key] = share


def _is_complete(member: PoolMember, move: DecidedMove) -> bool:
    """Return whether a move is complete: its pods are ready, and none is terminating."""
    if member.assigned_replicas != move.after or member.draining_replicas:
        return False
    return move.after <= move.before or member.ready >= move.after


def _make_outcome(
    observed: AllocationObserved, decision: AllocationDecision, reclaimed: Mapping[ObjectKey, ReclaimedSlices]
) -> Mapping[str, Any]:
    previous = decision.status.outcome
    outcome: dict[str, Any] = {
        "appliedAt": format_timestamp(observed.now),
        "movedSlices": _count_moved_slices(observed, decision),
    }
    if previous is not None and previous.reclaim_seconds is not None:
        outcome["reclaimSeconds"] = previous.reclaim_seconds
    elif reclaimed:
        outcome["reclaimSeconds"] = round(max(reclaim.seconds for reclaim in reclaimed.values()), 3)
    return {"outcome": outcome}


def _elapsed_s(observed: AllocationObserved, decision: AllocationDecision) -> float:
    return max((observed.now - decision.spec.at) / timedelta(seconds=1), 0.0)
