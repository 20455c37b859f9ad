"""Interface of a broker for the worker; the same with single acknowledgements and with one offset."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from tidegate_dataplane.agent.nearline.failure_policy import DeadLetter

FETCH_S: Final = 1.0
"""Longest wait of one fetch for messages; a terminating pod waits for its end."""


class ResultTooLargeError(Exception):
    """The store accepts no result of this size."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """Numbers of messages of the stream, for all pods together."""

    pending: int
    """Messages that no pod has yet."""
    unacknowledged: int
    """Messages that a pod has, or that wait for another delivery."""
    arrived: int
    """All messages so far; it only grows. Whether redeliveries count depends on the broker."""


@dataclass(frozen=True, slots=True, eq=False)
class StreamMessage:
    """One delivery of a message; `handle` belongs to the broker."""

    body: bytes
    headers: Mapping[str, str]
    sequence: int
    """The same at each delivery, unique, and in the stream's order."""
    delivery_count: int
    """Number of deliveries, this one included."""
    handle: Any


class Broker(Protocol):
    """A stream, the store of its results and a destination for dead letters, over one session at a time.

    Every failure is a BrokerError, after which `open` is called again.
    """

    @property
    def id_header(self) -> str:
        """Return the name of the header that identifies a message whose body has no id."""
        ...

    @property
    def hold_interval_s(self) -> float:
        """Return the interval at which holds must be renewed, in seconds."""
        ...

    async def open(self) -> None:
        """Connect, and find or make what is needed; messages of errors address the author of the spec."""
        ...

    async def close(self) -> None:
        """Send pending output, and leave unsettled messages to other pods."""
        ...

    async def fetch_messages(self, count: int) -> Sequence[StreamMessage]:
        """Return at most `count` messages as soon as there is one; none if none arrived within FETCH_S."""
        ...

    async def count_backlog(self) -> Backlog:
        """Return the numbers of waiting messages."""
        ...

    async def has_result(self, request_id: str) -> bool:
        """Return whether the id has a result."""
        ...

    async def keep_result(self, request_id: str, content: bytes) -> bool:
        """Store a result; return False if the id already has one, which stays.

        Raises:
            ResultTooLargeError: the store accepts no result of this size.
        """
        ...

    async def publish_dead_letter(self, message: StreamMessage, verdict: DeadLetter) -> None:
        """Publish a message to the dead letters, with the reason in its headers.

        Raises:
            BrokerError: refused, if they accept no message, or none of this size.
        """
        ...

    def is_ours(self, message: StreamMessage) -> bool:
        """Return False once the message is known to belong to another pod; it is then dropped silently."""
        ...

    async def settle(self, message: StreamMessage) -> None:
        """Acknowledge the message."""
        ...

    async def give_back(self, message: StreamMessage, after_s: float) -> None:
        """Return the message to the stream, for delivery to any pod after `after_s`."""
        ...

    async def renew_hold(self, message: StreamMessage) -> None:
        """Extend the time that this pod may hold the message."""
        ...
