"""Log the failures of parts: counters have no messages, and the failure of an optional part shows nowhere else."""

import time
from collections.abc import Callable

from tidegate_dataplane.pipeline.failures import CallError, FailureKind

LOG_INTERVAL_S = 60.0
"""The least time between two messages about one part and one kind of failure."""


class FailureLog:
    """Logs the first failure of each part and kind, and then one a minute, with the count of those between."""

    def __init__(self, warn: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._warn = warn
        self._clock = clock
        self._logged_at_s: dict[tuple[str, FailureKind], float] = {}
        self._unlogged: dict[tuple[str, FailureKind], int] = {}

    def record_failure(self, part: str, error: CallError) -> None:
        """Record one request that this part did not answer."""
        key = part, error.kind
        now_s = self._clock()
        last_s = self._logged_at_s.get(key)
        if last_s is not None and now_s - last_s < LOG_INTERVAL_S:
            self._unlogged[key] = self._unlogged.get(key, 0) + 1
            return
        unlogged = self._unlogged.pop(key, 0)
        suffix = f" ({unlogged} more requests since the last time)" if unlogged else ""
        self._logged_at_s[key] = now_s
        self._warn(f"part {part}: {error.kind.value}: {error}{suffix}")
