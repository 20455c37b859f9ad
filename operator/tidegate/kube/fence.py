"""The right to write: which term of leadership a write belongs to, and until when this process may use it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Self

from tidegate.errors import LeadershipLostError

# All three are left out when desired and live objects are compared, so that a failover rewrites nothing.
EPOCH_ANNOTATION: Final = "tidegate.io/epoch"
APPLIED_ANNOTATION: Final = "tidegate.io/applied"
CREATED_ANNOTATION: Final = "tidegate.io/created"
"""Instead of the annotation `applied` on an object that was created and has not been changed since."""


class Fence:
    """One term of leadership, as seen by those who write.

    The deadline moves on with every renewal of the lease and is read on the monotonic clock,
    so a stopped process or a clock set back cannot make an old term look valid.
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
        """A fence that never ends: for tools and tests, where nobody else writes."""
        return cls(epoch, deadline=lambda: float("inf"), monotonic=lambda: 0.0)

    def valid(self) -> bool:
        """Whether a write may still be sent."""
        return self.remaining_s() > 0

    def remaining_s(self) -> float:
        """Seconds until the right ends; zero or less when it has."""
        return self._deadline() - self._monotonic()

    def check(self) -> None:
        """Raises LeadershipLostError when the right has ended."""
        if not self.valid():
            message = (
                f"leadership epoch {self.epoch} has ended here: the write was not sent; the leader will do it"
            )
            raise LeadershipLostError(message)
