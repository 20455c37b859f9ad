"""How far a stream was read, stored together with its events."""

from pydantic import Field

from tidegate_dataplane.contract import DeadLetterCounts, RefusalReason, RefusedEvent
from tidegate_dataplane.contract.base import ContractModel


class StreamState(ContractModel):
    """The next position to read and the time of the newest event, by partition, and what was made of the events before.

    `origin` is the identity of the stream at the broker: another one has other positions. Events that reached the broker before
    `letters_since_s`, in seconds since 1970, are no dead letters.
    """

    origin: str = ""
    positions: dict[str, int] = Field(default_factory=dict)
    newest_ms: dict[str, int] = Field(default_factory=dict)
    stored: int = Field(default=0, ge=0)
    refused: dict[RefusalReason, int] = Field(default_factory=dict)
    last_refused: RefusedEvent | None = None
    letters: DeadLetterCounts = Field(default_factory=DeadLetterCounts)
    letters_since_s: float = 0.0

    @property
    def refused_count(self) -> int:
        """Return the number of refused events."""
        return sum(self.refused.values())
