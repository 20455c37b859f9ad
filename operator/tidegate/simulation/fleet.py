"""Replicas of a simulated pool: they load, serve, drain and are gone."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping, Sequence
from math import inf

from tidegate.allocation.snapshot import PoolInput, ReplicaCounts
from tidegate.simulation.scenario import Scenario, SimulatedModel
from tidegate.simulation.spare_slots import SpareSlots


class ReplicaSet:
    """Replicas of one model; `loading` and `draining` have pairs (time at which they are done, replicas)."""

    def __init__(self, model: SimulatedModel, ready: int, first_node: int = 0) -> None:
        self.model = model
        self.ready = ready
        self.first_node = first_node
        self.loading: list[tuple[float, int]] = []
        self.draining: list[tuple[float, int]] = []
        self.raised_s = -inf
        self.lowered_s = -inf

    @property
    def active_replicas(self) -> int:
        """Return the replicas that are ready or loading."""
        return self.ready + sum(count for _, count in self.loading)

    @property
    def phase_counts(self) -> ReplicaCounts:
        """Return the replicas by phase."""
        return ReplicaCounts(
            self.ready,
            sum(count for _, count in self.loading),
            sum(count for _, count in self.draining),
        )

    @property
    def occupied_slices(self) -> int:
        """Return the slices of all replicas, draining ones included."""
        return (self.active_replicas + sum(count for _, count in self.draining)) * self.model.slices

    def advance_to(self, now_s: float) -> None:
        """Finish what is done by `now_s`."""
        self.ready += sum(count for end_s, count in self.loading if end_s <= now_s)
        self.loading = [(end_s, count) for end_s, count in self.loading if end_s > now_s]
        self.draining = [(end_s, count) for end_s, count in self.draining if end_s > now_s]

    def start_replicas(self, count: int, now_s: float) -> None:
        """Start replicas, which serve after the model's load time."""
        self.loading.append((now_s + self.model.load_s, count))
        self.raised_s = now_s
        self.advance_to(now_s)

    def stop_replicas(self, count: int, now_s: float) -> None:
        """Stop replicas: first those that load, the newest first, since they serve nothing; then ready ones."""
        self.lowered_s = now_s
        remaining = count
        while remaining and self.loading:
            end_s, loading = self.loading.pop()
            stopped = min(loading, remaining)
            remaining -= stopped
            if loading > stopped:
                self.loading.append((end_s, loading - stopped))
        self.ready -= remaining
        self.draining.append((now_s + self.model.drain_s, count))
        self.advance_to(now_s)

    def lose_node(self, position: int, nodes: int) -> int:
        """Lose the replicas on one of the `nodes` that they are spread over evenly; return how many served or loaded."""
        lost = self._take_share(self.ready, 0, position, nodes)
        self.ready -= lost
        first = self.ready + lost
        for phase in (self.loading, self.draining):
            for number, (end_s, count) in enumerate(phase):
                taken = self._take_share(count, first, position, nodes)
                phase[number] = (end_s, count - taken)
                lost += taken if phase is self.loading else 0
                first += count
            phase[:] = [(end_s, count) for end_s, count in phase if count]
        return lost

    def count_on(self, position: int, nodes: int) -> int:
        """Return how many replicas serve or load on one of the `nodes` that they are spread over evenly."""
        return self._take_share(self.active_replicas, 0, position, nodes)

    def _take_share(self, count: int, first: int, position: int, nodes: int) -> int:
        """Return how many of `count` replicas are on a node; the number `first` is on the model's first node plus `first`."""
        offset = (position - self.first_node - first) % nodes
        return max(-(-(count - offset) // nodes), 0)

    def iter_phases(self, start_s: float, end_s: float) -> Iterator[tuple[float, int]]:
        """Yield (seconds, ready replicas) of each part of an interval."""
        begin_s, ready = start_s, self.ready
        for done_s, count in sorted(self.loading):
            if done_s >= end_s:
                break
            if done_s > begin_s:
                yield done_s - begin_s, ready
                begin_s = done_s
            ready += count
        yield end_s - begin_s, ready


class SimulatedFleet:
    """Replicas of all models of a scenario; `initial` has those that are ready at the start."""

    def __init__(self, scenario: Scenario, initial: Mapping[str, int]) -> None:
        self._scenario = scenario
        self._lost: list[int] = []  # sorted
        self._slices = scenario.pool.slices
        self.spares = SpareSlots(scenario.by_key)
        self.sets: dict[str, ReplicaSet] = {}
        first_node = 0
        for model in scenario.models:
            count = initial.get(model.key, 0)
            self.sets[model.key] = ReplicaSet(model, count, first_node)
            # The next model's replicas follow on the nodes, so that every node has as many slices in use.
            first_node = (first_node + count * model.slices) % max(scenario.pool.nodes, 1)

    @property
    def free_slices(self) -> int:
        """Return the slices that nothing has."""
        replicas = sum(replicas.occupied_slices for replicas in self.sets.values())
        return self._slices - replicas - self.spares.slice_count

    @property
    def remaining_nodes(self) -> Sequence[str]:
        """Return the names of the nodes that are not lost."""
        return [str(node) for node in range(self._scenario.pool.nodes) if node not in self._lost]

    def spread_replicas(self, key: str) -> Mapping[str, int]:
        """Return how many replicas of a model serve or load on each node that has some."""
        nodes, replicas = self.remaining_nodes, self.sets[key]
        counts = {node: replicas.count_on(position, len(nodes)) for position, node in enumerate(nodes)}
        return {node: count for node, count in counts.items() if count}

    @property
    def remaining_pool(self) -> PoolInput:
        """Return the pool without its lost nodes."""
        return self._scenario.pool_without(len(self._lost))

    def lose_node(self, node: int) -> Mapping[str, int]:
        """Lose a node with its replicas; return how many of each model served or loaded."""
        before = bisect_left(self._lost, node)
        if node in self._lost[before : before + 1]:
            return {}
        position, remaining = node - before, self._scenario.pool.nodes - len(self._lost)
        insort(self._lost, node)
        self._slices = self.remaining_pool.slices
        self.spares.lose_node(str(node))
        return {key: replicas.lose_node(position, remaining) for key, replicas in self.sets.items()}

    def restore_node(self, node: int) -> None:
        """Bring a lost node back, empty."""
        if node in self._lost:
            self._lost.remove(node)
            self._slices = self.remaining_pool.slices

    def advance_to(self, now_s: float) -> None:
        """Finish what is done by `now_s`."""
        for replicas in self.sets.values():
            replicas.advance_to(now_s)

    def apply_targets(self, targets: Mapping[str, int], now_s: float) -> int:
        """Stop what is above its target, then start what fits, in the order of the targets; return the slices moved."""
        moved = 0
        for key, target in targets.items():
            replicas = self.sets[key]
            excess = replicas.active_replicas - target
            if excess > 0:
                replicas.stop_replicas(excess, now_s)
                moved += excess * replicas.model.slices
        free = self.free_slices
        for key, target in targets.items():
            replicas = self.sets[key]
            count = min(target - replicas.active_replicas, free // replicas.model.slices)
            if count > 0:
                replicas.start_replicas(count, now_s)
                moved += count * replicas.model.slices
                free -= count * replicas.model.slices
        return moved

    def find_next_end(self, targets: Mapping[str, int], before_s: float) -> float | None:
        """Return when the next draining replicas are gone, if that is before `before_s` and some target waits for slices."""
        if all(self.sets[key].active_replicas >= target for key, target in targets.items()):
            return None
        ends = [end_s for replicas in self.sets.values() for end_s, _ in replicas.draining]
        next_s = min(ends, default=inf)
        return next_s if next_s < before_s else None

    def find_next_change(self, after_s: float) -> float:
        """Return when the next replica, or a model of a spare, has been loaded; infinite if none loads."""
        ends = [end_s for replicas in self.sets.values() for end_s, _ in replicas.loading]
        return min([*ends, self.spares.find_next_ready(after_s)], default=inf)
