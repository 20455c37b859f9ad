"""The snapshot that all streams lead to, and who is to be told when it changes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from tidegate.routing.snapshot import Snapshot

# What two neighbours have in common they share, so this many cost what changed between them.
_KEPT: Final = 32


class SnapshotCache:
    """Holds the newest snapshot, and for people the last before it. None until the first is set: until then no proxy is told anything.

    Not for threads: everything happens on the server's event loop.
    """

    def __init__(self) -> None:
        self._snapshot: Snapshot | None = None
        self._history: deque[Snapshot] = deque(maxlen=_KEPT)
        self._listeners: list[Callable[[], None]] = []

    @property
    def snapshot(self) -> Snapshot | None:
        """The newest one, or None before the first."""
        return self._snapshot

    @property
    def history(self) -> Sequence[Snapshot]:
        """The last snapshots of different content, the newest last."""
        return tuple(self._history)

    def set(self, snapshot: Snapshot) -> bool:
        """Makes `snapshot` the newest; streams wake up only if it differs. True when it did."""
        if self._snapshot is not None and _same(snapshot, self._snapshot):
            return False
        self._snapshot = snapshot
        if self._history and self._history[-1].revision == snapshot.revision:
            self._history.pop()
        self._history.append(snapshot)
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
