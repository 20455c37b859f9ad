"""The snapshot that all streams lead to, and who is to be told when it changes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from tidegate.routing.snapshot import Snapshot, differing

_KEPT: Final = 32

HISTORY_BYTES: Final = 64 << 20
"""What two neighbours have in common they share, so this is some sixty thousand changes of one access, or one of all of ten thousand."""


@dataclass(slots=True)
class History:
    """The last snapshots of different content: 32 of them, or fewer if what only the older ones have takes more than `max_bytes`.

    The newest is always kept, and not counted: it is there anyway.
    """

    max_bytes: int = HISTORY_BYTES
    _snapshots: deque[Snapshot] = field(default_factory=deque[Snapshot])
    _own_bytes: deque[int] = field(default_factory=deque[int])

    @property
    def snapshots(self) -> Sequence[Snapshot]:
        """All that are kept, the newest last."""
        return tuple(self._snapshots)

    @property
    def old_bytes(self) -> int:
        """Bytes of the resources that each of the older has and its successor does not."""
        return sum(self._own_bytes)

    def add(self, snapshot: Snapshot) -> None:
        """`snapshot` is the newest; in place of the last if that is of the same content. The oldest go first."""
        if self._snapshots and self._snapshots[-1].revision == snapshot.revision:
            self._snapshots[-1] = snapshot
            return
        if self._snapshots:
            self._own_bytes.append(_bytes_of_its_own(self._snapshots[-1], snapshot))
        self._snapshots.append(snapshot)
        while len(self._snapshots) > _KEPT or self.old_bytes > self.max_bytes:
            self._snapshots.popleft()
            self._own_bytes.popleft()


class SnapshotCache:
    """Holds the newest snapshot, and for people the last before it. None until the first is set: until then no proxy is told anything.

    Not for threads: everything happens on the server's event loop.
    """

    def __init__(self, history_bytes: int = HISTORY_BYTES) -> None:
        self._snapshot: Snapshot | None = None
        self._history = History(history_bytes)
        self._listeners: list[Callable[[], None]] = []

    @property
    def snapshot(self) -> Snapshot | None:
        """The newest one, or None before the first."""
        return self._snapshot

    @property
    def history(self) -> Sequence[Snapshot]:
        """The last snapshots of different content, the newest last."""
        return self._history.snapshots

    def set(self, snapshot: Snapshot) -> bool:
        """Makes `snapshot` the newest; streams wake up only if it differs. True when it did."""
        if self._snapshot is not None and _same(snapshot, self._snapshot):
            return False
        self._snapshot = snapshot
        self._history.add(snapshot)
        for wake in tuple(self._listeners):
            wake()
        return True

    def subscribe(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Calls `wake`, which must not block, after every change, until the returned function is called."""
        self._listeners.append(wake)

        def unsubscribe() -> None:
            self._listeners.remove(wake)

        return unsubscribe


def _same(one: Snapshot, other: Snapshot) -> bool:
    """Equal revisions mean equal resources; the objects they were made from may still differ."""
    return one.revision == other.revision and one.hosts == other.hosts and one.refusals == other.refusals


def _bytes_of_its_own(older: Snapshot, newer: Snapshot) -> int:
    """Bytes of the resources that `older` has and `newer` does not."""
    return sum(
        len(of_kind[name].body)
        for kind, of_kind in older.resources.items()
        for name in differing(of_kind, newer.resources[kind])
        if name in of_kind
    )
