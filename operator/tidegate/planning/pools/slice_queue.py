"""Replicas that wait for slices, in the order in which they get some.

The queue is cut into blocks. Each block knows how much room all of its replicas take, and with how much the first of them gets its
slices. So serving the queue takes one step for each block that gets all or nothing: of n claims, about √n steps instead of n.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tidegate.api.meta import ObjectKey

_BLOCK: Final = 64
"""Least number of claims of a block, except for the last; a block of twice as many is cut in two. About √10,000."""

Rank = tuple[str, ObjectKey]
"""Creation time, in a form that sorts, and key: the oldest comes first, and of two with one age the first by name."""


@dataclass(frozen=True, slots=True)
class PendingReplicas:
    """The replicas of one claim that wait for slices."""

    rank: Rank
    slices: int
    """Slices of each replica."""
    placed: int
    """Replicas that have their slices already."""
    desired: int
    """Replicas that have slices once none of them waits."""
    assigned: int
    """Slices that the claim has already. Slices beyond its placed replicas, of another size or of terminating pods, are room for
    its own replicas alone."""

    @property
    def least_room(self) -> int:
        """Return the room with which at least one replica gets its slices."""
        return (self.placed + 1) * self.slices - self.assigned

    @property
    def full_room(self) -> int:
        """Return the room that is used once all replicas have their slices."""
        return max(self.desired * self.slices - self.assigned, 0)

    def count_served(self, room: int) -> int:
        """Return how many replicas get their slices out of this many free slices."""
        usable = room + self.assigned - self.placed * self.slices
        return max(min(self.desired - self.placed, usable // self.slices), 0)

    def count_used(self, room: int) -> int:
        """Return how many slices of the room they use."""
        return max((self.placed + self.count_served(room)) * self.slices - self.assigned, 0)


class _Block:
    """Consecutive entries of a queue."""

    def __init__(self, entries: list[PendingReplicas]) -> None:
        self.entries = entries
        self._rooms: tuple[int, int] | None = None

    @property
    def last_rank(self) -> Rank:
        return self.entries[-1].rank

    @property
    def room_bounds(self) -> tuple[int, int]:
        """Return the room with which any entry gets something, and the room that all entries use."""
        if self._rooms is None:
            self._rooms = (
                min(entry.least_room for entry in self.entries),
                sum(entry.full_room for entry in self.entries),
            )
        return self._rooms

    def insert_entry(self, entry: PendingReplicas) -> None:
        self.entries.insert(self._find_index(entry.rank), entry)
        self._rooms = None

    def remove_entry(self, entry: PendingReplicas) -> None:
        del self.entries[self._find_index(entry.rank)]
        self._rooms = None

    def serve_entries(self, room: int) -> int:
        """Return the room that is left after all entries."""
        smallest, full = self.room_bounds
        if room < smallest:
            return room
        if full <= room and room >= 0:
            return room - full
        for entry in self.entries:
            room -= entry.count_used(room)
        return room

    def _find_index(self, rank: Rank) -> int:
        return bisect_left(self.entries, rank, key=lambda entry: entry.rank)


class SliceQueue:
    """Pending replicas by rank."""

    def __init__(self) -> None:
        self._blocks: list[_Block] = []

    def insert_entry(self, entry: PendingReplicas) -> None:
        """Add an entry whose rank is not in the queue yet."""
        if not self._blocks:
            self._blocks.append(_Block([entry]))
            return
        index = min(self._find_block(entry.rank), len(self._blocks) - 1)
        block = self._blocks[index]
        block.insert_entry(entry)
        if len(block.entries) >= 2 * _BLOCK:
            halves = block.entries[:_BLOCK], block.entries[_BLOCK:]
            self._blocks[index : index + 1] = [_Block(entries) for entries in halves]

    def remove_entry(self, entry: PendingReplicas) -> None:
        """Remove an entry."""
        index = self._find_block(entry.rank)
        block = self._blocks[index]
        block.remove_entry(entry)
        if not block.entries:
            del self._blocks[index]

    def serve_entries(self, room: int) -> int:
        """Return the room that is left after all entries."""
        for block in self._blocks:
            room = block.serve_entries(room)
        return room

    def find_room(self, entry: PendingReplicas, room: int) -> int:
        """Return the room that is left for one of the entries, after all before it."""
        index = self._find_block(entry.rank)
        for block in self._blocks[:index]:
            room = block.serve_entries(room)
        for earlier in self._blocks[index].entries:
            if earlier.rank >= entry.rank:
                break
            room -= earlier.count_used(room)
        return room

    def find_served(self, room: int) -> Iterator[tuple[PendingReplicas, int]]:
        """Yield the entries whose replicas get slices, each with its number of replicas."""
        for block in self._blocks:
            smallest, _ = block.room_bounds
            if room < smallest:
                continue
            for entry in block.entries:
                served = entry.count_served(room)
                if served:
                    yield entry, served
                room -= entry.count_used(room)

    def _find_block(self, rank: Rank) -> int:
        return bisect_left(self._blocks, rank, key=lambda block: block.last_rank)
