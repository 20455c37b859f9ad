"""Messages that the pod holds: bounded, ordered by deadline, suspects one at a time and alone."""

import asyncio
import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from tidegate_dataplane.agent.nearline.broker import Message
from tidegate_dataplane.agent.nearline.message import MalformedError, Request


@dataclass(slots=True, eq=False)
class Delivery:
    """One message that the pod holds, and its request."""

    message: Message
    request: Request | MalformedError
    suspect: bool = False

    @property
    def sequence(self) -> int:
        """Return the position in the stream."""
        return self.message.sequence

    @property
    def delivered(self) -> int:
        """Return the number of deliveries so far."""
        return self.message.delivered

    @property
    def deadline_s(self) -> float:
        """Return the deadline in seconds since 1970, infinite without one; a malformed message comes first."""
        if isinstance(self.request, MalformedError):
            return -math.inf
        return math.inf if self.request.deadline_s is None else self.request.deadline_s


@dataclass(order=True, slots=True)
class _Place:
    key: tuple[bool, float, int]
    delivery: Delivery = field(compare=False)


class Window:
    """At most `size` deliveries: those that wait, and those in flight."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._queue: list[_Place] = []
        self._in_flight: set[Delivery] = set()
        self._suspect_in_flight = False
        self._closed = False
        self._changed = asyncio.Event()

    @property
    def room(self) -> int:
        """Return how many more deliveries fit."""
        return self._size - len(self._queue) - len(self._in_flight)

    @property
    def closed(self) -> bool:
        """Return whether the window hands out nothing more."""
        return self._closed

    @property
    def held(self) -> Sequence[Delivery]:
        """Return all deliveries, in no order."""
        return (*(place.delivery for place in self._queue), *self._in_flight)

    def put(self, deliveries: Sequence[Delivery]) -> None:
        """Add deliveries. A suspect goes first, or a busy stream would keep it waiting for ever."""
        for delivery in deliveries:
            key = (not delivery.suspect, delivery.deadline_s, delivery.sequence)
            heapq.heappush(self._queue, _Place(key, delivery))
        self._changed.set()

    async def take(self) -> Delivery | None:
        """Return the next delivery as soon as it may be processed; None once the window is closed."""
        while not self._closed:
            head = self._queue[0].delivery if self._queue else None
            if head is not None and not self._suspect_in_flight and not (head.suspect and self._in_flight):
                heapq.heappop(self._queue)
                self._in_flight.add(head)
                self._suspect_in_flight = head.suspect
                return head
            await self.change()
        return None

    def settled(self, delivery: Delivery) -> None:
        """Remove a delivery that was taken."""
        self._in_flight.discard(delivery)
        if delivery.suspect:
            self._suspect_in_flight = False
        self._changed.set()

    def close(self) -> Sequence[Delivery]:
        """Hand out nothing more, and return the deliveries that were not taken yet."""
        rest = [place.delivery for place in sorted(self._queue)]
        self._queue, self._closed = [], True
        self._changed.set()
        return rest

    def wake(self) -> None:
        """Wake all that wait for a change."""
        self._changed.set()

    async def change(self) -> None:
        """Wait until a delivery was added or removed, or the window closed."""
        # Each change has its own event, so that a waiter that clears it takes no wake-up from another.
        if self._changed.is_set():
            self._changed = asyncio.Event()
        await self._changed.wait()
