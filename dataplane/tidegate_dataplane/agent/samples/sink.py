"""What every sink offers: take a portion of records, and say of each what became of it."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

from tidegate_dataplane.agent.samples.buffer import Held, Portion
from tidegate_dataplane.contract import SampleProblem


class Fate(StrEnum):
    """What became of a record that was handed over."""

    WRITTEN = "Written"
    DUPLICATE = "Duplicate"
    TOO_LARGE = "TooLarge"
    UNCONFIRMED = "Unconfirmed"
    AGAIN = "Again"


class SinkError(Exception):
    """Nothing of a portion was written; it is tried again. The message is for the status, without any secret."""

    def __init__(self, problem: SampleProblem, message: str) -> None:
        super().__init__(message)
        self.problem = problem
        self.message = message


class Sink(Protocol):
    """One place, opened for one logging block of a spec."""

    portion: Portion

    async def write(self, portion: Sequence[Held]) -> Sequence[Fate]:
        """Write the records and return their fates, in order.

        Raises:
            SinkError: none was written, and it is worth trying again.
        """
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...
