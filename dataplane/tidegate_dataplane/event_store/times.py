"""Times of events: milliseconds since 1970."""

import re
from datetime import UTC, datetime, timedelta
from typing import Final

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
RFC_3339: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)
MILLISECOND: Final = timedelta(milliseconds=1)


def parse_moment(text: str) -> int | None:
    """Return the milliseconds since 1970 of a time in RFC 3339; None if it is none, such as one without a time zone.

    A leap second is none.
    """
    if not RFC_3339.fullmatch(text):
        return None
    try:
        return (datetime.fromisoformat(text) - EPOCH) // MILLISECOND
    except ValueError:
        return None
