"""From what was decided for each part to the Assignment: moves in order, reasons, and what was relaxed. No solver is loaded here."""

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
    """`seconds`: the time box. `gap`: how far from the best an answer may be, as a share of its value, when that is proven."""

    seconds: float = 1.0
    gap: float = 1e-3


def solve_greedily(snapshot: Snapshot, note: str) -> Assignment:
    """Without a solver: the answer when it was killed, failed or did not answer; `note` says which."""
    parts = components(snapshot)
    return assemble(snapshot, parts, [decide_greedily(part, note) for part in parts])


def assemble(snapshot: Snapshot, parts: Sequence[Component], decided: Sequence[Decided]) -> Assignment:
    """The parts' decisions as one, with moves, reasons and what was relaxed."""
    placed: list[Placed] = []
    moves: list[Move] = []
    relaxed: list[Relaxation] = []
    postponed: list[str] = []
    bindings: list[Binding] = []
    prices: dict[str, float] = {}
    objective = 0.0
    for part, each in zip(parts, decided, strict=True):
        planned = _Moves(snapshot, part, each.counts)
        moves += planned.moves
        postponed += planned.postponed
        placed += [
            Placed(worth.inference.key, spot.pool, count)
            for worth, counts in zip(part.worths, planned.reached, strict=True)
            for spot, count in zip(worth.spots, counts, strict=True)
        ]
        # Of what is done, not of what would be if nothing had to wait.
        relaxed += shortfalls(part, planned.reached)
        objective += part.score(planned.reached).value
        bindings += each.prices.bindings or (limits(part, planned.reached) if planned.moves else ())
        prices.update(each.prices.slices)
    bounds = [each.bound for each in decided]
    bound = None if None in bounds else sum(bound for bound in bounds if bound is not None)
    return Assignment(
        replicas=tuple(sorted(placed, key=lambda each: (each.inference, each.pool))),
        moves=tuple(sorted(moves, key=lambda move: move.wave)),
        bindings=tuple(sorted(bindings, key=lambda each: (-each.price, each.constraint))[:MOST_BINDINGS]),
        prices=tuple(sorted(prices.items())),
        relaxed=tuple(relaxed),
        postponed=tuple(postponed),
        objective=objective,
        bound=bound,
        gap=None if bound is None else max(bound - objective, 0.0) / max(abs(bound), 1e-9),
        method=worst(decided),
        note=_note(parts, decided),
        inputs_hash=snapshot.inputs_hash,
    )


class _Moves:
    """The moves of one part, and where they lead: `reached` is the target without what cannot be done in order."""

    def __init__(self, snapshot: Snapshot, part: Component, target: Counts) -> None:
        steps, left = order(part, target)
        short = {(worth.inference.key, spot.pool): count for worth, spot, count in left}
        self.reached = tuple(
            tuple(
                count - short.get((worth.inference.key, spot.pool), 0)
                for spot, count in zip(worth.spots, counts, strict=True)
            )
            for worth, counts in zip(part.worths, target, strict=True)
        )
        reasons = Reasons(snapshot, part, target)
        after = {
            (worth.inference.key, spot.pool): count
            for worth, counts in zip(part.worths, self.reached, strict=True)
            for spot, count in zip(worth.spots, counts, strict=True)
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
            f"{worth.inference.key} {count:+d} in {spot.pool}: no order of moves keeps every floor and all capacity"
            for worth, spot, count in left
        )


def _note(parts: Sequence[Component], decided: Sequence[Decided]) -> str:
    """Which pools were decided by less than they could have been, and why."""
    by_note: dict[str, list[str]] = {}
    for part, each in zip(parts, decided, strict=True):
        if each.note:
            by_note.setdefault(each.note, []).extend(pool.name for pool in part.pools)
    if not by_note:
        return ""
    everywhere = sum(len(part.pools) for part in parts)
    return "; ".join(
        note if len(pools) == everywhere else f"{note}: {', '.join(pools)}" for note, pools in by_note.items()
    )
