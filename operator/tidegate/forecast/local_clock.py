"""The local time of a history's intervals, so that days and weeks are compared by the hours that people live by."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache

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
        """Return the offsets of the intervals from `first` to before `end`; None if they are all equal.

        The array is shared, and cannot be written to.
        """
        return None if self.zone is UTC else _read_offsets(self, first, end)


# The histories of a pool mostly have the same intervals. Four weeks take 0.2 ms and, while clocks are changed in them, 64 KiB.
@lru_cache(maxsize=64)
def _read_offsets(clock: LocalClock, first: int, end: int) -> Offsets | None:
    offsets = np.empty(end - first, dtype=np.int64)
    day = round(DAY_S / clock.interval_s)
    for start in range(first, end, day):
        stop = min(start + day, end)
        change = _find_change(clock, start, stop)
        offsets[start - first : change - first] = _find_offset(clock, start)
        offsets[change - first : stop - first] = _find_offset(clock, stop - 1)
    offsets.setflags(write=False)
    return None if (offsets == offsets[:1]).all() else offsets


def _find_change(clock: LocalClock, start: int, stop: int) -> int:
    """Return the first of a day's intervals with another offset than `start`; `stop` if there is none."""
    before = _find_offset(clock, start)
    if _find_offset(clock, stop - 1) == before:
        return stop
    # Clocks change once in a day at most.
    return start + bisect_left(
        range(start, stop), True, key=lambda number: _find_offset(clock, number) != before
    )


def _find_offset(clock: LocalClock, number: int) -> int:
    moment = datetime.fromtimestamp(clock.begin_s + number * clock.interval_s, UTC).astimezone(clock.zone)
    return round((moment.utcoffset() or timedelta()) / timedelta(seconds=clock.interval_s))
