"""Whether an answer may be used at all: it answers these inputs, and each of its moves is possible, exceeds nothing and breaks no floor."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from tidegate.allocation.assignment import Action, Assignment, Move
from tidegate.allocation.snapshot import Placement, Snapshot
from tidegate.api.inference import Tier

_Key = tuple[str, str]
"""Inference and pool."""


def wrong_with(snapshot: Snapshot, assignment: Assignment) -> str:
    """What is wrong with it, in words; empty when nothing is."""
    if assignment.inputs_hash != snapshot.inputs_hash:
        return "it answers other inputs"
    placements = {
        (each.key, placement.pool): placement for each in snapshot.inferences for placement in each.placements
    }
    placed = {(each.inference, each.pool): each.replicas for each in assignment.replicas}
    if set(placed) != set(placements) or len(placed) < len(assignment.replicas):
        return "it does not place exactly the Inferences that were asked about"
    for (inference, pool), replicas in placed.items():
        if replicas < 0:
            return f"it gives {inference} {replicas} replicas in {pool}"
    return _wrong_in_total(snapshot, assignment, placements, placed) or _wrong_on_the_way(
        snapshot, assignment, placements, placed
    )


def _wrong_in_total(
    snapshot: Snapshot,
    assignment: Assignment,
    placements: Mapping[_Key, Placement],
    placed: Mapping[_Key, int],
) -> str:
    given = {pool.name: 0 for pool in snapshot.pools}
    held = {pool.name: 0 for pool in snapshot.pools}
    for key, placement in placements.items():
        given[placement.pool] += placed[key] * placement.slices
        # Where moves wait, what a lost node leaves too much may stay, but nothing may come on top of it.
        held[placement.pool] += _held(placement) if assignment.postponed else 0
    for pool in snapshot.pools:
        gives, holds = given[pool.name], held[pool.name]
        if gives > max(pool.slices, holds):
            return f"it gives {gives} slices of {pool.name}, which has {pool.slices}"
    return ""


def _wrong_on_the_way(
    snapshot: Snapshot,
    assignment: Assignment,
    placements: Mapping[_Key, Placement],
    placed: Mapping[_Key, int],
) -> str:
    replay = _Replay(placements)
    room = {pool.name: max(pool.slices, replay.occupied(pool.name)) for pool in snapshot.pools}
    floors = {
        each.key: min(
            each.bounds.least,
            replay.serving(each.key),
            sum(placed[each.key, placement.pool] for placement in each.placements),
        )
        for each in snapshot.inferences
        if each.tier is Tier.REALTIME
    }
    for number, move in enumerate(assignment.moves):
        what = f"its move {number} ({move.action} {move.replicas} of {move.inference} in {move.pool})"
        if (move.inference, move.pool) not in placements:
            return f"{what} is of nobody who was asked about"
        if move.wave < replay.wave or move.replicas < 1 or not replay.carry_out(move):
            return f"{what} cannot be carried out"
        occupied = replay.occupied(move.pool)
        if occupied > room[move.pool]:
            return f"{what} takes {occupied} slices of {move.pool}, where there are {room[move.pool]}"
        serving = replay.serving(move.inference)
        if serving < floors.get(move.inference, 0):
            return f"{what} leaves {serving} replicas ready, below the floor of {floors[move.inference]}"
    for (inference, pool), replicas in placed.items():
        if replay.held(inference, pool) != replicas:
            return f"its moves lead {inference} to {replay.held(inference, pool)} replicas in {pool}, not {replicas}"
    return ""


class _Replay:
    """Replicas by phase while moves are carried out: what starts loads and what stops drains until its wave ends."""

    def __init__(self, placements: Mapping[_Key, Placement]) -> None:
        self.wave = 0
        self._slices = {key: placement.slices for key, placement in placements.items()}
        self._ready = {key: placement.replicas.ready for key, placement in placements.items()}
        self._loading = {key: placement.replicas.loading for key, placement in placements.items()}
        self._draining = {key: placement.replicas.draining for key, placement in placements.items()}
        self._spare = {key: placement.replicas.spare for key, placement in placements.items()}
        self._sum()

    def _sum(self) -> None:
        """Totals are kept beside the phases: a thousand moves are checked on the event loop."""
        self._occupied: dict[str, int] = defaultdict(int)
        self._serving: dict[str, int] = defaultdict(int)
        for (inference, pool), slices in self._slices.items():
            key = (inference, pool)
            phases = (self._ready, self._loading, self._draining, self._spare)
            self._occupied[pool] += slices * sum(phase[key] for phase in phases)
            self._serving[inference] += self._ready[key]

    def carry_out(self, move: Move) -> bool:
        """False when there is less than it stops or promotes."""
        if move.wave > self.wave:
            self._end_wave(move.wave)
        key = (move.inference, move.pool)
        ready = self._ready[key]
        match move.action:
            case Action.START:
                self._loading[key] += move.replicas
                self._occupied[move.pool] += move.replicas * self._slices[key]
            case Action.PROMOTE:
                self._spare[key] -= move.replicas
                self._ready[key] += move.replicas
            case Action.STOP_SPARE:
                self._spare[key] -= move.replicas
                self._draining[key] += move.replicas
            case Action.STOP:
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
        self._sum()

    def held(self, inference: str, pool: str) -> int:
        """Replicas that serve, or will."""
        return self._ready[inference, pool] + self._loading[inference, pool]

    def serving(self, inference: str) -> int:
        """Ready replicas in all pools."""
        return self._serving[inference]

    def occupied(self, pool: str) -> int:
        """Slices that anything holds, whatever its phase."""
        return self._occupied[pool]


def _held(placement: Placement) -> int:
    return (placement.replicas.held + placement.replicas.spare) * placement.slices
