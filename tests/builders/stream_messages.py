"""Messages that a test takes from a broker as the near-line worker does."""

from __future__ import annotations

from builders.waiting import ends_in_time
from tidegate_dataplane.agent.nearline.broker import Broker, StreamMessage


async def taken(broker: Broker, count: int, *, at_once: int | None = None) -> list[StreamMessage]:
    """Wait for so many messages, and ask each time for `at_once`, or else for those that are still to come.

    A fetch may end with none: a group of Kafka takes some seconds to agree, and a busy server answers late.
    """
    found: list[StreamMessage] = []
    async with ends_in_time(f"{count} messages are taken"):
        while len(found) < count:
            found += await broker.fetch_messages(at_once or count - len(found))
    return found
