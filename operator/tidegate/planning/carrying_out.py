"""A decision on its way: what to write now, so that nobody has more than there is in between, and what came of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from tidegate.api.allocation_decision import AllocationDecision, DecidedMove
from tidegate.api.conditions import timestamp
from tidegate.api.inference import Tier
from tidegate.api.meta import ObjectKey
from tidegate.planning.allocation_view import AllocationObserved, Member

READY_WITHIN: Final = timedelta(minutes=15)
"""Pods that do not answer so long after their decision may never do: the decision waits for them no longer."""


@dataclass(frozen=True, slots=True)
class Reclaimed:
    """Slices of one tier that a decision has freed, and how long that took."""

    tier: Tier
    seconds: float


@dataclass(frozen=True, slots=True)
class Progress:
    """`writes`: replicas to put into statuses now. `outcome`: once there is nothing more to do."""

    writes: Mapping[ObjectKey, int] = field(default_factory=dict[ObjectKey, int])
    outcome: Mapping[str, Any] | None = None
    reclaimed: Mapping[ObjectKey, Reclaimed] = field(default_factory=dict[ObjectKey, Reclaimed])
    """Those who have given what they were to give."""


def carry_out(observed: AllocationObserved, decision: AllocationDecision) -> Progress:
    """The next step of a decision, from what is there now: it may be asked again at any time, after any crash.

    Who gives goes down at once. Who takes goes up as far as slices are free, pods on their way out counted as there:
    so a pool never has more replicas than slices, and whoever is to keep something keeps it in between.
    """
    moves = {move.inference: move for move in decision.spec.moves}
    writes: dict[ObjectKey, int] = {}
    reclaimed: dict[ObjectKey, Reclaimed] = {}
    free, done = max(observed.free, 0), True
    for member in _in_order(observed.scaled, decision.spec.moves):
        move = moves.get(str(member.key))
        if member.apart:
            done = done and move is None  # what it had is made again first
            continue
        if move is None:
            _put_back(member, decision, writes)
            continue
        goal = move.after
        if move.after > member.held:
            more = min(move.after - member.held, free // member.slices)
            free -= more * member.slices
            goal = member.held + more
        _write(member, decision, goal, writes)
        done = done and _there(member, move)
        if move.after < move.before and member.held <= move.after and not member.draining:
            reclaimed[member.key] = Reclaimed(move.tier, _elapsed_s(observed, decision))
    if writes:
        return Progress(writes, None, reclaimed)
    if done:
        return Progress({}, _outcome(observed, decision, reclaimed), reclaimed)
    silent = _silent(observed, decision)
    if silent and _elapsed_s(observed, decision) > READY_WITHIN.total_seconds():
        return Progress({}, given_up(observed, decision, silent), reclaimed)
    return Progress({}, None, reclaimed)


def given_up(observed: AllocationObserved, decision: AllocationDecision, why: str) -> Mapping[str, Any]:
    """The outcome of a decision that is not carried out to its end."""
    return {"outcome": {"movedSlices": _moved(observed, decision), "error": why}}


def put_back(observed: AllocationObserved) -> Mapping[ObjectKey, int]:
    """What to write where nothing is carried out any more: nobody goes on waiting for what it was to get."""
    return {
        member.key: member.held for member in observed.scaled if _waits_for_more(member) and not member.apart
    }


def _waits_for_more(member: Member) -> bool:
    """Whether it has less than it was told that it is to have."""
    allocation = member.inference.status.allocation
    return allocation is not None and allocation.replicas > member.held > 0


def _silent(observed: AllocationObserved, decision: AllocationDecision) -> str:
    """Who has all that it was given and does not answer with all of it, if that alone is missing."""
    moves = {move.inference: move for move in decision.spec.moves}
    waits = [
        (member, moves[str(member.key)])
        for member in observed.scaled
        if str(member.key) in moves and not _there(member, moves[str(member.key)])
    ]
    if not waits or any(member.held != move.after or member.draining for member, move in waits):
        return ""
    member, move = waits[0]
    more = f", and {len(waits) - 1} more Inferences wait for theirs" if len(waits) > 1 else ""
    minutes = round(READY_WITHIN / timedelta(minutes=1))
    return (
        f"{member.key} has its {move.after} replicas, and after {minutes} minutes {member.ready} of them answer{more}: "
        "its conditions say why"
    )


def _moved(observed: AllocationObserved, decision: AllocationDecision) -> int:
    """Slices that have changed hands by a decision so far; of whom nobody knows any more, all."""
    held = {str(member.key): member.held for member in observed.members}
    total = 0
    for move in decision.spec.moves:
        wanted = move.after - move.before
        done = held.get(move.inference, move.after) - move.before
        done = min(max(done, 0), wanted) if wanted > 0 else max(min(done, 0), wanted)
        total += abs(done) * move.slices
    return total


def _in_order(members: Sequence[Member], moves: Sequence[DecidedMove]) -> list[Member]:
    """In that of the moves: the first to take is the one that was thought of first."""
    place = {move.inference: number for number, move in enumerate(moves)}
    return sorted(members, key=lambda member: (place.get(str(member.key), len(place)), member.key))


def _put_back(member: Member, decision: AllocationDecision, writes: dict[ObjectKey, int]) -> None:
    """Of what an earlier decision asked for and did not get, nothing is left."""
    allocation = member.inference.status.allocation
    if allocation is not None and allocation.decision != decision.metadata.name and _waits_for_more(member):
        writes[member.key] = member.held


def _write(member: Member, decision: AllocationDecision, replicas: int, writes: dict[ObjectKey, int]) -> None:
    allocation = member.inference.status.allocation
    known = allocation is not None and allocation.decision == decision.metadata.name
    if allocation is None or not known or allocation.replicas != replicas:
        writes[member.key] = replicas


def _there(member: Member, move: DecidedMove) -> bool:
    """Whether the data plane has it: pods that answer, and none on their way out."""
    if member.held != move.after or member.draining:
        return False
    return move.after <= move.before or member.ready >= move.after


def _outcome(
    observed: AllocationObserved, decision: AllocationDecision, reclaimed: Mapping[ObjectKey, Reclaimed]
) -> Mapping[str, Any]:
    known = decision.status.outcome
    outcome: dict[str, Any] = {
        "appliedAt": timestamp(observed.now),
        "movedSlices": _moved(observed, decision),
    }
    if known is not None and known.reclaim_seconds is not None:
        outcome["reclaimSeconds"] = known.reclaim_seconds
    elif reclaimed:
        outcome["reclaimSeconds"] = round(max(each.seconds for each in reclaimed.values()), 3)
    return {"outcome": outcome}


def _elapsed_s(observed: AllocationObserved, decision: AllocationDecision) -> float:
    return max((observed.now - decision.spec.at) / timedelta(seconds=1), 0.0)
