"""The demo's time of day: the day starts on request and passes many times as fast as the clock."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

START_HOUR: Final = 7.0
"""Morning, when demand rises."""


class DemoClock:
    """The demo's clock: it stays at START_HOUR until `start_day` records the start for all processes."""

    def __init__(self, path: Path, speed: float, clock: Callable[[], float]) -> None:
        """Store the start in `path`; `now` returns seconds since the epoch."""
        self._path = path
        self._speed = speed
        self._now = clock
        self._began: float | None = None

    def start_day(self) -> None:
        """Start the day; a second call changes nothing."""
        if self.started_at is None:
            partial = self._path.with_name(f"{self._path.name}.{os.getpid()}")
            partial.write_text(json.dumps({"began": self._now()}))
            partial.replace(self._path)

    @property
    def started_at(self) -> float | None:
        """Return the time of the start, or None before it."""
        if self._began is None and self._path.exists():
            self._began = float(json.loads(self._path.read_text())["began"])
        return self._began

    def hours_at(self, time_s: float | None = None) -> float:
        """Return the demo's hours since its first midnight, at a time or now.

        Before the start it is START_HOUR; on later days it is above 24.
        """
        began = self.started_at
        passed_s = 0.0 if began is None else max((self._now() if time_s is None else time_s) - began, 0.0)
        return START_HOUR + passed_s * self._speed / 3600


def format_hours(hours: float) -> str:
    """Format hours since midnight: 31.5 is "day 2, 07:30"."""
    day, hour = divmod(hours, 24)
    minutes = int(hour * 60)
    return f"day {int(day) + 1}, {minutes // 60:02}:{minutes % 60:02}"
