"""The error of a pipeline's call."""

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
