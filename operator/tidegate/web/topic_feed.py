"""Notify open pages of changed objects, at most a few times a second."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable, Collection
from dataclasses import dataclass, field
from typing import Final

from tidegate.api.meta import ObjectKey
from tidegate.kube.store import ObjectStore

MIN_INTERVAL_S: Final = 0.3
"""The least time between two notifications of a page; further changes within it are merged."""
HEARTBEAT_S: Final = 15.0
"""The interval of heartbeats: proxies close a silent connection, usually after a minute."""
_MAX_TOPICS: Final = 4_096
"""Topics whose last change is kept: a page opens its stream shortly after it was read."""


@dataclass(slots=True, eq=False)
class _Subscriber:
    topics: frozenset[str]
    user: str
    changed: set[str] = field(default_factory=set[str])
    wake_up: asyncio.Event = field(default_factory=asyncio.Event)


class TopicFeed:
    """Feed of changes by topic: the plural of a kind (`inferences`), or one object (`inferences/ads/ctr`)."""

    def __init__(self) -> None:
        self._subscribers: set[_Subscriber] = set()
        self._process = secrets.token_hex(4)
        self._count = 0
        self._last_changes: dict[str, int] = {}
        """The number of the last change by topic, the newest at the end."""
        self._oldest_change = 0
        """The highest change of a topic that is no longer in `_last_changes`."""

    def follow_store(self, store: ObjectStore) -> None:
        """Publish all further changes in `store`."""
        store.subscribe(self._make_publisher(store.kind.plural))

    def publish(self, topic: str) -> None:
        """Publish a change of a topic."""
        self._count += 1
        self._last_changes.pop(topic, None)
        self._last_changes[topic] = self._count
        if len(self._last_changes) > _MAX_TOPICS:
            self._oldest_change = self._last_changes.pop(next(iter(self._last_changes)))
        for subscriber in self._subscribers:
            if topic in subscriber.topics:
                subscriber.changed.add(topic)
                subscriber.wake_up.set()

    @property
    def subscriber_count(self) -> int:
        """Return the number of open pages."""
        return len(self._subscribers)

    def count_subscribers(self, user: str) -> int:
        """Return the number of open pages of one user."""
        return sum(subscriber.user == user for subscriber in self._subscribers)

    @property
    def position(self) -> str:
        """Return the current position in the feed, for the parameter `since` of a later subscription."""
        return f"{self._process}-{self._count}"

    async def subscribe(
        self, topics: Collection[str], since: str = "", user: str = ""
    ) -> AsyncGenerator[frozenset[str]]:
        """Yield the topics that changed, each time some did, and an empty set as a heartbeat.

        `since` is an earlier position: topics that changed after it come first, or all topics if it belongs to another
        process.
        """
        subscriber = _Subscriber(
            frozenset(topics), user, self._changed_since(topics, since) if since else set()
        )
        if subscriber.changed:
            subscriber.wake_up.set()
        self._subscribers.add(subscriber)
        try:
            while True:
                try:
                    async with asyncio.timeout(HEARTBEAT_S):
                        await subscriber.wake_up.wait()
                except TimeoutError:
                    yield frozenset()
                    continue
                subscriber.wake_up.clear()
                changed, subscriber.changed = frozenset(subscriber.changed), set()
                yield changed
                await asyncio.sleep(MIN_INTERVAL_S)
        finally:
            self._subscribers.discard(subscriber)

    def _changed_since(self, topics: Collection[str], since: str) -> set[str]:
        process, _, count = since.partition("-")
        if process != self._process or not count.isdecimal():
            return set(topics)
        return {topic for topic in topics if self._last_changes.get(topic, self._oldest_change) > int(count)}

    def _make_publisher(self, plural: str) -> Callable[[ObjectKey], None]:
        def publish_change(key: ObjectKey) -> None:
            self.publish(plural)
            self.publish(f"{plural}/{key}")

        return publish_change
