"""The local time of a history's intervals, so that days and weeks are compared by the hours that people live by."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo

import numpy as np
import numpy.typing as npt

from tidegate.forecast.blocks import BLOCK_S, DAY_S

Offsets = npt.NDArray[np.int64]
"""How far local time is ahead of UTC in each interval, in intervals, as shape (intervals,)."""


@dataclass(frozen=True, slots=True)
class LocalClock:
    """A time zone on the intervals of a history, of which the one with number n begins at `begin_s + n * interval_s`."""

    zone: tzinfo = UTC
    interval_s: float = BLOCK_S
    begin_s: float = 0.0

    def read_offsets(self, first: int, end: int) -> Offsets | None:
        """Return the offsets of the intervals from `first` to before `end`; None if they are all equal."""
        if self.zone is UTC:
            return None
        offsets = np.empty(end - first, dtype=np.int64)
        day = round(DAY_S / self.interval_s)
        for start in range(first, end, day):
            stop = min(start + day, end)
            change = self._find_change(start, stop)
            offsets[start - first : change - first] = self._find_offset(start)
            offsets[change - first : stop - first] = self._find_offset(stop - 1)
        return None if (offsets == offsets[:1]).all() else offsets

    def _find_change(self, start: int, stop: int) -> int:
        """Return the first of a day's intervals with another offset than `start`; `stop` if there is none."""
        before = self._find_offset(start)
        if self._find_offset(stop - 1) == before:
            return stop
        # Clocks change once in a day at most.
        return start + bisect_left(
            range(start, stop), True, key=lambda number: self._find_offset(number) != before
        )

    def _find_offset(self, number: int) -> int:
        moment = datetime.fromtimestamp(self.begin_s + number * self.interval_s, UTC).astimezone(self.zone)
        return round((moment.utcoffset() or timedelta()) / timedelta(seconds=self.interval_s))
