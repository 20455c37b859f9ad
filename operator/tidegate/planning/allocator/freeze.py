"""Freeze windows of a pool: whether it is in one now, and when that changes."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from tidegate.api.compute_pool import FreezeWindow
from tidegate.api.conditions import format_timestamp
from tidegate.api.durations import parse_duration
from tidegate.planning.allocator.schedules import CronSchedule, UnreadableScheduleError


@dataclass(frozen=True, slots=True)
class Freeze:
    """The reason why a pool is frozen now."""

    reason: str
    until: datetime | None = None
    """When it ends; None for an invalid window, which freezes the pool until it is corrected."""


def find_freeze(windows: Sequence[FreezeWindow], now: datetime) -> Freeze | None:
    """Return the window that a pool is in, the one that lasts longest if there are several; None if it is in none."""
    longest: Freeze | None = None
    for index, window in enumerate(windows):
        try:
            ends = _read_schedule(window).find_last(now) + parse_duration(window.duration)
        except UnreadableScheduleError as error:
            return Freeze(f"spec.policy.freeze[{index}].{error}: the pool is held until it is corrected")
        if now < ends and (longest is None or longest.until is None or ends > longest.until):
            longest = Freeze(f"frozen until {format_timestamp(ends)} by spec.policy.freeze[{index}]", ends)
    return longest


def find_next_begin(windows: Sequence[FreezeWindow], now: datetime) -> datetime | None:
    """Return when the next window begins."""
    begins = [_find_begin_after(window, now) for window in windows]
    return min((begin for begin in begins if begin is not None), default=None)


def _find_begin_after(window: FreezeWindow, now: datetime) -> datetime | None:
    try:
        return _read_schedule(window).find_next(now)
    except UnreadableScheduleError:
        return None


def _read_schedule(window: FreezeWindow) -> CronSchedule:
    return CronSchedule(window.schedule, window.time_zone)
