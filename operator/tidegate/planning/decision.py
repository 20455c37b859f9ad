"""From an assignment to an AllocationDecision, or to none when what was decided before still stands."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any, Final

from tidegate.allocation.assignment import Assignment, Move, MoveAction, RelaxedRule
from tidegate.allocation.spares import WarmSpare
from tidegate.api.allocation_decision import AllocationDecision, NotKept, Predicted, Trigger
from tidegate.api.compute_pool import ComputePool, PolicyMode
from tidegate.api.meta import API_VERSION
from tidegate.planning.allocation_view import AllocationObserved
from tidegate.resources.names import POOL_LABEL, label_value

KEPT: Final = 200
"""Decisions of a pool that are kept."""
_LONGEST_WHY: Final = 2048
_LONGEST_NOTE: Final = 1024
_MOST_NOT_KEPT: Final = 100
_MOST_MOVES: Final = 1000
_DIGITS: Final = 6
_HASH: Final = 8
_POOL: Final = 200
BUDGET: Final = "budget"
"""The rule that is about the moves themselves."""
_CHANGES: Final = frozenset({MoveAction.START, MoveAction.STOP, MoveAction.PROMOTE})


@dataclass(frozen=True, slots=True)
class Solved:
    """An answer, what is expected of it, why it was asked, how many seconds it took, and who gets warm spares."""

    assignment: Assignment
    predicted: Predicted
    trigger: Trigger | None
    """None: somebody has only asked."""
    seconds: float
    spares: Sequence[WarmSpare] = ()


def plan_decision(observed: AllocationObserved, solved: Solved) -> dict[str, Any] | None:
    """The decision to write; None when it would say what stands already.

    Compared is what everybody is to have and which rules are not kept, and not by which figures: those change with every
    look.
    """
    assignment = solved.assignment
    stands = _stands(observed)
    wanted = {
        each.inference: each.replicas
        for each in assignment.replicas
        if each.pool == observed.name and each.inference in stands
    }
    stands = {name: count for name, count in stands.items() if name in wanted}
    kept = {each.inference: each.replicas for each in solved.spares}
    stand_by = {name: count for name, count in _stands_by(observed).items() if name in wanted}
    same = wanted == stands and kept == stand_by
    if same and (_on_its_way(observed) or _broken(assignment.relaxed) == _known_broken(observed)):
        return None
    spec = decided_spec(observed.name, _at(observed), observed.mode, solved)
    return {
        "apiVersion": API_VERSION,
        "kind": AllocationDecision.KIND,
        "metadata": {
            "name": _name(observed, assignment),
            "labels": {POOL_LABEL: label_value(observed.name)},
            # They go with their pool: another one of its name begins anew.
            "ownerReferences": [
                {
                    "apiVersion": API_VERSION,
                    "kind": ComputePool.KIND,
                    "name": observed.name,
                    "uid": observed.pool.metadata.uid,
                }
            ],
        },
        "spec": spec,
    }


def decided_spec(pool: str, at: datetime, mode: PolicyMode, solved: Solved) -> dict[str, Any]:
    """The spec of a decision about one pool, in the API's spelling."""
    assignment = solved.assignment
    moves = _moves(assignment)
    promoted = _promoted(assignment)
    return {
        "pool": pool,
        "at": at.isoformat(timespec="milliseconds"),
        **({"trigger": solved.trigger.value} if solved.trigger is not None else {}),
        "mode": mode.value,
        "moves": [_move(each, promoted.get(each.inference, 0)) for each in moves[:_MOST_MOVES]],
        "moveCount": len(moves),
        "spares": [
            {"inference": each.inference, "replicas": each.replicas, "slices": each.slices}
            for each in solved.spares[:_MOST_MOVES]
        ],
        "binding": [
            {"constraint": each.constraint, "price": _number(each.price)} for each in assignment.bindings
        ],
        "notKept": [
            {"rule": each.rule, "subject": each.subject, "message": each.message[:_LONGEST_NOTE]}
            for each in assignment.relaxed[:_MOST_NOT_KEPT]
        ],
        "price": _number(max(dict(assignment.prices).get(pool, 0.0), 0.0)),
        "objective": _number(assignment.objective),
        "solver": assignment.method.value,
        "predicted": solved.predicted.model_dump(mode="json", by_alias=True),
        "seconds": round(solved.seconds, 3),
        "inputsHash": assignment.inputs_hash,
        **({"gap": _number(assignment.gap)} if assignment.gap is not None else {}),
        **({"note": _note(assignment)} if _note(assignment) else {}),
    }


