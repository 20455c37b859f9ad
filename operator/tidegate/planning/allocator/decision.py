"""Turn an assignment into an AllocationDecision, or into none if the current decision says the same."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any, Final

from tidegate.allocation.assignment import Assignment, Move, MoveAction, RelaxedRule
from tidegate.allocation.spares import WarmSpare
from tidegate.api.allocation_decision import AllocationDecision, DecisionTrigger, PredictedOutcome, UnmetRule
from tidegate.api.compute_pool import ComputePool, PolicyMode
from tidegate.api.meta import API_VERSION
from tidegate.api.shared_spares import MAX_SHARED_SPARES
from tidegate.planning.allocator.observed_pool import AllocationObserved
from tidegate.planning.allocator.spare_plan import PlannedSpare
from tidegate.planning.allocator.value_mix import ValueRates, sum_value_rates
from tidegate.resources.names import POOL_LABEL, to_label_value

KEPT_DECISIONS: Final = 200
"""How many decisions of a pool are kept."""
_MAX_REASON_CHARS: Final = 2048
_MAX_NOTE_CHARS: Final = 1024
_MAX_NOT_KEPT: Final = 100
_MAX_MOVES: Final = 1000
_MAX_VALUES: Final = 100
_DIGITS: Final = 6
_HASH_CHARS: Final = 8
_POOL_CHARS: Final = 200
BUDGET_RULE: Final = "budget"
"""The rule that limits the moves themselves."""
_CHANGES: Final = frozenset({MoveAction.START, MoveAction.STOP, MoveAction.PROMOTE})


@dataclass(frozen=True, slots=True)
class SolvedAllocation:
    """The solver's result with its prediction, trigger, duration in seconds, warm spares, and the value measured before it."""

    assignment: Assignment
    predicted: PredictedOutcome
    trigger: DecisionTrigger | None
    """None for a what-if."""
    seconds: float
    spares: Sequence[WarmSpare] = ()
    values: Mapping[str, ValueRates] = field(default_factory=dict[str, ValueRates])
    """By Inference, as namespace/name."""
    shared_spares: Sequence[PlannedSpare] = ()
    """The spares that Inferences share."""


