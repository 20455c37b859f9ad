"""Snapshot in, Assignment out: the parts that share no pool one by one."""

from __future__ import annotations

from collections.abc import Callable

from tidegate.allocation.answer import Limits, assemble
from tidegate.allocation.assignment import Assignment
from tidegate.allocation.component import components
from tidegate.allocation.decide import Decider
from tidegate.allocation.decided import Decided
from tidegate.allocation.snapshot import Snapshot


class Solver:
    """Solves tick after tick; models stay warm, but no answer depends on those before it.

    `clock`: monotonic seconds, to keep the time box.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._deciders: dict[tuple[str, ...], Decider] = {}

    def solve(self, snapshot: Snapshot, limits: Limits | None = None) -> Assignment:
        """The assignment. Past the time box the rest is decided by the greedy order, and the note says so."""
        limits = limits or Limits()
        end = self._clock() + limits.seconds
        parts = components(snapshot)
        kept: dict[tuple[str, ...], Decider] = {}
        decided: list[Decided] = []
        for part in parts:
            key = tuple(pool.name for pool in part.pools)
            kept[key] = self._deciders.get(key) or Decider()
            decided.append(kept[key].decide(part, lambda: end - self._clock(), limits.gap))
        self._deciders = kept
        return assemble(snapshot, parts, decided)
