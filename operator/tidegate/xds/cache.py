"""The newest snapshot, which all streams serve, its history, and its subscribers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from tidegate.xds.resources import Snapshot

_MAX_SNAPSHOTS: Final = 32

HISTORY_BYTES: Final = 64 << 20
"""Neighbours share what is equal, so this is some sixty thousand changes of one access, or one change of all of ten thousand."""


@dataclass(slots=True)
class SnapshotHistory:
    """The last snapshots of different content: at most 32, and fewer if they need more than `max_bytes`.

    The bytes are those of resources that only older snapshots have; the newest is in memory anyway.
    """

    max_bytes: int = HISTORY_BYTES
    _snapshots: deque[Snapshot] = field(default_factory=deque[Snapshot])
    _own_bytes: deque[int] = field(default_factory=deque[int])

    @property
    def snapshots(self) -> Sequence[Snapshot]:
        """Snapshots in the history, the newest last."""
        return tuple(self._snapshots)

    @property
    def old_bytes(self) -> int:
        """Bytes of the resources that each of the older has and its successor does not."""
        return sum(self._own_bytes)

    def add(self, snapshot: Snapshot) -> None:
        """Add the newest snapshot, replacing the last if that has the same content, and drop the oldest ones."""
        if self._snapshots and self._snapshots[-1].revision == snapshot.revision:
            self._snapshots[-1] = snapshot
            return
        if self._snapshots:
            self._own_bytes.append(_count_own_bytes(self._snapshots[-1], snapshot))
        self._snapshots.append(snapshot)
        while len(self._snapshots) > _MAX_SNAPSHOTS or self.old_bytes > self.max_bytes:
            self._snapshots.popleft()
            self._own_bytes.popleft()


class SnapshotCache:
    """Holds the newest snapshot and the last ones before it.

    There is none until the first is set, and no proxy is sent anything until then.
    Not thread-safe: everything happens on the server's event loop.
    """

    def __init__(self, history_bytes: int = HISTORY_BYTES) -> None:
        self._snapshot: Snapshot | None = None
        self._history = SnapshotHistory(history_bytes)
        self._listeners: list[Callable[[], None]] = []

    @property
    def snapshot(self) -> Snapshot | None:
        """Newest snapshot, or None before the first."""
        return self._snapshot

    @property
    def history(self) -> Sequence[Snapshot]:
        """Last snapshots of different content, the newest last."""
        return self._history.snapshots

    def set(self, snapshot: Snapshot) -> bool:
        """Make `snapshot` the newest; return whether it differs, in which case streams are notified."""
        if self._snapshot is not None and _are_equal(snapshot, self._snapshot):
            return False
        self._snapshot = snapshot
        self._history.add(snapshot)
        for wake in tuple(self._listeners):
            wake()
        return True

    def subscribe(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake`, which must not block, after every change, until the returned function is called."""
        self._listeners.append(wake)

        def unsubscribe() -> None:
            self._listeners.remove(wake)

        return unsubscribe


def _are_equal(snapshot: Snapshot, other: Snapshot) -> bool:
    """Return whether two snapshots are equal.

    Equal revisions mean equal resources, but the objects that they were made from may still differ.
    """
    return (
        snapshot.revision == other.revision
        and snapshot.hosts == other.hosts
        and snapshot.refusals == other.refusals
    )


def _count_own_bytes(older: Snapshot, newer: Snapshot) -> int:
    """Return the bytes of the resources that `older` has and `newer` does not."""
    return sum(
        len(of_kind[name].body)
        for kind, of_kind in older.resources.items()
        for name in newer.resources[kind].differing_names(of_kind)
        if name in of_kind
    )
