"""Interface of every sink: write a portion of records and return the outcome of each."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

from tidegate_dataplane.agent.samples.buffer import BufferedRecord, Portion
from tidegate_dataplane.contract import SampleProblem


class WriteOutcome(StrEnum):
    """Outcome of writing one record."""

    WRITTEN = "Written"
    DUPLICATE = "Duplicate"
    TOO_LARGE = "TooLarge"
    UNCONFIRMED = "Unconfirmed"
    RETRY = "Again"


class SinkError(Exception):
    """Nothing of a portion was written, and it is retried; the message goes into a status and contains no secret."""

    def __init__(self, problem: SampleProblem, message: str) -> None:
        super().__init__(message)
        self.problem = problem
        self.message = message


class RecordSink(Protocol):
    """A destination, opened for one logging block of a spec."""

    portion: Portion

    async def write(self, portion: Sequence[BufferedRecord]) -> Sequence[WriteOutcome]:
        """Write the records and return their outcomes, in order.

        Raises:
            SinkError: none was written, and a retry may succeed.
        """
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...
