"""The deadline of a call, and the error of a call that misses it."""

from dataclasses import dataclass

from tidegate_dataplane.pipeline.failures import CallError, FailureKind


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
