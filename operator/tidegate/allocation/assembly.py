"""Combine the decisions of all components into one assignment with ordered moves, reasons and relaxed rules.

This module loads no solver, so that the controllers can answer without one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidegate.allocation.assignment import (
    AssignedReplicas,
    Assignment,
    BindingConstraint,
    Move,
    MoveAction,
    RelaxedRule,
)
from tidegate.allocation.component import Component, Counts, split_components
from tidegate.allocation.component_decision import ComponentDecision, decide_greedily, worst_method
from tidegate.allocation.moves import order_moves
from tidegate.allocation.prices import MAX_BINDINGS, find_limits
from tidegate.allocation.reasons import MoveReasons
from tidegate.allocation.shortfalls import find_shortfalls
from tidegate.allocation.snapshot import AllocationSnapshot


@dataclass(frozen=True, slots=True)
class SolveLimits:
    """Time and accuracy limits of one solve.

    `seconds` is the time box. `gap` is the largest proven distance from the optimum, as a share of the value, at which
    the search stops.
    """

    seconds: float = 2.0
    gap: float = 1e-3


def solve_greedily(snapshot: AllocationSnapshot, note: str) -> Assignment:
    """Return an assignment without a solver; `note` says why the solver gave none."""
    parts = split_components(snapshot)
    return assemble_assignment(snapshot, parts, [decide_greedily(part, note) for part in parts])


def assemble_assignment(
    snapshot: AllocationSnapshot, components: Sequence[Component], decided: Sequence[ComponentDecision]
) -> Assignment:
    """Combine the components' decisions into one assignment with moves, reasons and relaxed rules."""
    assigned: list[AssignedReplicas] = []
    moves: list[Move] = []
    relaxed: list[RelaxedRule] = []
    postponed: list[str] = []
    bindings: list[BindingConstraint] = []
    prices: dict[str, float] = {}
    objective = 0.0
    for component, decision in zip(components, decided, strict=True):
        planned = _ComponentMoves(snapshot, component, decision.counts)
        moves += planned.moves
        postponed += planned.postponed
        assigned += [
            AssignedReplicas(utility.model.key, option.pool, count)
            for utility, counts in zip(component.utilities, planned.reached, strict=True)
            for option, count in zip(utility.options, counts, strict=True)
        ]
        # Report what the moves reach, not the target: a move that waits has not happened.
        relaxed += find_shortfalls(component, planned.reached)
        objective += component.score_counts(planned.reached).value
        bindings += decision.prices.bindings or (
            find_limits(component, planned.reached) if planned.moves else ()
        )
        prices.update(decision.prices.slices)
    bounds = [decision.bound for decision in decided]
    bound = None if None in bounds else sum(bound for bound in bounds if bound is not None)
    return Assignment(
        replicas=tuple(sorted(assigned, key=lambda entry: (entry.inference, entry.pool))),
        moves=tuple(sorted(moves, key=lambda move: move.wave)),
        bindings=tuple(
            sorted(bindings, key=lambda binding: (-binding.price, binding.constraint))[:MAX_BINDINGS]
        ),
        prices=tuple(sorted(prices.items())),
        relaxed=tuple(relaxed),
        postponed=tuple(postponed),
        objective=objective,
        bound=bound,
        gap=None if bound is None else max(bound - objective, 0.0) / max(abs(bound), 1e-9),
        method=worst_method(decided),
        note=_format_note(components, decided),
        inputs_hash=snapshot.inputs_hash,
    )


class _ComponentMoves:
    """Ordered moves of one component.

    `reached` is the target without the changes that no order of moves can make.
    """

    def __init__(self, snapshot: AllocationSnapshot, component: Component, target: Counts) -> None:
        steps, remaining = order_moves(component, target)
        unreachable = {(utility.model.key, option.pool): count for utility, option, count in remaining}
        self.reached = tuple(
            tuple(
                count - unreachable.get((utility.model.key, option.pool), 0)
                for option, count in zip(utility.options, counts, strict=True)
            )
            for utility, counts in zip(component.utilities, target, strict=True)
        )
        reasons = MoveReasons(snapshot, component, target)
        after = {
            (utility.model.key, option.pool): count
            for utility, counts in zip(component.utilities, self.reached, strict=True)
            for option, count in zip(utility.options, counts, strict=True)
        }
        self.moves = [
            Move(
                wave=step.wave,
                action=step.action,
                inference=step.utility.model.key,
                tier=step.utility.model.tier,
                pool=step.option.pool,
                replicas=step.replicas,
                slices=step.replicas * step.option.slices,
                before=step.option.current,
                after=after[step.utility.model.key, step.option.pool],
                reason=(
                    f"spares of {step.utility.model.key} in {step.option.pool} are more than the pool keeps warm"
                    if step.action is MoveAction.STOP_SPARE
                    else reasons.get_reason(step.utility.model.key, step.option.pool)
                ),
            )
            for step in steps
        ]
        self.postponed = tuple(
            f"{utility.model.key} {count:+d} in {option.pool}: no order of moves keeps all floors and stays within capacity"
            for utility, option, count in remaining
        )


def _format_note(components: Sequence[Component], decided: Sequence[ComponentDecision]) -> str:
    """Return which pools were solved by less than the full method, and why."""
    by_note: dict[str, list[str]] = {}
    for component, decision in zip(components, decided, strict=True):
        if decision.note:
            by_note.setdefault(decision.note, []).extend(pool.name for pool in component.pools)
    if not by_note:
        return ""
    everywhere = sum(len(component.pools) for component in components)
    return "; ".join(
        note if len(pools) == everywhere else f"{note}: {', '.join(pools)}" for note, pools in by_note.items()
    )
