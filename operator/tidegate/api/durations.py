"""Durations in specs: one whole number and one unit, as in 250ms, 30s, 10m or 2h."""

from __future__ import annotations

import re
from datetime import timedelta
from functools import lru_cache
from typing import Final

# Six digits: the API server's rules read durations as Go does, which overflows beyond 292 years.
DURATION_PATTERN: Final = r"^[0-9]{1,6}(us|ms|s|m|h)$"

_MICROSECONDS_PER_UNIT: Final = {
    "us": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "h": 3_600_000_000,
}
_DURATION: Final = re.compile(r"([0-9]{1,6})(us|ms|s|m|h)")


@lru_cache(maxsize=1024)
def parse_duration(text: str) -> timedelta:
    """Parse a duration.

    It has one unit, no fraction and at most six digits, so that equal durations look alike.
    Raises ValueError, with the accepted forms, for anything else.
    """
    matched = _DURATION.fullmatch(text)
    if matched is None:
        message = (
            f"'{text[:40]}' is not a duration: use a whole number and us, ms, s, m or h, as in 250ms or 30s"
        )
        raise ValueError(message)
    return timedelta(microseconds=int(matched[1]) * _MICROSECONDS_PER_UNIT[matched[2]])


def format_duration(duration: timedelta) -> str:
    """Format a duration in the largest unit that needs no fraction; parse_duration is the inverse.

    Raises ValueError for a duration that is negative or needs more than six digits.
    """
    total = duration // timedelta(microseconds=1)
    unit = next(
        unit for unit in reversed(_MICROSECONDS_PER_UNIT) if total % _MICROSECONDS_PER_UNIT[unit] == 0
    )
    text = f"{total // _MICROSECONDS_PER_UNIT[unit]}{unit}" if total else "0s"
    parse_duration(text)
    return text
