"""Checks whether an assignment answers its snapshot and each of its moves is possible and breaks no floor."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from tidegate.allocation.assignment import Assignment, Move, MoveAction
from tidegate.allocation.snapshot import AllocationSnapshot, PlacementInput

_Key = tuple[str, str]
"""Inference and pool."""


def find_defect(snapshot: AllocationSnapshot, assignment: Assignment) -> str:
    """Return the first defect of an assignment as text; empty when there is none."""
    if assignment.inputs_hash != snapshot.inputs_hash:
        return "it answers other inputs"
    placements = {
        (model.key, placement.pool): placement
        for model in snapshot.inferences
        for placement in model.placements
    }
    placed = {(assigned.inference, assigned.pool): assigned.replicas for assigned in assignment.replicas}
    if set(placed) != set(placements) or len(placed) < len(assignment.replicas):
        return "it does not place exactly the Inferences that were asked about"
    for (inference, pool), replicas in placed.items():
        if replicas < 0:
            return f"it gives {inference} {replicas} replicas in {pool}"
    return _find_capacity_defect(snapshot, assignment, placements, placed) or _find_move_defect(
        snapshot, assignment, placements, placed
    )


def _find_capacity_defect(
    snapshot: AllocationSnapshot,
    assignment: Assignment,
    placements: Mapping[_Key, PlacementInput],
    placed: Mapping[_Key, int],
) -> str:
    """Return which pool assigns more slices than it has, as text; empty when none does."""
    assigned = {pool.name: 0 for pool in snapshot.pools}
    current = {pool.name: 0 for pool in snapshot.pools}
    for key, placement in placements.items():
        assigned[placement.pool] += placed[key] * placement.slices
        # Where moves wait, what a lost node leaves too much may stay, but nothing may come on top of it.
        current[placement.pool] += _current_slices(placement) if assignment.postponed else 0
    for pool in snapshot.pools:
        assigned_slices, current_slices = assigned[pool.name], current[pool.name]
        if assigned_slices > max(pool.slices, current_slices):
            return f"it gives {assigned_slices} slices of {pool.name}, which has {pool.slices}"
    return ""


def _find_move_defect(
    snapshot: AllocationSnapshot,
    assignment: Assignment,
    placements: Mapping[_Key, PlacementInput],
    placed: Mapping[_Key, int],
) -> str:
    """Return the first move that is impossible, exceeds capacity or breaks a floor, as text; empty when none does."""
    replay = _MoveReplay(placements)
    capacity = {pool.name: max(pool.slices, replay.occupied_slices(pool.name)) for pool in snapshot.pools}
    floors = {
        model.key: min(
            model.bounds.floor,
            replay.ready_replicas(model.key),
            sum(placed[model.key, placement.pool] for placement in model.placements),
        )
        for model in snapshot.inferences
        if model.tier.traits.has_slo
    }
    for number, move in enumerate(assignment.moves):
        label = f"its move {number} ({move.action} {move.replicas} of {move.inference} in {move.pool})"
        if (move.inference, move.pool) not in placements:
            return f"{label} is of nobody who was asked about"
        if move.wave < replay.wave or move.replicas < 1 or not replay.apply_move(move):
            return f"{label} cannot be executed"
        occupied = replay.occupied_slices(move.pool)
        if occupied > capacity[move.pool]:
            return f"{label} takes {occupied} slices of {move.pool}, where there are {capacity[move.pool]}"
        serving = replay.ready_replicas(move.inference)
        if serving < floors.get(move.inference, 0):
            return f"{label} leaves {serving} replicas ready, below the floor of {floors[move.inference]}"
    for (inference, pool), replicas in placed.items():
        if replay.current_replicas(inference, pool) != replicas:
            return f"its moves lead {inference} to {replay.current_replicas(inference, pool)} replicas in {pool}, not {replicas}"
    return ""


class _MoveReplay:
    """Replicas by phase while moves are replayed: started ones load and stopped ones drain until their wave ends."""

    def __init__(self, placements: Mapping[_Key, PlacementInput]) -> None:
        self.wave = 0
        self._slices = {key: placement.slices for key, placement in placements.items()}
        self._ready = {key: placement.replicas.ready for key, placement in placements.items()}
        self._loading = {key: placement.replicas.loading for key, placement in placements.items()}
        self._draining = {key: placement.replicas.draining for key, placement in placements.items()}
        self._spare = {key: placement.replicas.spare for key, placement in placements.items()}
        self._recompute_totals()

    def _recompute_totals(self) -> None:
        """Recompute the totals by pool and by Inference.

        Totals are kept beside the phases because a thousand moves are checked on the event loop.
        """
        self._occupied: dict[str, int] = defaultdict(int)
        self._serving: dict[str, int] = defaultdict(int)
        for (inference, pool), slices in self._slices.items():
            key = (inference, pool)
            phases = (self._ready, self._loading, self._draining, self._spare)
            self._occupied[pool] += slices * sum(phase[key] for phase in phases)
            self._serving[inference] += self._ready[key]

    def apply_move(self, move: Move) -> bool:
        """Apply a move and return False when it stops or promotes more replicas than there are."""
        if move.wave > self.wave:
            self._end_wave(move.wave)
        key = (move.inference, move.pool)
        ready = self._ready[key]
        match move.action:
            case MoveAction.START:
                self._loading[key] += move.replicas
                self._occupied[move.pool] += move.replicas * self._slices[key]
            case MoveAction.PROMOTE:
                self._spare[key] -= move.replicas
                self._ready[key] += move.replicas
            case MoveAction.STOP_SPARE:
                self._spare[key] -= move.replicas
                self._draining[key] += move.replicas
            case MoveAction.STOP:
                early = min(self._loading[key], move.replicas)
                self._loading[key] -= early
                self._ready[key] -= move.replicas - early
                self._draining[key] += move.replicas
        self._serving[move.inference] += self._ready[key] - ready
        return min(self._ready[key], self._spare[key]) >= 0

    def _end_wave(self, wave: int) -> None:
        self.wave = wave
        for key in self._ready:
            self._ready[key] += self._loading[key]
            self._loading[key] = self._draining[key] = 0
        self._recompute_totals()

    def current_replicas(self, inference: str, pool: str) -> int:
        """Return the replicas that are ready or loading."""
        return self._ready[inference, pool] + self._loading[inference, pool]

    def ready_replicas(self, inference: str) -> int:
        """Return the ready replicas in all pools."""
        return self._serving[inference]

    def occupied_slices(self, pool: str) -> int:
        """Return the slices that replicas of any phase occupy."""
        return self._occupied[pool]


def _current_slices(placement: PlacementInput) -> int:
    return (placement.replicas.current + placement.replicas.spare) * placement.slices
