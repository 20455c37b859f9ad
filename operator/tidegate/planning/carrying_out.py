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
class Share:
    """What an Inference is to have: replicas that get requests, and warm spares beside them."""

    replicas: int
    spares: int = 0


@dataclass(frozen=True, slots=True)
class Progress:
    """`writes`: what to put into statuses now. `outcome`: once there is nothing more to do."""

    writes: Mapping[ObjectKey, Share] = field(default_factory=dict[ObjectKey, Share])
    outcome: Mapping[str, Any] | None = None
    reclaimed: Mapping[ObjectKey, Reclaimed] = field(default_factory=dict[ObjectKey, Reclaimed])
    """Those who have given what they were to give."""


def carry_out(observed: AllocationObserved, decision: AllocationDecision) -> Progress:
    """The next step of a decision, from what is there now: it may be asked again at any time, after any crash.

    Who gives goes down at once. Who takes goes up as far as slices are free, pods on their way out counted as there:
    so a pool never has more replicas than slices, and whoever is to keep something keeps it in between.
    What is there is promoted before anything starts; spares get what is free beyond what all others take.
    """
    moves = {move.inference: move for move in decision.spec.moves}
    kept = {each.inference: each.replicas for each in decision.spec.spares}
    goals: list[tuple[Member, int]] = []
    reclaimed: dict[ObjectKey, Reclaimed] = {}
    free, done, waits = max(observed.free, 0), True, False
    for member in _in_order(observed.scaled, decision.spec.moves):
        move = moves.get(str(member.key))
        if member.apart:
            done = done and move is None  # what it had is made again first
            continue
        goal = move.after if move is not None else _unmoved(member, decision)
        if move is not None and goal > member.pods:
            goal = member.pods + min(goal - member.pods, free // member.slices)
            free -= (goal - member.pods) * member.slices
        goals.append((member, goal))
        waits = waits or (move is not None and goal < move.after)
        done = done and (move is None or _there(member, move))
        if move is not None and _gave(member, move, kept.get(move.inference, 0)):
            reclaimed[member.key] = Reclaimed(move.tier, _elapsed_s(observed, decision))
    writes: dict[ObjectKey, Share] = {}
    for member, goal in goals:
        wanted = kept.get(str(member.key), 0)
        there = min(wanted, max(member.pods - goal, 0))
        more = 0 if waits else min(wanted - there, free // member.slices)
        free -= more * member.slices
        done = done and there + more == wanted
        _write(member, decision, Share(goal, there + more), moved=str(member.key) in moves, writes=writes)
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


def put_back(observed: AllocationObserved) -> Mapping[ObjectKey, Share]:
    """What to write where nothing is carried out any more: nobody goes on waiting for what it was to get."""
    return {
        member.key: Share(member.held, member.spare)
        for member in observed.scaled
        if _waits_for_more(member) and not member.apart
    }


def _waits_for_more(member: Member) -> bool:
    """Whether it has less than it was told that it is to have."""
    allocation = member.inference.status.allocation
    return allocation is not None and allocation.replicas + allocation.spares > member.pods > 0


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


def _unmoved(member: Member, decision: AllocationDecision) -> int:
    """What it was to have before; of what an earlier decision asked for and did not get, nothing is left."""
    allocation = member.inference.status.allocation
    if allocation is None:
        return member.held
    if allocation.decision != decision.metadata.name and _waits_for_more(member):
        return member.held
    return allocation.replicas


def _gave(member: Member, move: DecidedMove, spares: int) -> bool:
    """Whether all that it was to give is gone; what stays as a spare is not given."""
    gives = move.before - move.after > spares
    return gives and member.held <= move.after and not member.draining


def _write(
    member: Member,
    decision: AllocationDecision,
    share: Share,
    *,
    moved: bool,
    writes: dict[ObjectKey, Share],
) -> None:
    """Only what is new to it. Whom the decision moves is told its name as well, whatever it has."""
    allocation = member.inference.status.allocation
    if allocation is None:
        told = Share(member.held)
        known = False
    else:
        told = Share(allocation.replicas, allocation.spares)
        known = allocation.decision == decision.metadata.name
    if share != told or (moved and not known):
        writes[member.key] = share


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
