"""Solver of a whole snapshot: each component by itself."""

from __future__ import annotations

from collections.abc import Callable

from tidegate.allocation.answer import Limits, assemble
from tidegate.allocation.assignment import Assignment
from tidegate.allocation.component import components
from tidegate.allocation.decide import Decider
from tidegate.allocation.decided import Decided
from tidegate.allocation.snapshot import Snapshot


class Solver:
    """Solver that keeps its models warm from tick to tick; no answer depends on those before it.

    `clock` returns monotonic seconds, to keep the time box.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._deciders: dict[tuple[str, ...], Decider] = {}

    def solve(self, snapshot: Snapshot, limits: Limits | None = None) -> Assignment:
        """Return the assignment; components past the time box are solved greedily, and the note says so."""
        limits = limits or Limits()
        end = self._clock() + limits.seconds
        parts = components(snapshot)
        solvers: dict[tuple[str, ...], Decider] = {}
        decided: list[Decided] = []
        for part in parts:
            key = tuple(pool.name for pool in part.pools)
            solvers[key] = self._deciders.get(key) or Decider()
            decided.append(solvers[key].decide(part, lambda: end - self._clock(), limits.gap))
        self._deciders = solvers
        return assemble(snapshot, parts, decided)