def plan_decision(observed: AllocationObserved, solved: SolvedAllocation) -> dict[str, Any] | None:
    """Return the decision to write; None if it would repeat the current one.

    Compared are the replicas of each Inference, the spares that Inferences share, and the rules that are broken. The figures of
    these rules do not count: they change with every tick.
    """
    assignment = solved.assignment
    targets = _find_target_replicas(observed)
    desired = {
        assigned.inference: assigned.replicas
        for assigned in assignment.replicas
        if assigned.pool == observed.name and assigned.inference in targets
    }
    targets = {name: count for name, count in targets.items() if name in desired}
    spares = {spare.inference: spare.replicas for spare in solved.spares}
    spare_targets = {name: count for name, count in _find_target_spares(observed).items() if name in desired}
    same = desired == targets and spares == spare_targets and _has_same_shared(observed, solved.shared_spares)
    if same and (
        _has_moves(observed) or _find_broken_rules(assignment.relaxed) == _find_recorded_rules(observed)
    ):
        return None
    spec = make_decision_spec(observed.name, _choose_time(observed), observed.effective_mode, solved)
    return {
        "apiVersion": API_VERSION,
        "kind": AllocationDecision.KIND,
        "metadata": {
            "name": _make_name(observed, assignment),
            "labels": {POOL_LABEL: to_label_value(observed.name)},
            # Decisions are deleted with their pool: a new pool of that name has none.
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


def make_decision_spec(
    pool: str, time: datetime, mode: PolicyMode, solved: SolvedAllocation
) -> dict[str, Any]:
    """Return the spec of a decision about one pool, as JSON."""
    assignment = solved.assignment
    moves = _select_moves(assignment)
    promoted = _count_promoted(assignment)
    return {
        "pool": pool,
        "at": time.isoformat(timespec="milliseconds"),
        **({"trigger": solved.trigger.value} if solved.trigger is not None else {}),
        "mode": mode.value,
        "moves": [_format_move(move, promoted.get(move.inference, 0)) for move in moves[:_MAX_MOVES]],
        "moveCount": len(moves),
        "spares": [
            {"inference": spare.inference, "replicas": spare.replicas, "slices": spare.slices}
            for spare in solved.spares[:_MAX_MOVES]
        ],
        **_format_shared_spares(solved.shared_spares),
        "binding": [
            {"constraint": binding.constraint, "price": _round_number(binding.price)}
            for binding in assignment.bindings
        ],
        "notKept": [
            {"rule": rule.rule, "subject": rule.subject, "message": rule.message[:_MAX_NOTE_CHARS]}
            for rule in assignment.relaxed[:_MAX_NOT_KEPT]
        ],
        "price": _round_number(assignment.get_price(pool)),
        "objective": _round_number(assignment.objective),
        "solver": assignment.method.value,
        "predicted": solved.predicted.model_dump(mode="json", by_alias=True),
        **_format_values(solved.values),
        "seconds": round(solved.seconds, 3),
        "inputsHash": assignment.inputs_hash,
        **({"gap": _round_number(assignment.gap)} if assignment.gap is not None else {}),
        **({"note": _format_note(assignment)} if _format_note(assignment) else {}),
    }


def _format_shared_spares(spares: Sequence[PlannedSpare]) -> Mapping[str, Any]:
    listed = [
        {
            "namespace": spare.namespace,
            "node": spare.node,
            "slices": spare.slices,
            "models": list(spare.models),
            "reason": spare.reason[:_MAX_NOTE_CHARS],
        }
        for spare in spares[:MAX_SHARED_SPARES]
    ]
    return {"sharedSpares": listed} if listed else {}


def _has_same_shared(observed: AllocationObserved, spares: Sequence[PlannedSpare]) -> bool:
    """Return whether the newest decision has the same shared spares with the same models."""
    recorded = observed.decisions[0].spec.shared_spares if observed.decisions else ()
    planned = spares[:MAX_SHARED_SPARES]
    return [(spare.namespace, spare.node, spare.slices, spare.models) for spare in recorded] == [
        (spare.namespace, spare.node, spare.slices, spare.models) for spare in planned
    ]


def _format_values(values: Mapping[str, ValueRates]) -> Mapping[str, Any]:
    if not values:
        return {}
    highest = sorted(values.items(), key=lambda item: (-item[1].offered, item[0]))[:_MAX_VALUES]
    return {
        "value": _format_value_rates(sum_value_rates(values.values())),
        "values": [{"inference": name, **_format_value_rates(rates)} for name, rates in highest],
    }


def _format_value_rates(rates: ValueRates) -> Mapping[str, float]:
    return {
        name: _round_number(amount)
        for name, amount in (("offered", rates.offered), *rates.by_outcome.items())
    }


def find_expired(decisions: Sequence[AllocationDecision]) -> tuple[AllocationDecision, ...]:
    """Return the decisions to delete; `decisions` are those of one pool, the newest first."""
    return tuple(decisions[KEPT_DECISIONS:])


def sort_newest_first(decisions: Iterable[AllocationDecision]) -> tuple[AllocationDecision, ...]:
    """Sort decisions by the time at which they were made, the newest first."""
    return tuple(
        sorted(decisions, key=lambda decision: (decision.spec.at, decision.metadata.name), reverse=True)
    )


def _find_target_replicas(observed: AllocationObserved) -> Mapping[str, int]:
    """Return the target replicas of the scaled members: what they have, changed by the current decision."""
    targets = {str(member.key): member.assigned_replicas for member in observed.scaled_members}
    moves = observed.current_decision.spec.moves if observed.current_decision is not None else ()
    return targets | {move.inference: move.after for move in moves if move.inference in targets}


def _find_target_spares(observed: AllocationObserved) -> Mapping[str, int]:
    """Return the target warm spares, by the current decision or by the statuses."""
    if observed.current_decision is not None:
        return {spare.inference: spare.replicas for spare in observed.current_decision.spec.spares}
    spares = {str(member.key): member.inference.decided_spares for member in observed.scaled_members}
    return {name: count for name, count in spares.items() if count}


def _count_promoted(assignment: Assignment) -> Mapping[str, int]:
    """Return the replicas of each Inference that a decision promotes from warm spares."""
    promoted: dict[str, int] = {}
    for move in assignment.moves:
        if move.action is MoveAction.PROMOTE:
            promoted[move.inference] = promoted.get(move.inference, 0) + move.replicas
    return promoted


def _choose_time(observed: AllocationObserved) -> datetime:
    """Return now, or a time after the newest decision: the newest one counts even if a clock was set back."""
    newest = next(iter(observed.decisions), None)
    return observed.now if newest is None else max(observed.now, newest.spec.at + timedelta(milliseconds=1))


def _has_moves(observed: AllocationObserved) -> bool:
    """Return whether a current decision has moves: broken rules come and go while they are executed."""
    return observed.current_decision is not None and bool(observed.current_decision.spec.moves)


def _find_broken_rules(rules: Iterable[RelaxedRule | UnmetRule]) -> frozenset[tuple[str, str]]:
    """Return the rules that are broken, without the budget, which limits the moves themselves."""
    return frozenset((rule.rule, rule.subject) for rule in rules if rule.rule != BUDGET_RULE)


def _find_recorded_rules(observed: AllocationObserved) -> frozenset[tuple[str, str]]:
    return _find_broken_rules(observed.decisions[0].spec.not_kept) if observed.decisions else frozenset()


def _select_moves(assignment: Assignment) -> tuple[Move, ...]:
    """Return one move for each Inference, those that free slices before those that need them."""
    first: dict[str, Move] = {}
    for move in assignment.moves:
        if move.action in _CHANGES and move.before != move.after:
            first.setdefault(move.inference, move)
    return tuple(sorted(first.values(), key=lambda move: (move.after > move.before, move.wave)))


def _format_move(move: Move, promoted: int) -> dict[str, Any]:
    return {
        "inference": move.inference,
        "tier": move.tier.value,
        "from": move.before,
        "to": move.after,
        "slices": move.slices // move.replicas,
        **({"promoted": promoted} if promoted else {}),
        "why": move.reason[:_MAX_REASON_CHARS],
    }


def _format_note(assignment: Assignment) -> str:
    return "; ".join(part for part in (assignment.note, *assignment.postponed) if part)[:_MAX_NOTE_CHARS]


def _round_number(value: float) -> float:
    """Round to what is readable, and never return a negative zero."""
    return round(value, _DIGITS) + 0.0


def _make_name(observed: AllocationObserved, assignment: Assignment) -> str:
    time = _choose_time(observed)
    unique = sha256(f"{time.isoformat()} {assignment.inputs_hash}".encode()).hexdigest()[:_HASH_CHARS]
    return f"{observed.name[:_POOL_CHARS]}-{time:%Y%m%d-%H%M%S}-{unique}"
