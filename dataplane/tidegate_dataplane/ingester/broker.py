"""Interface of a broker for the ingester, which alone decides from which position it reads."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from tidegate_dataplane.event_store.state import StreamState

READ_S: Final = 1.0
"""Longest wait of one read for messages."""
MAX_MESSAGES: Final = 2_000
"""Most messages of one read, which are stored in one transaction, or in several if histories may be large."""


class StreamChangedError(Exception):
    """The stream has other partitions than when it was opened: it is to be opened again, and nothing is wrong."""


class StreamRestartedError(Exception):
    """The broker has another stream of this name than before, or fewer messages than were read: positions are void."""


@dataclass(frozen=True, slots=True)
class EventMessage:
    """One message; positions of a partition grow, and `arrived_s` is when the broker got it, in seconds since 1970.

    `key` is that of Kafka.
    """

    partition: str
    position: int
    arrived_s: float
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    key: bytes | None = None


@dataclass(frozen=True, slots=True)
class ReadMessages:
    """Messages in the order of their positions, and where each partition goes on.

    `pending` is the number of messages that the stream holds beyond them, None if the broker has not said so.
    `complete_until_s` is the time, in seconds since 1970, until which everything that arrived was read, in every partition;
    None if it is not known.
    """

    messages: Sequence[EventMessage] = ()
    next_positions: Mapping[str, int] = field(default_factory=dict[str, int])
    pending: int | None = None
    complete_until_s: float | None = None


class EventBroker(Protocol):
    """Reads one stream, over one session at a time. Every failure is a BrokerError, after which `open_stream` is called again."""

    async def open_stream(self, state: StreamState, since_s: float) -> str:
        """Connect, go to the positions of `state`, and return the stream's origin.

        A partition without a position begins with the messages that arrived at `since_s` or later.

        Raises:
            BrokerError: with a message for the author of the spec.
            StreamRestartedError: the positions are void.
        """
        ...

    async def read_messages(self) -> ReadMessages:
        """Return messages as soon as there is one; none if none arrived within READ_S.

        Raises:
            BrokerError: the session has failed.
            StreamChangedError: the stream has other partitions.
        """
        ...

    async def check_stream(self) -> None:
        """Ask the broker for the stream.

        Raises:
            BrokerError: it does not answer.
        """
        ...

    async def close_stream(self) -> None:
        """Close the session."""
        ...
