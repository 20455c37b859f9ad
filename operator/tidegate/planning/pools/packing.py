"""Plan which pods to move so that a replica of several slices fits on one node, where the free slices of a pool are scattered.

A move starts a pod's replacement on a node with room before the pod ends, so no Inference has fewer ready pods at any time, and
each move needs its slices free beforehand. A plan has the fewest moves; of those it moves the least important pods.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tidegate.api.meta import ObjectKey

MAX_MOVES: Final = 3
_MAX_NODES: Final = 24
"""Nodes that a plan considers: those with the most free slices."""
_MAX_STATES: Final = 3_000
"""Arrangements of pods that a search looks at; beyond, it takes the best plan so far. Pools of a few nodes need far fewer."""


@dataclass(frozen=True, slots=True)
class MovablePods:
    """Equal pods of one Inference on a node, of `slices` each; a lower `rank` is moved first, such as offline work."""

    inference: ObjectKey
    node: str
    slices: int
    count: int
    rank: int = 0


@dataclass(frozen=True, slots=True)
class PackingMove:
    """Pod of an Inference that gets a replacement on the node `target`, and then ends on `source`."""

    inference: ObjectKey
    slices: int
    source: str
    target: str


@dataclass(frozen=True, slots=True)
class _PodKind:
    """Pods that are the same for a plan."""

    rank: int
    slices: int
    inference: ObjectKey


def plan_packing(
    free: Mapping[str, int], pods: Iterable[MovablePods], needed: int, max_moves: int = MAX_MOVES
) -> Sequence[PackingMove] | None:
    """Return the moves after which some node has `needed` free slices, in order; none if one has, and None without a way.

    `free` has the free slices of each node that takes pods. Pods on other nodes are left out.
    """
    if max(free.values(), default=0) >= needed:
        return ()
    if sum(free.values()) < needed:
        return None
    chosen = sorted(free, key=lambda node: (-free[node], node))[:_MAX_NODES]
    search = _PackingSearch({node: free[node] for node in sorted(chosen)}, pods, needed)
    for moves in range(1, max_moves + 1):
        plan = search.find_plan(moves)
        if plan is not None:
            return plan
    return None


class _PackingSearch:
    """Depth-first search over moves; the arrangement is changed in place, and changed back."""

    def __init__(self, free: dict[str, int], pods: Iterable[MovablePods], needed: int) -> None:
        self._free = free
        self._needed = needed
        self._pods: dict[str, Counter[_PodKind]] = {node: Counter() for node in free}
        for group in pods:
            if group.node in free and group.slices > 0:
                self._pods[group.node][_PodKind(group.rank, group.slices, group.inference)] += group.count
        self._path: list[tuple[_PodKind, str, str]] = []
        self._best: tuple[tuple[int, int], tuple[PackingMove, ...]] | None = None
        self._states = 0

    def find_plan(self, moves: int) -> Sequence[PackingMove] | None:
        """Return the best plan of this many moves, when there is no plan of fewer."""
        self._search_moves(moves)
        return None if self._best is None else self._best[1]

    def _search_moves(self, moves: int) -> None:
        self._states += 1
        if not moves:
            if max(self._free.values()) >= self._needed:
                self._keep_plan()
            return
        if self._states > _MAX_STATES or not self._can_succeed(moves):
            return
        for kind, source, target in list(self._list_moves(last=moves == 1)):
            self._move_pod(kind, source, target)
            self._path.append((kind, source, target))
            self._search_moves(moves - 1)
            self._path.pop()
            self._move_pod(kind, target, source)

    def _can_succeed(self, moves: int) -> bool:
        """Return whether some node would have room without its largest pods, as many as may move."""
        for node, pods in self._pods.items():
            largest = sorted((kind.slices for kind in pods.elements()), reverse=True)[:moves]
            if self._free[node] + sum(largest) >= self._needed:
                return True
        return False

    def _list_moves(self, *, last: bool) -> Iterator[tuple[_PodKind, str, str]]:
        """Yield the moves that differ; of equal nodes the first stands for all. The `last` move has to make the room."""
        sources = self._list_different_nodes()
        for source in sources:
            for kind in sorted(self._pods[source], key=lambda kind: (kind.rank, kind.slices, kind.inference)):
                if last and self._free[source] + kind.slices < self._needed:
                    continue
                # An equal node may be the target of a move from the first of them.
                for target in self._list_different_nodes(source):
                    if self._free[target] >= kind.slices:
                        yield kind, source, target

    def _list_different_nodes(self, left_out: str = "") -> Sequence[str]:
        different: dict[tuple[int, frozenset[tuple[_PodKind, int]]], str] = {}
        for node, free in self._free.items():
            if node != left_out:
                different.setdefault((free, frozenset(self._pods[node].items())), node)
        return tuple(different.values())

    def _move_pod(self, kind: _PodKind, source: str, target: str) -> None:
        self._free[source] += kind.slices
        self._free[target] -= kind.slices
        self._pods[target][kind] += 1
        self._pods[source][kind] -= 1
        if not self._pods[source][kind]:
            del self._pods[source][kind]

    def _keep_plan(self) -> None:
        """Keep the present path if it moves less important pods than the best, or fewer slices."""
        cost = sum(kind.rank for kind, _, _ in self._path), sum(kind.slices for kind, _, _ in self._path)
        if self._best is None or cost < self._best[0]:
            moves = tuple(
                PackingMove(kind.inference, kind.slices, source, target)
                for kind, source, target in self._path
            )
            self._best = cost, moves
