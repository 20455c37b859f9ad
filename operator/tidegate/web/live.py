"""Tells open pages what has changed, at most a few times a second, however much changes."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable, Collection
from dataclasses import dataclass, field
from typing import Final

from tidegate.api.meta import ObjectKey
from tidegate.kube.store import ObjectStore

AT_MOST_EVERY_S: Final = 0.3
"""What changes within it is told once."""
HEARTBEAT_S: Final = 15.0
"""Proxies cut what is silent for longer, usually after a minute."""
_REMEMBERED: Final = 4_096
"""Topics, those that changed last: a page opens its stream a moment after it was read."""


@dataclass(slots=True, eq=False)
class _Listener:
    wanted: frozenset[str]
    user: str
    heard: set[str] = field(default_factory=set[str])
    woken: asyncio.Event = field(default_factory=asyncio.Event)


class Changes:
    """Topics are the plural of a kind (`inferences`), or one object (`inferences/ads/ctr`)."""

    def __init__(self) -> None:
        self._listeners: set[_Listener] = set()
        self._process = secrets.token_hex(4)
        self._count = 0
        self._last: dict[str, int] = {}
        """The change that was each topic's last, the newest at the end."""
        self._forgotten = 0
        """The last change of a topic that is not in it."""

    def follow(self, store: ObjectStore) -> None:
        """From now on a change in `store` is told."""
        store.subscribe(self._teller(store.kind.plural))

    def tell(self, topic: str) -> None:
        """Something has changed that no store holds."""
        self._count += 1
        self._last.pop(topic, None)
        self._last[topic] = self._count
        if len(self._last) > _REMEMBERED:
            self._forgotten = self._last.pop(next(iter(self._last)))
        for listener in self._listeners:
            if topic in listener.wanted:
                listener.heard.add(topic)
                listener.woken.set()

    @property
    def listeners(self) -> int:
        """How many pages are open."""
        return len(self._listeners)

    def listeners_of(self, user: str) -> int:
        """How many pages of one user are open."""
        return sum(listener.user == user for listener in self._listeners)

    @property
    def now(self) -> str:
        """For `heard`: what was read before it may be older than what it tells of."""
        return f"{self._process}-{self._count}"

    async def heard(
        self, wanted: Collection[str], since: str = "", user: str = ""
    ) -> AsyncGenerator[frozenset[str]]:
        """What has changed of `wanted`, again and again; nothing as a heartbeat where it stays quiet.

        With `since`, an earlier `now`, what has changed after it comes first; all of it if another process said it.
        """
        listener = _Listener(frozenset(wanted), user, self._changed(wanted, since) if since else set())
        if listener.heard:
            listener.woken.set()
        self._listeners.add(listener)
        try:
            while True:
                try:
                    async with asyncio.timeout(HEARTBEAT_S):
                        await listener.woken.wait()
                except TimeoutError:
                    yield frozenset()
                    continue
                listener.woken.clear()
                heard, listener.heard = frozenset(listener.heard), set()
                yield heard
                await asyncio.sleep(AT_MOST_EVERY_S)
        finally:
            self._listeners.discard(listener)

    def _changed(self, wanted: Collection[str], since: str) -> set[str]:
        process, _, count = since.partition("-")
        if process != self._process or not count.isdecimal():
            return set(wanted)
        return {topic for topic in wanted if self._last.get(topic, self._forgotten) > int(count)}

    def _teller(self, plural: str) -> Callable[[ObjectKey], None]:
        def changed(key: ObjectKey) -> None:
            self.tell(plural)
            self.tell(f"{plural}/{key}")

        return changed
