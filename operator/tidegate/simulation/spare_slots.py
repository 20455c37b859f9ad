"""Shared spares of a simulated pool: they load models, and serve the share of the replicas that are gone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from tidegate.allocation.shared_spares import SharedSpare, SparePlan
from tidegate.simulation.scenario import SimulatedModel


@dataclass(slots=True)
class _Slot:
    """A spare; `ready_s` has when each of its models serves."""

    number: int
    node: str
    slices: int
    ready_s: dict[str, float] = field(default_factory=dict[str, float])


class SpareSlots:
    """Spares that exist."""

    def __init__(self, models: Mapping[str, SimulatedModel]) -> None:
        self._models = models
        self._slots: list[_Slot] = []

    @property
    def slice_count(self) -> int:
        """Return the slices of all spares."""
        return sum(slot.slices for slot in self._slots)

    def list_spares(self, now_s: float) -> Sequence[SharedSpare]:
        """Return the spares with their models, and which of them serve."""
        return [
            SharedSpare(
                slot.number,
                slot.node,
                slot.slices,
                tuple(sorted(slot.ready_s)),
                frozenset(key for key, ready_s in slot.ready_s.items() if ready_s <= now_s),
            )
            for slot in self._slots
        ]

    def follow_plan(self, plan: SparePlan, now_s: float, free: int, *, loaded: bool = False) -> None:
        """Become what is planned, as far as slices are free; a spare loads one model after the other."""
        free += self.slice_count
        existing = {slot.number: slot for slot in self._slots}
        self._slots = []
        for spare in plan.spares:
            if spare.slices > free:
                continue
            free -= spare.slices
            slot = existing.get(spare.number)
            if slot is None or slot.node != spare.node:
                slot = _Slot(spare.number, spare.node, spare.slices)
            slot.ready_s = {key: ready_s for key, ready_s in slot.ready_s.items() if key in spare.models}
            begin_s = max([now_s, *slot.ready_s.values()])
            for key in spare.models:
                if key not in slot.ready_s:
                    begin_s += 0.0 if loaded else self._models[key].load_s
                    slot.ready_s[key] = begin_s
            self._slots.append(slot)

    def lose_node(self, node: str) -> None:
        """Lose the spares on a node."""
        self._slots = [slot for slot in self._slots if slot.node != node]

    def find_next_ready(self, after_s: float) -> float:
        """Return when the next model has been loaded; infinite if none loads."""
        times = [ready_s for slot in self._slots for ready_s in slot.ready_s.values() if ready_s > after_s]
        return min(times, default=inf)

    def count_serving(self, key: str, now_s: float) -> int:
        """Return how many spares serve a model."""
        return sum(slot.ready_s.get(key, inf) <= now_s for slot in self._slots)

    def serve_rates(self, rates: Mapping[str, float], now_s: float) -> Mapping[str, float]:
        """Return what the spares serve of the requests per second that come to them, which each model's spares share evenly."""
        work: defaultdict[int, float] = defaultdict(float)
        parts: dict[str, list[int]] = {}
        for key, rate in rates.items():
            parts[key] = [
                number for number, slot in enumerate(self._slots) if slot.ready_s.get(key, inf) <= now_s
            ]
            for number in parts[key]:
                work[number] += rate / len(parts[key]) / self._models[key].replica_rate
        return {
            key: sum(rates[key] / len(slots) / max(work[number], 1.0) for number in slots)
            for key, slots in parts.items()
            if slots
        }
