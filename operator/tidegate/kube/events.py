"""Events for users, deduplicated."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from tidegate.api.conditions import format_timestamp
from tidegate.kube.port import EventNote

# The API server refuses longer ones.
_MAX_MESSAGE: Final = 1_024
_REPEAT_AFTER_S: Final = 600.0
_REMEMBERED: Final = 10_000


class EventRecorder:
    """Renders notes as v1 Events and drops those that repeat within ten minutes."""

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
        self._rendered_at: OrderedDict[tuple[str, str, str], float] = OrderedDict()

    def render_event(self, note: EventNote) -> dict[str, Any] | None:
        """Return the Event; None if the same note was rendered within ten minutes."""
        identity, now = self._dedup_key(note), self._monotonic()
        rendered_at = self._rendered_at.get(identity)
        if rendered_at is not None and now - rendered_at < _REPEAT_AFTER_S:
            return None
        self._rendered_at[identity] = now
        self._rendered_at.move_to_end(identity)
        if len(self._rendered_at) > _REMEMBERED:
            self._rendered_at.popitem(last=False)
        return self._build_event(note)

    def forget(self, note: EventNote) -> None:
        """Let the note be rendered again: its Event was not created."""
        self._rendered_at.pop(self._dedup_key(note), None)

    @staticmethod
    def _dedup_key(note: EventNote) -> tuple[str, str, str]:
        return note.uid, note.reason, note.message

    def _build_event(self, note: EventNote) -> dict[str, Any]:
        namespace = note.key.namespace or "default"
        timestamp_now = format_timestamp(self._now())
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
            "firstTimestamp": timestamp_now,
            "lastTimestamp": timestamp_now,
            "count": 1,
            "source": {"component": self._component},
            "reportingComponent": self._component,
        }
