"""Cron schedules in a time zone: when they last began, and when they begin next."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

_MINUTE: Final = timedelta(minutes=1)
_UTC_NAME: Final = "UTC"
# An unknown zone is a KeyError, and a name like a path a ValueError.
_UNKNOWN_ZONE: Final = (KeyError, ValueError, OSError)


class UnreadableScheduleError(ValueError):
    """A schedule without a meaning; the message begins with the field, like "schedule '60 18 * * *' is no cron schedule"."""


class UnknownTimeZoneError(UnreadableScheduleError):
    """A time zone that does not exist; the message begins with the field, like "timeZone 'Mars/Olympus': there is no such"."""


def load_time_zone(name: str) -> tzinfo:
    """Load a time zone by its IANA name. Raises UnknownTimeZoneError."""
    if name == _UTC_NAME:
        return UTC
    try:
        return ZoneInfo(name)
    except _UNKNOWN_ZONE as error:
        message = f"timeZone {name!r}: there is no such time zone: give a name like Europe/Berlin"
        raise UnknownTimeZoneError(message) from error


@dataclass(frozen=True, slots=True)
class CronSchedule:
    """The fields schedule and timeZone of an object."""

    text: str
    time_zone: str

    def find_last(self, moment: datetime) -> datetime:
        """Return when it last began, the moment included. Raises UnreadableScheduleError."""
        # Schedules have whole minutes, so the search goes backwards from the next one. It is added in UTC: a zone's own
        # clock repeats an hour in autumn.
        until = moment.astimezone(UTC).replace(second=0, microsecond=0) + _MINUTE
        return self._search_begin(until, backwards=True)

    def find_next(self, moment: datetime) -> datetime:
        """Return when it begins after a moment. Raises UnreadableScheduleError."""
        return self._search_begin(moment, backwards=False)

    def _search_begin(self, moment: datetime, *, backwards: bool) -> datetime:
        zone = load_time_zone(self.time_zone)
        try:
            return next(CronSim(self.text, moment.astimezone(zone), reverse=backwards)).astimezone(UTC)
        except (CronSimError, ValueError) as error:
            message = f"schedule {self.text!r} is no cron schedule ({str(error).lower()})"
            raise UnreadableScheduleError(message) from error
        except StopIteration as error:
            message = f"schedule {self.text!r} never comes"
            raise UnreadableScheduleError(message) from error
