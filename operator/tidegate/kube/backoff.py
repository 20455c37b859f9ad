"""Exponential backoff with a cap and jitter."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

# Beyond this the cap rules anyway, and 2**n stays a small number.
_MAX_DOUBLINGS: Final = 30


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential backoff. `jitter` 0.5 draws the delay from 50 to 100 % of the full one, so that peers spread out."""

    initial: timedelta = timedelta(milliseconds=100)
    cap: timedelta = timedelta(minutes=2)
    jitter: float = 0.5
    random: random.Random = field(default_factory=random.Random)

    def compute_delay(self, failures: int) -> timedelta:
        """Return the pause after `failures` failures in a row (1 or more)."""
        full: timedelta = min(self.initial * 2 ** min(failures - 1, _MAX_DOUBLINGS), self.cap)
        return full * (1 - self.jitter * self.random.random())
