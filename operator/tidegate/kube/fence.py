"""The fence: the epoch of the leader that writes, and the deadline until which this process may write."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Self

from tidegate.errors import LeadershipLostError

# Comparisons of desired and live objects ignore all three, so that a failover rewrites nothing.
EPOCH_ANNOTATION: Final = "tidegate.io/epoch"
APPLIED_ANNOTATION: Final = "tidegate.io/applied"
CREATED_ANNOTATION: Final = "tidegate.io/created"
"""Replaces the annotation `applied` on an object that was created and has not been changed since."""


class Fence:
    """The right to write of one epoch of leadership.

    Every renewal of the lease extends the deadline, which is on the monotonic clock: a stopped process or a clock
    that was set back cannot make an old epoch valid again.
    """

    __slots__ = ("_deadline", "_monotonic", "epoch")

    def __init__(
        self, epoch: int, *, deadline: Callable[[], float], monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.epoch: Final = epoch
        self._deadline = deadline
        self._monotonic = monotonic

    @classmethod
    def unlimited(cls, epoch: int = 0) -> Self:
        """Return a fence that never expires, for tools and tests, where there is no other writer."""
        return cls(epoch, deadline=lambda: float("inf"), monotonic=lambda: 0.0)

    def is_valid(self) -> bool:
        """Return whether a write may still be sent."""
        return self.remaining_s() > 0

    def remaining_s(self) -> float:
        """Return the seconds until the right to write expires; zero or less if it has."""
        return self._deadline() - self._monotonic()

    def check(self) -> None:
        """Raise LeadershipLostError if the right to write has expired."""
        if not self.is_valid():
            message = f"leadership epoch {self.epoch} has ended: the write was not sent; the new leader will send it"
            raise LeadershipLostError(message)
