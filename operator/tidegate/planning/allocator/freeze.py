"""Freeze windows of a pool: whether it is in one now, and when that changes."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from tidegate.api.compute_pool import FreezeWindow
from tidegate.api.conditions import format_timestamp
from tidegate.api.durations import parse_duration

_MINUTE: Final = timedelta(minutes=1)


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
            ends = _find_last_begin(window, now) + parse_duration(window.duration)
        except _UNREADABLE as error:
            return Freeze(f"{_explain_invalid(index, window, error)}: the pool is held until it is corrected")
        if now < ends and (longest is None or longest.until is None or ends > longest.until):
            longest = Freeze(f"frozen until {format_timestamp(ends)} by spec.policy.freeze[{index}]", ends)
    return longest


def find_next_begin(windows: Sequence[FreezeWindow], now: datetime) -> datetime | None:
    """Return when the next window begins."""
    begins = [_find_begin_after(window, now) for window in windows]
    return min((begin for begin in begins if begin is not None), default=None)


_UNREADABLE: Final = (CronSimError, ValueError, OSError, StopIteration)
# An unknown zone is a KeyError, and a name like a path a ValueError.
_UNKNOWN_ZONE: Final = (KeyError, ValueError, OSError)


def _find_last_begin(window: FreezeWindow, now: datetime) -> datetime:
    """Return when the window last began, now included."""
    return next(CronSim(window.schedule, _round_to_next_minute(window, now), reverse=True)).astimezone(UTC)


def _find_begin_after(window: FreezeWindow, now: datetime) -> datetime | None:
    try:
        return next(CronSim(window.schedule, now.astimezone(_load_zone(window)))).astimezone(UTC)
    except _UNREADABLE:
        return None


def _round_to_next_minute(window: FreezeWindow, now: datetime) -> datetime:
    """Return the next whole minute: schedules have whole minutes, and the search goes backwards from there."""
    # Added in UTC: a zone's own clock repeats an hour in autumn.
    return (now.astimezone(UTC).replace(second=0, microsecond=0) + _MINUTE).astimezone(_load_zone(window))


def _load_zone(window: FreezeWindow) -> ZoneInfo:
    try:
        return ZoneInfo(window.time_zone)
    except _UNKNOWN_ZONE as error:
        message = "there is no such time zone: give a name like Europe/Berlin"
        raise ValueError(message) from error


def _explain_invalid(index: int, window: FreezeWindow, error: Exception) -> str:
    field = f"spec.policy.freeze[{index}]"
    if isinstance(error, CronSimError):
        return f"{field}.schedule {window.schedule!r} is no cron schedule ({str(error).lower()})"
    if isinstance(error, StopIteration):
        return f"{field}.schedule {window.schedule!r} never comes"
    return f"{field}.timeZone {window.time_zone!r}: {error}"
