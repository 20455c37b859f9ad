"""What parts fail of, in words; the counters have numbers alone, and an optional part that fails is otherwise silent."""

import time
from collections.abc import Callable

from tidegate_dataplane.pipeline.failures import CallError, FailureKind

EVERY_S = 60.0
"""A part that fails for every request says so once in this time for each kind of failure."""


class Complaints:
    """Hands on the first failure of each part and kind, and then one a minute with the count of those between."""

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._say = say
        self._clock = clock
        self._said_s: dict[tuple[str, FailureKind], float] = {}
        self._unsaid: dict[tuple[str, FailureKind], int] = {}

    def failed(self, part: str, error: CallError) -> None:
        """Take note of one request that this part did not answer."""
        key = part, error.kind
        now_s = self._clock()
        last_s = self._said_s.get(key)
        if last_s is not None and now_s - last_s < EVERY_S:
            self._unsaid[key] = self._unsaid.get(key, 0) + 1
            return
        unsaid = self._unsaid.pop(key, 0)
        more = f" ({unsaid} more requests since the last time)" if unsaid else ""
        self._said_s[key] = now_s
        self._say(f"part {part}: {error.kind.value}: {error}{more}")
