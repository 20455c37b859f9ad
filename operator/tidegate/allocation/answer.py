"""Combine the decisions of all components into one assignment with ordered moves, reasons and relaxed rules.

This module loads no solver, so that the controllers can answer without one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidegate.allocation.assignment import Action, Assignment, Binding, Move, Placed, Relaxation
from tidegate.allocation.component import Component, Counts, components
from tidegate.allocation.decided import Decided, decide_greedily, worst
from tidegate.allocation.moves import order
from tidegate.allocation.prices import MOST_BINDINGS, limits
from tidegate.allocation.reasons import Reasons
from tidegate.allocation.shortfalls import shortfalls
from tidegate.allocation.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Limits:
    """Time and accuracy limits of one solve.

    `seconds` is the time box. `gap` is the largest proven distance from the optimum, as a share of the value, at which
    the search stops.
    """

    seconds: float = 1.0
    gap: float = 1e-3


def solve_greedily(snapshot: Snapshot, note: str) -> Assignment:
    """Return an assignment without a solver; `note` says why the solver gave none."""
    parts = components(snapshot)
    return assemble(snapshot, parts, [decide_greedily(part, note) for part in parts])


def assemble(snapshot: Snapshot, components: Sequence[Component], decided: Sequence[Decided]) -> Assignment:
    """Combine the components' decisions into one assignment with moves, reasons and relaxed rules."""
    assigned: list[Placed] = []
    moves: list[Move] = []
    relaxed: list[Relaxation] = []
    postponed: list[str] = []
    bindings: list[Binding] = []
    prices: dict[str, float] = {}
    objective = 0.0
    for component, decision in zip(components, decided, strict=True):
        planned = _Moves(snapshot, component, decision.counts)
        moves += planned.moves
        postponed += planned.postponed
        assigned += [
            Placed(utility.inference.key, option.pool, count)
            for utility, counts in zip(component.worths, planned.reached, strict=True)
            for option, count in zip(utility.spots, counts, strict=True)
        ]
        # Report what the moves reach, not the target: a move that waits has not happened.
        relaxed += shortfalls(component, planned.reached)
        objective += component.score(planned.reached).value
        bindings += decision.prices.bindings or (limits(component, planned.reached) if planned.moves else ())
        prices.update(decision.prices.slices)
    bounds = [decision.bound for decision in decided]
    bound = None if None in bounds else sum(bound for bound in bounds if bound is not None)
    return Assignment(
        replicas=tuple(sorted(assigned, key=lambda entry: (entry.inference, entry.pool))),
        moves=tuple(sorted(moves, key=lambda move: move.wave)),
        bindings=tuple(
            sorted(bindings, key=lambda binding: (-binding.price, binding.constraint))[:MOST_BINDINGS]
        ),
        prices=tuple(sorted(prices.items())),
        relaxed=tuple(relaxed),
        postponed=tuple(postponed),
        objective=objective,
        bound=bound,
        gap=None if bound is None else max(bound - objective, 0.0) / max(abs(bound), 1e-9),
        method=worst(decided),
        note=_note(components, decided),
        inputs_hash=snapshot.inputs_hash,
    )


class _Moves:
    """Ordered moves of one component.

    `reached` is the target without the changes that no order of moves can make.
    """

    def __init__(self, snapshot: Snapshot, component: Component, target: Counts) -> None:
        steps, remaining = order(component, target)
        unreachable = {(utility.inference.key, option.pool): count for utility, option, count in remaining}
        self.reached = tuple(
            tuple(
                count - unreachable.get((utility.inference.key, option.pool), 0)
                for option, count in zip(utility.spots, counts, strict=True)
            )
            for utility, counts in zip(component.worths, target, strict=True)
        )
        reasons = Reasons(snapshot, component, target)
        after = {
            (utility.inference.key, option.pool): count
            for utility, counts in zip(component.worths, self.reached, strict=True)
            for option, count in zip(utility.spots, counts, strict=True)
        }
        self.moves = [
            Move(
                wave=step.wave,
                action=step.action,
                inference=step.worth.inference.key,
                tier=step.worth.inference.tier,
                pool=step.spot.pool,
                replicas=step.replicas,
                slices=step.replicas * step.spot.slices,
                before=step.spot.held,
                after=after[step.worth.inference.key, step.spot.pool],
                why=(
                    f"spares of {step.worth.inference.key} in {step.spot.pool} are more than the pool keeps warm"
                    if step.action is Action.STOP_SPARE
                    else reasons.of(step.worth.inference.key, step.spot.pool)
                ),
            )
            for step in steps
        ]
        self.postponed = tuple(
            f"{utility.inference.key} {count:+d} in {option.pool}: no order of moves keeps all floors and stays within capacity"
            for utility, option, count in remaining
        )


def _note(components: Sequence[Component], decided: Sequence[Decided]) -> str:
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
