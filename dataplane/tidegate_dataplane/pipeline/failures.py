"""The error of a pipeline's call, and the deadline whose miss is one."""

from dataclasses import dataclass
from enum import StrEnum


class FailureKind(StrEnum):
    """The kinds of failure that a caller can treat differently."""

    REFUSED = "refused"
    """The model does not take this input."""
    FAILED = "failed"
    """The model broke, on this input or on any."""
    UNAVAILABLE = "unavailable"
    """No endpoint answers, or a limit rejects the call."""
    TIMED_OUT = "timed out"


class CallError(Exception):
    """A call without an answer; the message is that of the component that failed."""

    def __init__(self, kind: FailureKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind

    @property
    def worth_halving(self) -> bool:
        """Return whether the call may succeed without some of its requests.

        A model that fails does not say which request caused it.
        """
        return self.kind in (FailureKind.REFUSED, FailureKind.FAILED)


@dataclass(frozen=True, slots=True)
class Deadline:
    """A time on the caller's clock, and the time allowed when the call began."""

    at_s: float
    allowed_s: float

    def timeout_error(self) -> CallError:
        """Return the error for a call that missed the deadline."""
        if self.allowed_s <= 0:
            return CallError(FailureKind.TIMED_OUT, "no time was left to ask")
        return CallError(FailureKind.TIMED_OUT, f"no answer within {round(self.allowed_s * 1000, 1):g} ms")
