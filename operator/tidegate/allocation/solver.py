"""Solver of a whole snapshot: each component by itself."""

from __future__ import annotations

from collections.abc import Callable

from tidegate.allocation.assembly import SolveLimits, assemble_assignment
from tidegate.allocation.assignment import Assignment
from tidegate.allocation.component import split_components
from tidegate.allocation.component_decision import ComponentDecision
from tidegate.allocation.component_solver import ComponentSolver
from tidegate.allocation.snapshot import AllocationSnapshot


class Solver:
    """Solver that keeps its models warm from tick to tick; no answer depends on those before it.

    `clock` returns monotonic seconds, to keep the time box.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._deciders: dict[tuple[str, ...], ComponentSolver] = {}

    def solve(self, snapshot: AllocationSnapshot, limits: SolveLimits | None = None) -> Assignment:
        """Return the assignment; components past the time box are solved greedily, and the note says so."""
        limits = limits or SolveLimits()
        end = self._clock() + limits.seconds
        parts = split_components(snapshot)
        solvers: dict[tuple[str, ...], ComponentSolver] = {}
        decided: list[ComponentDecision] = []
        for part in parts:
            key = tuple(pool.name for pool in part.pools)
            solvers[key] = self._deciders.get(key) or ComponentSolver()
            decided.append(solvers[key].solve_component(part, lambda: end - self._clock(), limits.gap))
        self._deciders = solvers
        return assemble_assignment(snapshot, parts, decided)
