"""Windows in which a pool is held: whether it is in one now, and when that changes."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from tidegate.api.compute_pool import FreezeWindow
from tidegate.api.conditions import timestamp
from tidegate.api.durations import parse_duration

_MINUTE: Final = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Freeze:
    """Why a pool is held now."""

    why: str
    until: datetime | None = None
    """When it ends; None for a window that cannot be read, which holds until somebody corrects it."""


def freeze(windows: Sequence[FreezeWindow], now: datetime) -> Freeze | None:
    """The window that a pool is in, the one that lasts longest where several do; None where it is in none."""
    found: Freeze | None = None
    for number, window in enumerate(windows):
        try:
            ends = _last_begin(window, now) + parse_duration(window.duration)
        except _UNREADABLE as error:
            return Freeze(f"{_unreadable(number, window, error)}: the pool is held until it is corrected")
        if now < ends and (found is None or found.until is None or ends > found.until):
            found = Freeze(f"frozen until {timestamp(ends)} by spec.policy.freeze[{number}]", ends)
    return found


def next_begin(windows: Sequence[FreezeWindow], now: datetime) -> datetime | None:
    """When the next window begins."""
    begins = [_next_begin(window, now) for window in windows]
    return min((each for each in begins if each is not None), default=None)


_UNREADABLE: Final = (CronSimError, ValueError, OSError, StopIteration)
# A zone that is not there is a KeyError, and a name like a path a ValueError.
_UNKNOWN_ZONE: Final = (KeyError, ValueError, OSError)


def _last_begin(window: FreezeWindow, now: datetime) -> datetime:
    """When the window began last, now included."""
    return next(CronSim(window.schedule, _minute_after(window, now), reverse=True)).astimezone(UTC)


def _next_begin(window: FreezeWindow, now: datetime) -> datetime | None:
    try:
        return next(CronSim(window.schedule, now.astimezone(_zone(window)))).astimezone(UTC)
    except _UNREADABLE:
        return None


def _minute_after(window: FreezeWindow, now: datetime) -> datetime:
    """Schedules have whole minutes, and what is looked for lies before this."""
    # Added by the world's clock: a zone's own has an hour twice in autumn.
    return (now.astimezone(UTC).replace(second=0, microsecond=0) + _MINUTE).astimezone(_zone(window))


def _zone(window: FreezeWindow) -> ZoneInfo:
    try:
        return ZoneInfo(window.time_zone)
    except _UNKNOWN_ZONE as error:
        message = "there is no such time zone: give a name like Europe/Berlin"
        raise ValueError(message) from error


def _unreadable(number: int, window: FreezeWindow, error: Exception) -> str:
    field = f"spec.policy.freeze[{number}]"
    if isinstance(error, CronSimError):
        return f"{field}.schedule {window.schedule!r} is no cron schedule ({str(error).lower()})"
    if isinstance(error, StopIteration):
        return f"{field}.schedule {window.schedule!r} never comes"
    return f"{field}.timeZone {window.time_zone!r}: {error}"