def stale(decisions: Sequence[AllocationDecision]) -> tuple[AllocationDecision, ...]:
    """Those that are not kept any more; `decisions` are those of one pool, the newest first."""
    return tuple(decisions[KEPT:])


def newest_first(decisions: Iterable[AllocationDecision]) -> tuple[AllocationDecision, ...]:
    """By the time at which they were made."""
    return tuple(sorted(decisions, key=lambda each: (each.spec.at, each.metadata.name), reverse=True))


def _stands(observed: AllocationObserved) -> Mapping[str, int]:
    """What those are to have who are decided about: what they have, and what the standing decision changes about it."""
    stands = {str(member.key): member.held for member in observed.scaled}
    moves = observed.standing.spec.moves if observed.standing is not None else ()
    return stands | {move.inference: move.after for move in moves if move.inference in stands}


def _stands_by(observed: AllocationObserved) -> Mapping[str, int]:
    """Who is to have warm spares, by the standing decision or as it was last told."""
    if observed.standing is not None:
        return {each.inference: each.replicas for each in observed.standing.spec.spares}
    told = {str(member.key): member.inference.decided_spares for member in observed.scaled}
    return {name: count for name, count in told.items() if count}


def _promoted(assignment: Assignment) -> Mapping[str, int]:
    """Replicas that are warm spares until then."""
    found: dict[str, int] = {}
    for move in assignment.moves:
        if move.action is MoveAction.PROMOTE:
            found[move.inference] = found.get(move.inference, 0) + move.replicas
    return found


def _at(observed: AllocationObserved) -> datetime:
    """Now, and after every decision before: the newest is the one that counts, also where a clock was set back."""
    newest = next(iter(observed.decisions), None)
    return observed.now if newest is None else max(observed.now, newest.spec.at + timedelta(milliseconds=1))


def _on_its_way(observed: AllocationObserved) -> bool:
    """Whether there are moves that stand: rules that cannot be kept come and go with them."""
    return observed.standing is not None and bool(observed.standing.spec.moves)


def _broken(rules: Iterable[RelaxedRule | NotKept]) -> frozenset[tuple[str, str]]:
    """But for the budget, which is about the moves themselves."""
    return frozenset((each.rule, each.subject) for each in rules if each.rule != BUDGET)


def _known_broken(observed: AllocationObserved) -> frozenset[tuple[str, str]]:
    return _broken(observed.decisions[0].spec.not_kept) if observed.decisions else frozenset()


def _moves(assignment: Assignment) -> tuple[Move, ...]:
    """One for each Inference, those that give before those that take."""
    first: dict[str, Move] = {}
    for move in assignment.moves:
        if move.action in _CHANGES and move.before != move.after:
            first.setdefault(move.inference, move)
    return tuple(sorted(first.values(), key=lambda move: (move.after > move.before, move.wave)))


def _move(move: Move, promoted: int) -> dict[str, Any]:
    return {
        "inference": move.inference,
        "tier": move.tier.value,
        "from": move.before,
        "to": move.after,
        "slices": move.slices // move.replicas,
        **({"promoted": promoted} if promoted else {}),
        "why": move.reason[:_LONGEST_WHY],
    }


def _note(assignment: Assignment) -> str:
    return "; ".join(part for part in (assignment.note, *assignment.postponed) if part)[:_LONGEST_NOTE]


def _number(value: float) -> float:
    """Short enough to be read, and never a minus before nothing."""
    return round(value, _DIGITS) + 0.0


def _name(observed: AllocationObserved, assignment: Assignment) -> str:
    at = _at(observed)
    unique = sha256(f"{at.isoformat()} {assignment.inputs_hash}".encode()).hexdigest()[:_HASH]
    return f"{observed.name[:_POOL]}-{at:%Y%m%d-%H%M%S}-{unique}"
