"""What the ingester needs of an event store, and the errors of all stores."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tidegate_dataplane.contract import EventStreamReport
from tidegate_dataplane.event_store.report import IngesterReport
from tidegate_dataplane.event_store.state import StreamState


class StoreError(Exception):
    """The store did not do it. The message is for the author of the spec and contains no secret."""

    refused = False
    """Whether the store refuses, so that it needs a correction; else it is unreachable or busy."""


class StoreFullError(StoreError):
    """There is no room for more events."""

    refused = True


class StoreRefusedError(StoreError):
    """The store is reachable and refuses: credentials, permissions, or a setting with which it loses events."""

    refused = True


class OtherWriterError(StoreError):
    """Another process has written since the state that a write is based on was read."""


@dataclass(frozen=True, slots=True)
class SweptKeys:
    """The number of removed keys, and the key to go on from; `cursor` is empty at the end of the stream's keys."""

    removed: int
    cursor: bytes


class EventWriter(Protocol):
    """A store that one ingester writes. Threads may share it."""

    def read_state(self, stream: str) -> StreamState:
        """Return how far the stream was read."""
        ...

    def store_events(
        self,
        stream: str,
        events: Mapping[bytes, Sequence[bytes]],
        *,
        before: StreamState,
        after: StreamState,
        now_ms: int,
    ) -> None:
        """Add rows by key and replace the state `before` by `after`, all or nothing.

        Raises:
            StoreError: nothing is stored, or with an unreachable store it is not known: `read_state` shows it.
        """
        ...

    def confirm_state(self, stream: str) -> None:
        """Check that the store still has what this process has read or written last.

        Raises:
            OtherWriterError: it does not, since another process has written, or it has lost its last writes.
            StoreError: it does not answer.
        """
        ...

    def remove_events(self, stream: str, after: StreamState) -> None:
        """Remove all events of a stream whose broker has begun it anew, and replace the state."""
        ...

    def remove_expired(self, stream: str, now_ms: int, cursor: bytes = b"") -> SweptKeys:
        """Remove keys whose events have all expired, a bounded number of them from `cursor` on."""
        ...

    def publish_report(self, report: IngesterReport) -> None:
        """Tell the agents how current the events are."""
        ...

    def release_readers(self) -> int:
        """Release what readers that ended in the middle of a read left; return their number."""
        ...

    def read_published(self) -> Sequence[EventStreamReport]:
        """Return the last report; none if there is none."""
        ...
