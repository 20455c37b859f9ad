"""Times of events: milliseconds since 1970."""

from datetime import UTC, datetime, timedelta
from typing import Final

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND: Final = timedelta(milliseconds=1)


def parse_moment(text: str) -> int | None:
    """Return the milliseconds since 1970 of a time in RFC 3339; None if it is none, or has no time zone."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return None if moment.tzinfo is None else (moment - EPOCH) // MILLISECOND
