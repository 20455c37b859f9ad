"""What hour it is in the demo: a day that begins when it is told to, and passes many times as fast as the clock."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

BEGINS_H: Final = 7.0
"""In the morning, when demand rises."""


class Day:
    """The demo's clock. It stands at BEGINS_H until `begin` writes down that the day has begun, for all processes."""

    def __init__(self, path: Path, speed: float, now: Callable[[], float]) -> None:
        """Keep the begin in `path`; `now` gives seconds since the epoch."""
        self._path = path
        self._speed = speed
        self._now = now
        self._began: float | None = None

    def begin(self) -> None:
        """From now on it goes on; a second call changes nothing."""
        if self.began is None:
            partial = self._path.with_name(f"{self._path.name}.{os.getpid()}")
            partial.write_text(json.dumps({"began": self._now()}))
            partial.replace(self._path)

    @property
    def began(self) -> float | None:
        """When it began; None before."""
        if self._began is None and self._path.exists():
            self._began = float(json.loads(self._path.read_text())["began"])
        return self._began

    def hours_since(self, at: float | None = None) -> float:
        """Hours of the demo since its midnight, at a time or now; beyond 24 on later days, BEGINS_H before all."""
        began = self.began
        passed_s = 0.0 if began is None else max((self._now() if at is None else at) - began, 0.0)
        return BEGINS_H + passed_s * self._speed / 3600


def clock_text(hours: float) -> str:
    """Hours since midnight as a person reads them: 31.5 is 07:30 of the second day."""
    day, hour = divmod(hours, 24)
    minutes = int(hour * 60)
    return f"day {int(day) + 1}, {minutes // 60:02}:{minutes % 60:02}"
