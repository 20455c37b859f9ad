"""Events for users: what we say about an object, once in a while and not each time."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from tidegate.api.conditions import timestamp
from tidegate.kube.port import EventNote

# The API server refuses longer ones.
_MAX_MESSAGE: Final = 1_024
_REPEAT_AFTER_S: Final = 600.0
_REMEMBERED: Final = 10_000


class EventRecorder:
    """Renders notes as v1 Events and drops those that were told within the last ten minutes."""

    def __init__(
        self,
        *,
        component: str,
        monotonic: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._component = component
        self._monotonic = monotonic
        self._now = now
        self._told: OrderedDict[tuple[str, str, str], float] = OrderedDict()

    def render(self, note: EventNote) -> dict[str, Any] | None:
        """The Event, or None when the same was told lately."""
        known, now = self._identity(note), self._monotonic()
        told_at = self._told.get(known)
        if told_at is not None and now - told_at < _REPEAT_AFTER_S:
            return None
        self._told[known] = now
        self._told.move_to_end(known)
        if len(self._told) > _REMEMBERED:
            self._told.popitem(last=False)
        return self._event(note)

    def forget(self, note: EventNote) -> None:
        """Lets the note be told again: it did not get through."""
        self._told.pop(self._identity(note), None)

    @staticmethod
    def _identity(note: EventNote) -> tuple[str, str, str]:
        return note.uid, note.reason, note.message

    def _event(self, note: EventNote) -> dict[str, Any]:
        namespace = note.key.namespace or "default"
        moment = timestamp(self._now())
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{note.key.name}.", "namespace": namespace},
            "involvedObject": {
                "apiVersion": note.kind.api_version,
                "kind": note.kind.kind,
                "name": note.key.name,
                "namespace": note.key.namespace,
                "uid": note.uid,
            },
            "type": note.type.value,
            "reason": note.reason,
            "message": note.message[:_MAX_MESSAGE],
            "firstTimestamp": moment,
            "lastTimestamp": moment,
            "count": 1,
            "source": {"component": self._component},
            "reportingComponent": self._component,
        }
