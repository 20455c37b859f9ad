"""Messages that the pod holds: bounded, ordered by deadline, suspects one at a time and alone."""

import asyncio
import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from tidegate_dataplane.agent.nearline.broker import StreamMessage
from tidegate_dataplane.agent.nearline.message import InferenceRequest, MalformedError


@dataclass(slots=True, eq=False)
class Delivery:
    """One message that the pod holds, and its request."""

    message: StreamMessage
    request: InferenceRequest | MalformedError
    suspect: bool = False

    @property
    def sequence(self) -> int:
        """Return the position in the stream."""
        return self.message.sequence

    @property
    def delivery_count(self) -> int:
        """Return the number of deliveries so far."""
        return self.message.delivery_count

    @property
    def deadline_s(self) -> float:
        """Return the deadline in seconds since 1970, infinite without one; a malformed message comes first."""
        if isinstance(self.request, MalformedError):
            return -math.inf
        return math.inf if self.request.deadline_s is None else self.request.deadline_s


@dataclass(order=True, slots=True)
class _QueueEntry:
    key: tuple[bool, float, int]
    delivery: Delivery = field(compare=False)


class DeliveryWindow:
    """At most `size` deliveries: those that wait, and those in flight."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._queue: list[_QueueEntry] = []
        self._in_flight: set[Delivery] = set()
        self._suspect_in_flight = False
        self._closed = False
        self._changed = asyncio.Event()

    @property
    def free_slots(self) -> int:
        """Return how many more deliveries fit."""
        return self._size - len(self._queue) - len(self._in_flight)

    @property
    def is_closed(self) -> bool:
        """Return whether the window hands out nothing more."""
        return self._closed

    @property
    def open_deliveries(self) -> Sequence[Delivery]:
        """Return all deliveries, in no order."""
        return (*(place.delivery for place in self._queue), *self._in_flight)

    def put(self, deliveries: Sequence[Delivery]) -> None:
        """Add deliveries. A suspect goes first, or a busy stream would keep it waiting for ever."""
        for delivery in deliveries:
            key = (not delivery.suspect, delivery.deadline_s, delivery.sequence)
            heapq.heappush(self._queue, _QueueEntry(key, delivery))
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
            await self.wait_for_change()
        return None

    def release(self, delivery: Delivery) -> None:
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

    def wake_waiters(self) -> None:
        """Wake all that wait for a change."""
        self._changed.set()

    async def wait_for_change(self) -> None:
        """Wait until a delivery was added or removed, or the window closed."""
        # Each change has its own event, so that a waiter that clears it takes no wake-up from another.
        if self._changed.is_set():
            self._changed = asyncio.Event()
        await self._changed.wait()
