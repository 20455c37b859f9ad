"""Why a call of a pipeline has no answer."""

from enum import StrEnum


class FailureKind(StrEnum):
    """What a caller can do about it differs with these, and nothing finer."""

    REFUSED = "refused"
    """The model does not take this input."""
    FAILED = "failed"
    """The model broke, on this input or on any."""
    UNAVAILABLE = "unavailable"
    """Nobody answers, or a limit sheds the call."""
    TIMED_OUT = "timed out"


class CallError(Exception):
    """A call without an answer, in the words of whoever refused it."""

    def __init__(self, kind: FailureKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind

    @property
    def worth_halving(self) -> bool:
        """Whether the same call may go well without some of its requests; a model that breaks does not say by which."""
        return self.kind in (FailureKind.REFUSED, FailureKind.FAILED)
