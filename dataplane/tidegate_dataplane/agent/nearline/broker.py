"""What the worker needs of a broker; the same for one that settles message by message and one that keeps an offset."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from tidegate_dataplane.agent.nearline.verdict import Dead

FETCH_S: Final = 1.0
"""How long an empty stream is waited for at once; a pod that leaves waits for the end of it."""


class TooLargeError(Exception):
    """The store takes no result of this size."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """Messages of the stream, for all pods together."""

    pending: int
    """Those that no pod has yet."""
    held: int
    """Those that a pod has, or that are to be delivered again."""
    arrived: int
    """All that have come; only ever grows. Whether each delivery of one counts is the broker's."""


@dataclass(frozen=True, slots=True, eq=False)
class Message:
    """One delivery of a message; `handle` is the broker's own."""

    body: bytes
    headers: Mapping[str, str]
    sequence: int
    """The same at each delivery, no other message's, and in the stream's order."""
    delivered: int
    """How often it was delivered by now, this time included."""
    handle: Any


class Broker(Protocol):
    """A stream, the store of its results and a place for dead letters, over one session at a time.

    Every failure is a BrokerError, after which `open` is called again.
    """

    @property
    def id_header(self) -> str:
        """The header that is a message's id where its body has none."""
        ...

    @property
    def hold_every_s(self) -> float:
        """How often `hold` is to be called for what is held."""
        ...

    async def open(self) -> None:
        """Connect, and find or make what is needed; the words of a failure are for whoever wrote the spec."""
        ...

    async def close(self) -> None:
        """Send what is on its way, and leave what is held to others."""
        ...

    async def fetch(self, count: int) -> Sequence[Message]:
        """Return at most `count` messages as soon as there is one; none if none came within FETCH_S."""
        ...

    async def backlog(self) -> Backlog:
        """Return how many messages wait."""
        ...

    async def has_result(self, request_id: str) -> bool:
        """Return whether the id has a result."""
        ...

    async def keep_result(self, request_id: str, content: bytes) -> bool:
        """Keep a result; return False if the id has one already, which stays.

        Raises:
            TooLargeError: the store takes no result of this size.
        """
        ...

    async def bury(self, message: Message, why: Dead) -> None:
        """Publish a message to the dead letters, with the reason in its headers.

        Raises:
            BrokerError: refused, where they take nothing, or nothing of this size.
        """
        ...

    def is_ours(self, message: Message) -> bool:
        """Return False once the message is known to be another pod's; then it is let go without a word."""
        ...

    async def settle(self, message: Message) -> None:
        """Say that the message is dealt with."""
        ...

    async def give_back(self, message: Message, after_s: float) -> None:
        """Have the message delivered again, here or elsewhere, after a while."""
        ...

    async def hold(self, message: Message) -> None:
        """Say that the message is still in good hands."""
        ...
